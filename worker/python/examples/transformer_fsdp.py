"""A small language model, fully sharded (FSDP). --hybrid shards inside pairs of ranks and
replicates across them (HYBRID_SHARD).

    shoalrun -n 4 -- python3 transformer_fsdp.py --hybrid
"""

import functools

import common
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def main():
    options, rank, size = common.start(
        "A small language model, fully sharded (FSDP).",
        hybrid="shard inside pairs of ranks, replicate across them (HYBRID_SHARD)",
    )
    arguments = {"sharding_strategy": ShardingStrategy.FULL_SHARD}
    if options.hybrid:
        pairs = [dist.new_group([i, i + 1]) for i in range(0, size, 2)]
        across = [dist.new_group(list(range(i, size, 2))) for i in range(2)]
        arguments = {
            "sharding_strategy": ShardingStrategy.HYBRID_SHARD,
            "process_group": (pairs[rank // 2], across[rank % 2]),
        }
    model = FullyShardedDataParallel(
        common.TextModel(),
        auto_wrap_policy=functools.partial(
            transformer_auto_wrap_policy,
            transformer_layer_cls={torch.nn.TransformerEncoderLayer},
        ),
        device_id=torch.device("cpu"),
        **arguments,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
