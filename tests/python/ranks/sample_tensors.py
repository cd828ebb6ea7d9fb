"""Tensors that differ on each rank, and what all ranks have together."""

import ranks
import torch
import torch.distributed as dist

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.int16,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


def values(dtype, shape=(7, 3), seed=0):
    """Small whole numbers, different on each rank: sums and products of them are exact."""
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def everybody(tensor):
    """[tensor of rank r], over gloo as int64."""
    gathered = [torch.empty(tensor.shape, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor.to(torch.int64).contiguous())
    return gathered


def check_equal(got, expected):
    assert got.shape == expected.shape, (got.shape, expected.shape)
    assert torch.equal(got.to(torch.float64), expected.to(torch.float64)), (got, expected)


def group():
    return ranks.shoal_group
