"""Calls of libraries that shard parameters, gradients and optimizers (DeepSpeed, FSDP), and those of DDP's own that no
other test makes."""

import contextlib

import ranks
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, distributed_c10d


@contextlib.contextmanager
def coalescing(device=torch.device("cpu")):
    """All calls made in it are complete after it."""
    with distributed_c10d._coalescing_manager(group=None, device=device, async_ops=True) as work:
        yield lambda call: None  # the manager has them
    work.wait()


def check(got, expected):
    assert got.dtype == expected.dtype and torch.equal(got, expected), (got, expected)


def test_coalesced_all_gather():
    size, rank = dist.get_world_size(), dist.get_rank()
    for device in (torch.device("cpu"), None):
        inputs = [torch.full((4 + i,), float(rank + i)) for i in range(3)]
        outputs = [torch.empty(size * (4 + i)) for i in range(3)]
        with coalescing(device) as keep:
            for output, tensor in zip(outputs, inputs):
                keep(dist.all_gather_into_tensor(output, tensor, async_op=True))
        for i, output in enumerate(outputs):
            check(output, torch.cat([torch.full((4 + i,), float(other + i)) for other in range(size)]))


def test_coalesced_reduce_scatter():
    size, rank = dist.get_world_size(), dist.get_rank()
    for device in (torch.device("cpu"), None):
        inputs = [torch.arange(4.0 * size) + i for i in range(3)]
        outputs = [torch.empty(4) for _ in range(3)]
        with coalescing(device) as keep:
            for output, tensor in zip(outputs, inputs):
                keep(dist.reduce_scatter_tensor(output, tensor, async_op=True))
        for i, output in enumerate(outputs):
            check(output, (torch.arange(4.0 * size)[4 * rank : 4 * rank + 4] + i) * size)


def test_coalesced_all_reduce():
    size = dist.get_world_size()
    for device in (torch.device("cpu"), None):
        tensors = [torch.full((5,), i + 1.0) for i in range(3)]
        with coalescing(device) as keep:
            for tensor in tensors:
                keep(dist.all_reduce(tensor, async_op=True))
        for i, tensor in enumerate(tensors):
            check(tensor, torch.full((5,), (i + 1.0) * size))


def test_averages_of_halves():
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype in (torch.bfloat16, torch.float16):
        output = torch.empty(8, dtype=dtype)
        given = torch.full((8 * size,), 2.0 * rank, dtype=dtype)
        dist.reduce_scatter_tensor(output, given, op=ReduceOp.AVG)
        check(output, torch.full((8,), float(size - 1), dtype=dtype))
        gathered = torch.empty(8 * size, dtype=dtype)
        dist.all_gather_into_tensor(gathered, torch.full((8,), float(rank), dtype=dtype))
        check(gathered, torch.arange(size).repeat_interleave(8).to(dtype))


def test_a_batch_of_sends_and_receives():
    size, rank = dist.get_world_size(), dist.get_rank()
    for _ in range(3):
        received = [torch.empty(3), torch.empty(2, 2, dtype=torch.int64)]
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % size),
                dist.P2POp(dist.irecv, received[0], (rank - 1) % size),
                dist.P2POp(dist.irecv, received[1], (rank + 1) % size),
                dist.P2POp(dist.isend, torch.full((2, 2), rank), (rank - 1) % size),
            ]
        )
        for work in works:
            work.wait()
        check(received[0], torch.full((3,), float((rank - 1) % size)))
        check(received[1], torch.full((2, 2), (rank + 1) % size))


def test_subgroups_of_a_node_and_across():
    """MiCS and hierarchical partitioning: groups that new_subgroups makes, of which each has one."""
    size, rank = dist.get_world_size(), dist.get_rank()
    mine, pairs = dist.new_subgroups(group_size=2)
    assert len(pairs) == size // 2
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == 2 * (rank - rank % 2) + 1
    lists = [list(range(first, size, 2)) for first in range(2)]
    across, _ = dist.new_subgroups_by_enumeration(lists)
    gathered = torch.empty(size // 2)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)]), group=across)
    assert gathered.tolist() == lists[rank % 2]


def test_later_names():
    """torch after 2.11 calls these names. A group in C++ has the names of this torch, ours in Python has all of
    them."""
    group, size, rank = ranks.shoal_group, dist.get_world_size(), dist.get_rank()

    def call(name, *arguments):
        if type(group) is dist.ProcessGroup and not hasattr(group, name):
            return False
        getattr(group, name)(*arguments).wait()
        return True

    output, part = torch.empty(size), torch.empty(1)
    if call("all_gather_single", output, torch.tensor([float(rank)])):
        assert output.tolist() == list(range(size))
    outputs = [torch.empty(size), torch.empty(2 * size)]
    inputs = [torch.tensor([float(rank)]), torch.full((2,), float(rank))]
    for name in ("all_gather_single_coalesced", "all_gather_into_tensor_coalesced"):
        if call(name, outputs, inputs):
            assert outputs[1].tolist() == [other for other in range(size) for _ in range(2)]
    if call("reduce_scatter_single", part, torch.ones(size)):
        assert part.item() == size
    if call("reduce_scatter_single_coalesced", [part], [torch.full((size,), 2.0)]):
        assert part.item() == 2 * size
    if call("all_to_all_single", output, torch.full((size,), float(rank)), [], []):
        assert output.tolist() == list(range(size))


def test_the_device_of_a_group():
    """FSDP asks for it where it makes sharded state dicts, and torch's asynchronous checkpoints do."""
    assert dist.distributed_c10d._get_pg_default_device(ranks.shoal_group) == torch.device("cpu")
    assert torch.device("cpu") in ranks.shoal_group._device_types


def test_parameters_that_differ_between_ranks():
    """DDP's verification of shapes: the rank whose model is another hears of it."""
    last = dist.get_rank() == dist.get_world_size() - 1
    group = dist.new_group(backend="shoal", timeout=ranks.TIMEOUT)
    parameters = [torch.nn.Parameter(torch.ones(3, 4 if last else 5))]
    if last:
        error = ranks.raises(
            RuntimeError, lambda: dist._verify_params_across_processes(group, parameters, None)
        )
        assert "sizes" in str(error) or "shape" in str(error), error
    else:
        dist._verify_params_across_processes(group, parameters, None)
    dist.barrier(ranks.gloo)


def parameters_everywhere(model):
    """The parameters, checked to be the same on all ranks."""
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    gathered = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, flat, group=ranks.gloo)
    assert all(torch.equal(other, flat) for other in gathered)
    return flat


def train(model, steps, hook=None):
    torch.manual_seed(7)
    model = torch.nn.parallel.DistributedDataParallel(model, process_group=ranks.shoal_group)
    if hook:
        model.register_comm_hook(*hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    with model.join() if steps is None else contextlib.nullcontext():
        for _ in range(dist.get_rank() + 1 if steps is None else steps):
            optimizer.zero_grad()
            model(torch.randn(3, 4) + dist.get_rank()).square().sum().backward()
            optimizer.step()
    return parameters_everywhere(model)


def make_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 40), torch.nn.Linear(40, 2))


def test_ranks_with_fewer_steps():
    """DDP's join: those that have ended stand in until the last one has."""
    before = torch.nn.utils.parameters_to_vector(make_model().parameters())
    assert not torch.equal(train(make_model(), None), before)


def test_hooks_of_torch():
    """Their futures are chained in Python and waited for in C++."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    plain = train(make_model(), 2)
    torch.testing.assert_close(train(make_model(), 2, (None, default_hooks.allreduce_hook)), plain)
    halves = train(make_model(), 2, (None, default_hooks.fp16_compress_hook))
    torch.testing.assert_close(halves, plain, rtol=1e-2, atol=1e-2)
    assert not torch.equal(halves, plain)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    train(make_model(), 5, (state, powerSGD_hook.powerSGD_hook))


def test_collectives_with_gradients():
    import torch.distributed.nn.functional as functional

    size, rank = dist.get_world_size(), dist.get_rank()
    tensor = torch.full((4,), rank + 1.0, requires_grad=True)
    functional.all_reduce(tensor, group=ranks.shoal_group).sum().backward()
    assert torch.all(tensor.grad == size)
    tensor.grad = None
    gathered = functional.all_gather(tensor, group=ranks.shoal_group)
    sum(part.sum() * (i + 1) for i, part in enumerate(gathered)).backward()
    assert torch.all(tensor.grad == size * (rank + 1))
    swapped = functional.all_to_all_single(torch.empty(4), tensor, group=ranks.shoal_group)
    assert torch.equal(swapped, torch.arange(size) + 1.0)


def test_operations_that_there_are_not():
    import shoal

    group = ranks.shoal_group
    truths = torch.tensor([True])
    ranks.raises(shoal.InvalidError, lambda: dist.all_reduce(truths, ReduceOp.AVG, group=group))
    # TypeError: torch's own, of a group in C++.
    refused = (shoal.InvalidError, TypeError)
    error = ranks.raises(refused, lambda: group.allreduce([torch.ones(1)], ReduceOp.PREMUL_SUM))
    assert "PREMUL_SUM" in str(error), error
    half, sparse = dist._make_nccl_premul_sum(0.5), torch.ones(2).to_sparse()
    error = ranks.raises(shoal.InvalidError, lambda: dist.all_reduce(sparse, op=half, group=group))
    assert "sparse" in str(error), error
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)  # nobody was harmed
    assert tensor.item() == dist.get_world_size()
