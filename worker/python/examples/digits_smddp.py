"""The perceptron of digits_ddp.py in a script for SMDDP, as versions 1.4 and later have it: a backend.

    shoalrun -n 4 -- python3 -m shoal.smddp digits_smddp.py [--device cuda]
"""

import common
import digits_ddp
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    options = common.parse_options(
        __doc__.splitlines()[0], devices=("cpu", "cuda"), backend=None
    )
    dist.init_process_group(backend="smddp")
    model = DDP(digits_ddp.make_perceptron().to(options.device))
    batches = digits_ddp.make_batches(options, dist.get_rank(), dist.get_world_size())
    common.finish(digits_ddp.train(model, batches))


if __name__ == "__main__":
    main()
