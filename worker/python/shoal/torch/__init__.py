"""The PyTorch backend: `import shoal.torch`, then `init_process_group(backend="shoal")`.

It registers itself when imported. README.md in worker/python says what it does and how.
"""

from shoal import _autoload
from torch.distributed import is_available

if not is_available():
    raise ImportError("this PyTorch has been built without torch.distributed")

from shoal.torch import _versions  # noqa: E402, I001 (the first, since it refuses a torch that is too old)
from shoal.torch import _launch, _member, _process_group, _work  # noqa: E402
from shoal.torch._data_parallel import DistributedDataParallel, allreduce_hook  # noqa: E402
from shoal.torch._generations import (  # noqa: E402
    generation,
    is_recoverable,
    join,
    position,
    reconfigure,
    replay,
)
from shoal.torch._process_group import Options, is_checkpoint_rank, make_group  # noqa: E402

__all__ = [
    "DistributedDataParallel",
    "Options",
    "allreduce_hook",
    "generation",
    "is_checkpoint_rank",
    "is_recoverable",
    "join",
    "make_group",
    "position",
    "reconfigure",
    "replay",
]

_work.install()
_launch.install()
_versions.add_method_names(_process_group.ProcessGroup)
_versions.hide_from_dynamo(_process_group.ProcessGroup, _member.Member, DistributedDataParallel)
_versions.patch_functions_of_one_backend(_process_group.member_of)
_versions.register_in_dist2(_autoload.NAME, make_group, Options)
_autoload.register()
