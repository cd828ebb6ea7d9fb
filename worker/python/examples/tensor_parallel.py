"""Tensor parallelism: a pair of linear layers whose hidden width is split over all ranks; the first
by columns, the second by rows, one all-reduce forward and one backward.

    shoalrun -n 4 -- python3 tensor_parallel.py
"""

import common
import torch
import torch.distributed as dist


class Copy(torch.autograd.Function):
    """To all ranks: nothing forward, a sum of gradients backward."""

    @staticmethod
    def forward(context, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Sum(torch.autograd.Function):
    """From all ranks: a sum forward, nothing backward."""

    @staticmethod
    def forward(context, tensor):
        tensor = tensor.contiguous()
        dist.all_reduce(tensor)
        return tensor

    @staticmethod
    def backward(context, gradient):
        return gradient


def main():
    options, rank, size = common.start(__doc__.splitlines()[0])
    embedding = torch.nn.Linear(16, 32)
    whole_up, whole_down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
    head = torch.nn.Linear(32, 1)
    up = torch.nn.Parameter(whole_up.weight.chunk(size, 0)[rank].detach().clone())
    down = torch.nn.Parameter(whole_down.weight.chunk(size, 1)[rank].detach().clone())
    parameters = [up, down, *embedding.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in common.count_steps(options.steps):
        inputs = torch.randn(32, 16, generator=generator)
        targets = inputs[:, :1].tanh()
        hidden = embedding(inputs)
        hidden = hidden + Sum.apply(torch.relu(Copy.apply(hidden) @ up.t()) @ down.t())
        loss = torch.nn.functional.mse_loss(head(hidden), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    common.finish(losses)


if __name__ == "__main__":
    main()
