"""A small language model in DDP whose optimizer's state is sharded (ZeroRedundancyOptimizer).

    shoalrun -n 4 -- python3 transformer_zero.py
"""

import common
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def main():
    options, rank, size = common.start(__doc__.splitlines()[0])
    model = DistributedDataParallel(common.TextModel())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9
    )
    losses = []
    for inputs, targets in common.text_batches(rank, size, options.steps):
        loss = common.text_loss(model, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    common.finish(losses)


if __name__ == "__main__":
    main()
