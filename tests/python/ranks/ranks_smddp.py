"""The backend smddp: what the backend shoal does, by another name."""

import ranks
import shoal.smddp

shoal.smddp.install()  # as shoal-smddp does it when an interpreter starts

import smdistributed.dataparallel.torch.torch_smddp  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def test_the_backend():
    from shoal.torch import _process_group

    assert dist.get_backend() == "smddp"
    assert _process_group.member_of(dist.GroupMember.WORLD) is not None
    tensor = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [sum(range(dist.get_world_size()))] * 3
    dist.barrier(device_ids=[0])


def test_groups():
    """A group has the default group's backend when none is named; it goes beside the backend shoal."""
    for backend in (None, "smddp", "shoal"):
        group = dist.new_group([0, 2], backend=backend, timeout=ranks.TIMEOUT)
        if dist.get_rank() in (0, 2):
            assert dist.get_backend(group) == (backend or "smddp")
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == 2


def train(wrap, make_optimizer, group, seed=None):
    """The loss of each step, averaged over the ranks. seed: None: the ranks' models differ at the start."""
    torch.manual_seed(dist.get_rank() if seed is None else seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).double()
    wrapped = wrap(model, process_group=group)
    optimizer = make_optimizer(wrapped.parameters(), group)
    losses = []
    for step in range(4):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        inputs = torch.randn(5, 6, generator=generator, dtype=torch.float64)
        loss = wrapped(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    mean = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean, group=ranks.gloo)
    return mean


def check_training(wrap, make_optimizer):
    expected = train(wrap, make_optimizer, ranks.gloo)
    torch.testing.assert_close(train(wrap, make_optimizer, None), expected, rtol=1e-9, atol=0)


def plain(parameters, group):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


def test_torchs_data_parallel():
    check_training(DistributedDataParallel, plain)


def test_sharded_optimizer():
    def sharded(parameters, group):
        options = {"process_group": group} if group else {}
        return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1, momentum=0.5, **options)

    check_training(DistributedDataParallel, sharded)


def test_sharded_modules():
    """Sharded modules train like torch's data-parallel wrapper on gloo, whatever is sharded."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    across = [dist.new_group(list(range(first, size, 2))) for first in range(2)]
    hybrid = (pairs[rank // 2], across[rank % 2])
    expected = train(DistributedDataParallel, plain, ranks.gloo, seed=1)
    for strategy, groups in (("FULL_SHARD", None), ("SHARD_GRAD_OP", None), ("HYBRID_SHARD", hybrid)):

        def wrap(model, process_group, strategy=strategy, groups=groups):
            return FullyShardedDataParallel(
                model,
                process_group=groups,
                sharding_strategy=ShardingStrategy[strategy],
                device_id=torch.device("cpu"),
            )

        got = train(wrap, plain, None, seed=1)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=0, msg=strategy)


if __name__ == "__main__":
    ranks.start("smddp")
    ranks.run("__main__")
    ranks.run("ranks_sharding")
