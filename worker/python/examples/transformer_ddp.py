"""A small language model, data-parallel; --zero-copy takes shoal's own DistributedDataParallel,
--hook its communication hook for torch's.

    shoalrun -n 4 -- python3 transformer_ddp.py --zero-copy [--device cuda]
"""

import sys

import common
import torch


def main():
    zero_copy, hook = ("--zero-copy" in sys.argv, "--hook" in sys.argv)
    sys.argv = [word for word in sys.argv if word not in ("--zero-copy", "--hook")]
    options, rank, size = common.start(__doc__.splitlines()[0])
    import shoal.torch

    text_model = common.TextModel().to(options.device)
    if zero_copy:
        model = shoal.torch.DistributedDataParallel(text_model)
    else:
        model = torch.nn.parallel.DistributedDataParallel(text_model)
    if hook:
        model.register_comm_hook(None, shoal.torch.allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, targets in common.text_batches(rank, size, options.steps):
        inputs, targets = inputs.to(options.device), targets.to(options.device)
        loss = common.text_loss(model, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    common.finish(losses)


if __name__ == "__main__":
    main()
