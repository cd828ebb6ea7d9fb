"""A small language model, data-parallel; --zero-copy takes shoal's DistributedDataParallel, --hook
its communication hook for torch's.

    shoalrun -n 4 -- python3 transformer_ddp.py --zero-copy [--device cuda]
"""

import common
import torch


def main():
    options, rank, size = common.start(
        "A small language model, data-parallel.",
        devices=("cpu", "cuda"),
        zero_copy="shoal's DistributedDataParallel",
        hook="shoal's communication hook for torch's",
    )
    import shoal.torch

    text_model = common.TextModel().to(options.device)
    if options.zero_copy:
        model = shoal.torch.DistributedDataParallel(text_model)
    else:
        model = torch.nn.parallel.DistributedDataParallel(text_model)
    if options.hook:
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
