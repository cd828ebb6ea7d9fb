"""Calls that the native backend takes, and those that it leaves to the one in Python: which of the two has
made a Work, and that values, errors and the end are the same."""

import concurrent.futures
import datetime
import gc

import ranks
import torch
import torch.distributed as dist
from shoal import errors
from shoal.torch import _native
from shoal.torch._process_group import member_of
from torch._C import _distributed_c10d as c10d


def start_all_reduce(tensor, **options):
    return dist.all_reduce(tensor, group=ranks.shoal_group, async_op=True, **options)


def total():
    return dist.get_world_size() * (dist.get_world_size() + 1) / 2


def test_a_tensor_in_memory_is_native():
    for dtype in (torch.float32, torch.int16, torch.uint64, torch.complex64):
        tensor = torch.full((1000,), dist.get_rank() + 1, dtype=dtype)
        work = start_all_reduce(tensor)
        assert _native.is_work(work), type(work)
        work.wait()
        assert tensor.tolist() == [total()] * 1000 and work.is_completed() and work.is_success()
        assert work.result()[0].data_ptr() == tensor.data_ptr()


def test_other_tensors_are_not():
    rank = dist.get_rank()
    columns = torch.full((8, 8), rank + 1.0).t()[:, ::2]
    truths = torch.tensor([rank == 0, False])
    sparse = torch.sparse_coo_tensor([[0]], [rank + 1.0], (4,))
    for tensor in (columns, truths, sparse):
        work = start_all_reduce(tensor)
        assert not _native.is_work(work), tensor
        work.wait()
    assert torch.all(columns == total()) and truths.tolist() == [True, False]
    assert sparse.to_dense()[0] == total()
    pairs = torch.full((4, 2), complex(rank + 1, 1))  # on the ranks by turns: they ask for the same
    dist.all_reduce(pairs.t() if rank % 2 else pairs, group=ranks.shoal_group)
    assert torch.all(pairs == complex(total(), dist.get_world_size())), pairs


def test_calls_of_several_requests_are_native():
    """FSDP, ZeRO and libraries above them make these calls: lists, coalesced calls, parts of different sizes."""
    group, size, rank = ranks.shoal_group, dist.get_world_size(), dist.get_rank()

    def over(work, tensor, expected):
        assert _native.is_work(work), type(work)
        work.wait()
        assert tensor.tolist() == expected, (tensor, expected)

    def of(value, count=2):
        return torch.full((count,), float(value))

    pair = [of(rank), of(1, 3)]
    coalesced = c10d.AllreduceCoalescedOptions()
    over(group.allreduce_coalesced(pair, coalesced), pair[0], [sum(range(size))] * 2)
    assert pair[1].tolist() == [size] * 3
    out, parts = of(0), [of(other + rank) for other in range(size)]
    total_here = float(sum(rank + other for other in range(size)))
    over(group.reduce_scatter([out], [parts], c10d.ReduceScatterOptions()), out, [total_here] * 2)
    outs = [of(0), of(0, 3)]
    wholes = [torch.cat(parts), of(2, 3 * size)]
    over(group.reduce_scatter_tensor_coalesced(outs, wholes, c10d.ReduceScatterOptions()), outs[0], [total_here] * 2)
    assert outs[1].tolist() == [2 * size] * 3
    wholes = [of(0, 2 * size), of(0, size)]
    every = [float(other) for other in range(size)]
    work = group.allgather_into_tensor_coalesced(wholes, [of(rank), of(rank, 1)])
    over(work, wholes[1], every)
    assert wholes[0].tolist() == [value for value in every for _ in range(2)]
    lists = [[of(0, other + 1), of(0)] for other in range(size)]
    work = group.allgather_coalesced(lists, [of(rank, rank + 1), of(rank)])
    over(work, lists[-1][0], [size - 1.0] * size)
    assert [results[1][0].item() for results in lists] == every
    root = c10d.GatherOptions()
    root.rootRank = 1
    places = [[of(0, other) for other in range(size)]] if rank == 1 else []
    over(group.gather(places, [of(rank, rank)], root), places[0][-1] if places else of(0), [size - 1.0] * (size - 1) if places else [0, 0])
    root = c10d.ScatterOptions()
    root.rootRank = 1
    out = of(0, rank)
    given = [[of(other, other) for other in range(size)]] if rank == 1 else []
    over(group.scatter([out], given, root), out, [rank] * rank)
    outs = [of(0, rank) for _ in range(size)]
    over(group.alltoall(outs, [of(rank, other) for other in range(size)], c10d.AllToAllOptions()), outs[-1], [size - 1.0] * rank)
    rows = [rank + other for other in range(size)]
    table, out = torch.full((sum(rows), 2), float(rank)), torch.empty(sum(rows), 2)
    work = group.alltoall_base(out, table, rows, rows, c10d.AllToAllOptions())
    over(work, out[:, 1], [float(other) for other in range(size) for _ in range(rank + other)])


def test_values_of_futures_of_several_requests():
    size, rank = dist.get_world_size(), dist.get_rank()
    lists = [[torch.zeros(2) for _ in range(size)] for _ in range(2)]
    work = ranks.shoal_group.allgather(lists, [torch.full((2,), rank + 1.0), torch.full((2,), rank + 2.0)])
    assert _native.is_work(work), type(work)
    value = work.get_future().wait()
    assert [[tensor[0].item() for tensor in results] for results in value] == [
        [other + 1 for other in range(size)],
        [other + 2 for other in range(size)],
    ]


def test_sends_and_receives_are_native():
    group, size, rank = ranks.shoal_group, dist.get_world_size(), dist.get_rank()
    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.bool):
        got = torch.zeros(5, dtype=dtype)
        works = [
            dist.isend(torch.full((5,), rank).to(dtype), right, group=group, tag=3),
            dist.irecv(got, left, group=group, tag=3),
        ]
        for work in works:
            assert _native.is_work(work), type(work)
            work.wait()
        assert torch.equal(got, torch.full((5,), left).to(dtype))
    ranks.raises(errors.InvalidError, lambda: group.send([torch.ones(1)], rank, 0))  # to itself
    got = torch.zeros(5)
    ops = [dist.P2POp(dist.isend, torch.full((5,), float(rank)), right, group)]
    ops.append(dist.P2POp(dist.irecv, got, left, group))
    works = dist.batch_isend_irecv(ops)
    assert len(works) == 1 and _native.is_work(works[0])  # a batch has one
    for work in works:
        work.wait()
    assert got.tolist() == [left] * 5


def test_batches_of_both_backends():
    group, size = ranks.shoal_group, dist.get_world_size()
    for mixed in (False, True):
        whole, rows = torch.ones(16), torch.ones(8, 8)
        group._start_coalescing(torch.device("cpu"))
        first = start_all_reduce(whole)
        second = start_all_reduce(rows.t()[::2] if mixed else rows)
        work = group._end_coalescing(torch.device("cpu"))
        assert _native.is_work(first) and _native.is_work(second) is not mixed
        assert _native.is_work(work) is not mixed
        work.wait()
        assert torch.all(whole == size) and torch.all(rows.t()[::2] == size)
        assert torch.all(rows.t()[1::2] == (1 if mixed else size))
    outside = start_all_reduce(whole)
    assert _native.is_work(outside)
    outside.wait()


def test_objects_go_over_native_calls():
    """Their bytes are tensors in memory: no call of them is the Python backend's."""
    group, size, rank = ranks.shoal_group, dist.get_world_size(), dist.get_rank()
    started, member = [], member_of(group)
    original = member._start
    member._start = lambda name, *more: started.append(name) or original(name, *more)
    try:
        gathered, shared = [None] * size, [{"from": rank}]
        dist.all_gather_object(gathered, "x" * rank, group=group)
        dist.broadcast_object_list(shared, 1, group=group)
        collected = [None] * size if rank == 0 else None
        dist.gather_object(rank, collected, 0, group=group)
        mine = [None]
        dist.scatter_object_list(mine, [f"to {i}" for i in range(size)], 0, group=group)
    finally:
        del member._start
    assert gathered == ["x" * other for other in range(size)] and shared == [{"from": 1}]
    assert (collected or list(range(size))) == list(range(size)) and mine == [f"to {rank}"]
    assert started == [], started


def test_both_backends_by_turns():
    """One group's calls keep their order, and their numbers."""
    size = dist.get_world_size()
    for _ in range(10):
        whole, rows = torch.ones(16), torch.ones(8, 8)
        works = [start_all_reduce(tensor) for tensor in (whole, rows.t()[::2])]
        for work in reversed(works):
            work.wait()
        assert torch.all(whole == size) and torch.all(rows.t()[::2] == size)
        assert torch.all(rows.t()[1::2] == 1)


def test_futures_and_what_hangs_on_them():
    tensor = torch.full((100000,), dist.get_rank() + 1.0)
    other = torch.full((3,), dist.get_rank() + 1.0)

    def goes_on(future):
        # It waits for another operation: not in the thread that completes them.
        start_all_reduce(other).wait()
        return future.value()[0] / 2

    half = start_all_reduce(tensor).get_future().then(goes_on).wait()
    assert torch.all(half == total() / 2) and torch.all(other == total())
    late = start_all_reduce(other)
    late.wait()
    assert torch.all(late.get_future().wait()[0] == total() * dist.get_world_size())


def test_a_work_that_nobody_keeps():
    """Memory and Work are let go at once by the caller, and the operation goes on."""
    for count in (10, 1 << 20):
        for _ in range(5):
            start_all_reduce(torch.ones(count))
        gc.collect()
        tensor = torch.full((count,), dist.get_rank() + 1.0)
        start_all_reduce(tensor).wait()
        assert torch.all(tensor == total())


def test_many_at_once():
    tensors = [torch.full((1024,), dist.get_rank() + float(i)) for i in range(300)]
    for work in [start_all_reduce(tensor) for tensor in tensors]:
        work.wait()
    size = dist.get_world_size()
    for i, tensor in enumerate(tensors):
        assert torch.all(tensor == i * size + size * (size - 1) / 2)


def test_threads_use_groups_of_their_own():
    """And wait for Works of each other's."""
    size, ready = dist.get_world_size(), [concurrent.futures.Future() for _ in range(2)]
    groups = [dist.new_group(backend="shoal") for _ in ready]

    def use(number):
        tensor = torch.ones(1000)
        for _ in range(20):
            dist.all_reduce(tensor, group=groups[number])
            dist.all_reduce(tensor.fill_(number + 1.0), group=groups[number], async_op=True).wait()
        last = torch.ones(1 << 20)
        work = dist.all_reduce(last, group=groups[number], async_op=True)
        ready[number].set_result(work)
        for one in ready:
            one.result().wait()
        assert torch.all(tensor == size * (number + 1)) and torch.all(last == size)

    with concurrent.futures.ThreadPoolExecutor(len(ready)) as threads:
        for used in [threads.submit(use, number) for number in range(len(ready))]:
            used.result()


def test_a_timeout_names_the_call_and_ends_the_group():
    group = dist.new_group(backend="shoal", timeout=ranks.TIMEOUT)
    if dist.get_rank() != 0:
        tensor = torch.ones(5)
        options = c10d.AllreduceOptions()
        options.timeout = datetime.timedelta(seconds=1)  # not the group's: to open it may take longer
        work = group.allreduce([tensor], options)
        assert _native.is_work(work)
        short = ranks.raises(errors.TimeoutError, lambda: work.wait(datetime.timedelta(milliseconds=50)))
        assert "wait's timeout of 0.05 s" in str(short), short
        error = ranks.raises(errors.TimeoutError, work.wait)
        assert "all_reduce (torch" in str(error) and "timeout of 1 s" in str(error), error
        again = ranks.raises(errors.TimeoutError, lambda: dist.all_reduce(tensor, group=group))
        assert str(again) == str(error)
        rows = torch.ones(4, 4).t()[::2]
        ranks.raises(errors.TimeoutError, lambda: dist.all_reduce(rows, group=group))
    dist.barrier(group=ranks.gloo)


def test_ranks_that_disagree():
    group = dist.new_group(backend="shoal", timeout=ranks.TIMEOUT)
    tensor = torch.ones(5 + dist.get_rank())
    error = ranks.raises(errors.MismatchError, lambda: dist.all_reduce(tensor, group=group))
    assert str(error), error
    dist.barrier(group=ranks.gloo)


if __name__ == "__main__":
    ranks.start("gloo")
    ranks.run("__main__")
    ranks.run("ranks_collectives")
