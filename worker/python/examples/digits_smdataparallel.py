"""The perceptron of digits_ddp.py in a script for SMDDP, as versions 1.0 to 1.3 have it: its own functions
and wrapper.

    shoalrun -n 4 -- python3 -m shoal.smddp digits_smdataparallel.py [--device cuda]
"""

import common
import digits_ddp
import smdistributed.dataparallel.torch.distributed as dist
import torch
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

dist.init_process_group()


def main():
    options = common.parse_options(
        __doc__.splitlines()[0], devices=("cpu", "cuda"), backend=None
    )
    model = DDP(digits_ddp.make_perceptron().to(options.device), broadcast_buffers=False)
    batches = digits_ddp.make_batches(options, dist.get_rank(), dist.get_world_size())
    mean = torch.tensor(digits_ddp.train(model, batches), dtype=torch.float64)
    dist.all_reduce(mean, op=dist.ReduceOp.AVERAGE)
    if dist.get_rank() == 0:
        common.show("smddp", mean)
    dist.barrier()


if __name__ == "__main__":
    main()
