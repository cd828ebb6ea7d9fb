"""A perceptron on hand-written digits, data-parallel with torch's DistributedDataParallel.

    shoalrun -n 4 -- python3 digits_ddp.py [--device cuda]
    torchrun --nproc_per_node=4 digits_ddp.py
"""

import common
import torch
from torch.nn.parallel import DistributedDataParallel


def load():
    """Rows of 64 grey values and a digit."""
    lines = common.find("worker/examples/digits/digits.csv").read_text().split()
    table = torch.tensor([[int(value) for value in line.split(",")] for line in lines])
    return table[:, :64].float() / 16, table[:, 64]


def main():
    options, rank, size = common.start(__doc__.splitlines()[0], devices=("cpu", "cuda"))
    pixels, digits = (table.to(options.device) for table in load())
    model = DistributedDataParallel(
        torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        ).to(options.device)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(options.steps):
        rows = torch.arange(rank, 32 * size, size) + step * 32 * size
        rows %= len(digits)
        loss = torch.nn.functional.cross_entropy(model(pixels[rows]), digits[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    common.finish(losses)


if __name__ == "__main__":
    main()
