"""Hybrid sharding by hand: pairs of ranks share the optimizer's work, the pairs are replicas.

Inside a pair gradients are reduce-scattered, each rank steps its half of the parameters, and the
halves are all-gathered; across pairs the half gradients are all-reduced.

    shoalrun -n 4 -- python3 two_groups.py
"""

import common
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def main():
    options, rank, size = common.start(__doc__.splitlines()[0])
    pairs = [dist.new_group([i, i + 1]) for i in range(0, size, 2)]
    across = [dist.new_group(list(range(i, size, 2))) for i in range(2)]
    pair, replica = pairs[rank // 2], across[rank % 2]
    model = common.TextModel()
    parameters = list(model.parameters())
    losses = []
    for inputs, targets in common.text_batches(rank, size, options.steps):
        loss = common.text_loss(model, inputs, targets)
        model.zero_grad()
        loss.backward()
        gradient = parameters_to_vector([parameter.grad for parameter in parameters])
        gradient = torch.nn.functional.pad(gradient, (0, len(gradient) % 2))
        half = gradient.new_empty(len(gradient) // 2)
        # gloo has no reduce_scatter on older versions of torch.
        if options.backend == "gloo":
            dist.all_reduce(gradient, group=pair)
            half.copy_(gradient.chunk(2)[rank % 2])
        else:
            dist.reduce_scatter(half, list(gradient.chunk(2)), group=pair)
        dist.all_reduce(half, group=replica)
        weights = parameters_to_vector(parameters).detach()
        count = len(weights)
        weights = torch.nn.functional.pad(weights, (0, count % 2))
        mine = weights.chunk(2)[rank % 2] - 0.1 / size * half
        halves = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(halves, mine, group=pair)
        vector_to_parameters(torch.cat(halves)[:count], parameters)
        losses.append(loss.item())
    common.finish(losses)


if __name__ == "__main__":
    main()
