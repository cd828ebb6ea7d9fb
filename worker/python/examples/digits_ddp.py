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


def make_batches(options, rank, size):
    """Yield the (pixels, digits) of each step: 32 rows for each rank."""
    pixels, digits = (table.to(options.device) for table in load())
    for step in common.count_steps(options.steps):
        rows = torch.arange(rank, 32 * size, size) + step * 32 * size
        rows %= len(digits)
        yield pixels[rows], digits[rows]


def make_perceptron():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def train(model, batches):
    """The loss of each step on this rank."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for pixels, digits in batches:
        loss = torch.nn.functional.cross_entropy(model(pixels), digits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    options, rank, size = common.start(__doc__.splitlines()[0], devices=("cpu", "cuda"))
    model = DistributedDataParallel(make_perceptron().to(options.device))
    common.finish(train(model, make_batches(options, rank, size)))


if __name__ == "__main__":
    main()
