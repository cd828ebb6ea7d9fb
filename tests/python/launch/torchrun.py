"""torchrun, also of a torch that has been built without libuv, whose own takes no USE_LIBUV=0."""

import os

from torch.distributed import TCPStore


def without_libuv():
    original = TCPStore.__init__

    def __init__(self, *arguments, **options):
        options.setdefault("use_libuv", False)
        original(self, *arguments, **options)

    TCPStore.__init__ = __init__
    # Ranks make a store of their own, with USE_LIBUV; they would ask for the agent's with libuv.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"


if __name__ == "__main__":
    if os.environ.get("USE_LIBUV") == "0" and "use_libuv" in (TCPStore.__init__.__doc__ or ""):
        without_libuv()
    from torch.distributed.run import main

    main()
