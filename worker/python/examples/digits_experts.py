"""A mixture of experts on hand-written digits, in a script for SMP v2. Each rank of a pair has two of the four
experts.

    shoalrun -n 4 -- python3 -m shoal.smddp digits_experts.py [--device cuda]
"""

import common
import digits_ddp
import torch
import torch.distributed as dist
import torch.sagemaker as tsm
from torch.sagemaker.moe.moe_config import MoEConfig
from torch.sagemaker.moe.moe_layer import MoELayer


def make_expert():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 64))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = MoEConfig(moe_load_balancing="aux_loss")
        self.mixture = MoELayer(64, make_expert, 4, config=config)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, pixels):
        return self.head(pixels + self.mixture(pixels))


def take_means(model):
    """Average the gradients: every rank has the router and the rest, one rank of each pair has an expert."""
    state = tsm.state
    for name, parameter in model.named_parameters():
        of_expert = name.startswith("mixture.experts.")
        group = state.rep_process_group if of_expert else state.dp_process_group
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)


def main():
    options, rank, size = common.start(__doc__.splitlines()[0], devices=("cpu", "cuda"))
    tsm.init({"expert_parallel_degree": 2, "hybrid_shard_degree": 1})
    model = Model().to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for pixels, digits in digits_ddp.make_batches(options, rank, size):
        loss = torch.nn.functional.cross_entropy(model(pixels), digits)
        optimizer.zero_grad()
        loss.backward()
        take_means(model)
        optimizer.step()
        losses.append(loss.item())
    common.finish(losses)


if __name__ == "__main__":
    main()
