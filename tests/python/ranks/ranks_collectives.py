"""Collectives on tensors of every kind, compared with gloo's or with what must come out."""

import datetime
import gc
import weakref

import ranks
import torch
import torch.distributed as dist
from ranks_types import *  # noqa: F403
from sample_tensors import DTYPES, check_equal, everybody, group, values
from shoal import errors
from torch.distributed import ReduceOp


def test_reduce_to_every_root():
    for root in range(dist.get_world_size()):
        tensor = values(torch.float32, seed=root)
        before = tensor.clone()
        expected = sum(everybody(tensor))
        dist.reduce(tensor, root, group=group())
        check_equal(tensor, expected if dist.get_rank() == root else before)


def test_broadcast_of_every_type_and_root():
    others = [torch.complex64, torch.bool]
    for number, dtype in enumerate(DTYPES + others):
        root = number % dist.get_world_size()
        real = values(torch.int64, seed=number)
        tensor = real.to(dtype)
        dist.broadcast(tensor, root, group=group())
        assert torch.equal(tensor, everybody(real)[root].to(dtype)), dtype


def test_all_gather():
    tensor = values(torch.float32)
    outputs = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, tensor, group=group())
    for got, expected in zip(outputs, everybody(tensor)):
        check_equal(got, expected)


def test_all_gather_into_one_tensor():
    tensor = values(torch.int32)
    output = torch.empty((7 * dist.get_world_size(), 3), dtype=torch.int32)
    dist.all_gather_into_tensor(output, tensor, group=group())
    check_equal(output, torch.cat(everybody(tensor)))
    stacked = torch.empty((dist.get_world_size(), 7, 3), dtype=torch.int32)
    dist.all_gather_into_tensor(stacked, tensor, group=group())
    check_equal(stacked, torch.stack(everybody(tensor)))


def test_all_gather_of_different_sizes():
    size, rank = dist.get_world_size(), dist.get_rank()
    outputs = [torch.zeros(other + 1) for other in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)), group=group())
    for other, output in enumerate(outputs):
        assert output.tolist() == [other] * (other + 1)


def test_reduce_scatter():
    size, rank = dist.get_world_size(), dist.get_rank()
    inputs = [values(torch.float64, seed=other) for other in range(size)]
    expected = [sum(everybody(tensor)) for tensor in inputs][rank]
    output = torch.empty(7, 3, dtype=torch.float64)
    dist.reduce_scatter(output, inputs, group=group())
    check_equal(output, expected)
    output = torch.empty(7, 3, dtype=torch.float64)
    dist.reduce_scatter_tensor(output, torch.cat(inputs), group=group())
    check_equal(output, expected)
    dist.reduce_scatter_tensor(output, torch.cat(inputs), op=ReduceOp.AVG, group=group())
    check_equal(output, expected / size)


def test_gather_and_scatter():
    size, rank = dist.get_world_size(), dist.get_rank()
    for root in range(size):
        tensor = values(torch.int64, seed=root)
        outputs = [torch.empty_like(tensor) for _ in range(size)] if rank == root else None
        dist.gather(tensor, outputs, root, group=group())
        for got, expected in zip(outputs or [], everybody(tensor)):
            check_equal(got, expected)
        inputs = [torch.full((5,), float(10 * root + other)) for other in range(size)]
        output = torch.empty(5)
        dist.scatter(output, inputs if rank == root else None, root, group=group())
        assert output.tolist() == [10 * root + rank] * 5


def test_gather_and_scatter_of_different_sizes():
    size, rank = dist.get_world_size(), dist.get_rank()
    outputs = [torch.empty(other) for other in range(size)] if rank == 1 else None
    dist.gather(torch.full((rank,), float(rank)), outputs, 1, group=group())
    for other, output in enumerate(outputs or []):
        assert output.tolist() == [other] * other
    inputs = [torch.full((other,), float(other)) for other in range(size)] if rank == 2 else None
    output = torch.empty(rank)
    dist.scatter(output, inputs, 2, group=group())
    assert output.tolist() == [rank] * rank


def test_all_to_all():
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64):
        # Rank i sends 10 i + j, j times, to rank j; nothing to rank 0.
        inputs = [torch.full((other,), 10 * rank + other).to(dtype) for other in range(size)]
        outputs = [torch.empty(rank, dtype=dtype) for _ in range(size)]
        dist.all_to_all(outputs, inputs, group=group())
        for other, output in enumerate(outputs):
            assert torch.equal(output, torch.full((rank,), 10 * other + rank).to(dtype))
    # A transposed one, as it lies.
    inputs = [torch.full((2, 3), float(10 * rank + other)).t() for other in range(size)]
    outputs = [torch.empty(2, 3).t() for _ in range(size)]
    dist.all_to_all(outputs, inputs, group=group())
    assert all(torch.all(output == 10 * other + rank) for other, output in enumerate(outputs))


def test_all_to_all_in_one_tensor():
    size, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.arange(2 * size).reshape(size, 2) + 100 * rank
    output = torch.empty_like(whole)
    dist.all_to_all_single(output, whole, group=group())
    assert torch.equal(output[:, 0], 100 * torch.arange(size) + 2 * rank)
    # Rank i sends i + j rows to rank j.
    rows = [rank + other for other in range(size)]
    whole = torch.full((sum(rows), 3), float(rank))
    output = torch.empty(sum(rows), 3)
    dist.all_to_all_single(output, whole, rows, rows, group=group())
    assert torch.equal(
        output[:, 0], torch.repeat_interleave(torch.arange(size), torch.tensor(rows)).float()
    )


def test_in_place():
    """A rank's own part of the larger tensor is the smaller one."""
    size, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.zeros(size, 4)
    whole[rank] = rank + 1
    dist.all_gather_into_tensor(whole, whole[rank], group=group())
    assert torch.equal(whole[:, 0], torch.arange(size) + 1.0)
    whole = torch.ones(size, 4)
    dist.reduce_scatter_tensor(whole[rank], whole, group=group())
    assert torch.all(whole[rank] == size)


def test_send_and_receive():
    size, rank = dist.get_world_size(), dist.get_rank()
    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.bool, torch.complex64):
        sent = dist.isend(torch.full((3, 2), rank).to(dtype), right, group=group())
        received = torch.empty(2, 3, dtype=dtype).t()
        assert dist.recv(received, left, group=group()) == left
        sent.wait()
        assert torch.equal(received, torch.full((3, 2), left).to(dtype))
    # Tags are kept apart, whatever the order.
    works = [
        dist.isend(torch.full((10_000,), float(tag)), right, group=group(), tag=tag)
        for tag in range(4)
    ]
    for tag in (2, 0, 3, 1):
        received = torch.empty(10_000)
        dist.recv(received, left, group=group(), tag=tag)
        assert torch.all(received == tag)
    for work in works:
        work.wait()


def test_receive_from_any_rank():
    size, rank = dist.get_world_size(), dist.get_rank()
    if rank == 0:
        for tag, dtype in enumerate((torch.float32, torch.bool, torch.complex64)):
            seen = set()
            for _ in range(size - 1):
                received = torch.zeros(4, 2, dtype=dtype).t()
                source = dist.recv(received, group=group(), tag=tag)
                assert torch.equal(received, torch.full((2, 4), source).to(dtype)), (source, received)
                seen.add(source)
            assert seen == set(range(1, size)), seen
        # One that looks, while one that names the rank goes on.
        some, first = torch.zeros(3), torch.zeros(3)
        work = dist.irecv(some, group=group(), tag=12)
        dist.recv(first, 1, group=group(), tag=11)
        work.wait()
        assert work._source_rank() == size - 1 and some[0] == size - 1 and first[0] == 1
    else:
        for tag, dtype in enumerate((torch.float32, torch.bool, torch.complex64)):
            dist.send(torch.full((2, 4), rank).to(dtype), 0, group=group(), tag=tag)
        if rank == 1:
            dist.send(torch.full((3,), 1.0), 0, group=group(), tag=11)
        if rank == size - 1:
            dist.send(torch.full((3,), float(rank)), 0, group=group(), tag=12)


def test_sparse_tensors():
    """Different numbers of values on each rank, none on one."""
    rank = dist.get_rank()
    for shape in ((8,), (8, 3)):
        dense = torch.zeros(*shape)
        dense[:rank] = values(torch.float32, shape)[:rank]
        expected = sum(everybody(dense))
        sparse = dense.to_sparse(1)
        dist.all_reduce(sparse, group=group())
        check_equal(sparse.to_dense(), expected)
        sparse = dense.to_sparse(1)
        dist.all_reduce(sparse, dist.ReduceOp.AVG, group=group())
        check_equal(sparse.to_dense(), expected / dist.get_world_size())


def test_tensors_that_are_not_contiguous():
    tensor = values(torch.float32, (6, 4)).t()
    expected = sum(everybody(tensor))
    dist.all_reduce(tensor, group=group())
    assert tensor.stride() == (1, 4)
    check_equal(tensor, expected)
    whole = torch.zeros(8, 2)
    whole[::2] = values(torch.float32, (4, 2))
    expected = everybody(whole[::2])[0]
    dist.broadcast(whole[::2], 0, group=group())
    check_equal(whole[::2], expected)
    assert whole[1::2].abs().sum() == 0
    source = values(torch.float32, (3, 5)).t()
    places = [torch.empty(3, 5).t() for _ in range(dist.get_world_size())]
    dist.all_gather(places, source, group=group())
    for got, expected in zip(places, everybody(source)):
        check_equal(got, expected)
    output = torch.empty(3, 2).t()
    inputs = [values(torch.float32, (3, 2), seed=n).t() for n in range(dist.get_world_size())]
    expected = [sum(everybody(tensor)) for tensor in inputs][dist.get_rank()]
    dist.reduce_scatter(output, inputs, group=group())
    check_equal(output, expected)


def test_wholes_that_are_not_contiguous():
    """The larger tensor, of which every rank gets or gives a part: its order is that of its rows."""
    size, rank = dist.get_world_size(), dist.get_rank()
    output = torch.zeros(3, 2 * size).t()
    dist.all_gather_into_tensor(output, torch.full((2, 3), float(rank)).t().t(), group=group())
    assert output.stride() == (1, 2 * size)
    assert torch.equal(output[:, 0], torch.arange(size).repeat_interleave(2).float())
    part = torch.zeros(3, 2).t()
    dist.reduce_scatter_tensor(part, output, group=group())
    assert torch.all(part == rank * size)
    table = torch.zeros(size, 2)
    given = torch.full((2, size), float(rank)).t()
    dist.all_to_all_single(table[:, 1:], given[:, :1], group=group())
    assert table[:, 1].tolist() == list(range(size)) and torch.all(table[:, 0] == 0)
    # Every other element of a buffer, and what lies between stays.
    buffer = torch.full((4 * size,), -1.0)
    dist.all_gather_into_tensor(buffer[::2], torch.full((2,), float(rank)), group=group())
    assert buffer[::4].tolist() == list(range(size)) and torch.all(buffer[1::2] == -1)


def test_reduce_scatter_of_different_sizes():
    size, rank = dist.get_world_size(), dist.get_rank()
    output = torch.empty(rank + 1)
    inputs = [torch.full((other + 1,), float(other + rank)) for other in range(size)]
    dist.reduce_scatter(output, inputs, group=group())
    assert output.tolist() == [size * rank + sum(range(size))] * (rank + 1)


def test_tensors_without_elements():
    empty = torch.empty(0, 3)
    dist.all_reduce(empty, group=group())
    dist.broadcast(empty, 0, group=group())
    outputs = [torch.empty(0, 3) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, empty, group=group())
    dist.reduce_scatter(torch.empty(0), [torch.empty(0)] * dist.get_world_size(), group=group())
    dist.reduce(empty, 1, group=group())
    dist.all_gather_into_tensor(torch.empty(0), torch.empty(0), group=group())
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0), group=group())
    dist.all_to_all_single(torch.empty(0, 2), torch.empty(0, 2), group=group())
    root = dist.get_rank() == 1
    dist.gather(empty, outputs if root else None, 1, group=group())
    dist.scatter(empty, outputs if root else None, 1, group=group())
    assert empty.shape == (0, 3)


def test_scalars_and_large_tensors():
    scalar = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(scalar, group=group())
    assert scalar.item() == sum(range(1, dist.get_world_size() + 1))
    large = torch.full((3 << 20,), float(dist.get_rank() + 1))
    dist.all_reduce(large, group=group())
    assert torch.all(large == scalar.item())


def test_parameters_that_need_gradients():
    parameter = torch.nn.Parameter(torch.full((4,), float(dist.get_rank())))
    dist.broadcast(parameter, 1, group=group())
    assert parameter.tolist() == [1] * 4 and parameter.requires_grad
    matrix = torch.nn.Parameter(torch.full((4, 2), float(dist.get_rank())).t())
    dist.broadcast(matrix, 1, group=group())
    assert matrix.tolist() == [[1] * 4] * 2


def test_many_in_flight():
    size = dist.get_world_size()
    tensors = [torch.full((1000 * i + 1,), float(i)) for i in range(40)]
    works = [dist.all_reduce(tensor, group=group(), async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait()
    assert all(work.is_completed() for work in works)
    for i, tensor in enumerate(tensors):
        assert torch.all(tensor == i * size)


def test_futures():
    tensor = torch.ones(100)
    work = dist.all_reduce(tensor, group=group(), async_op=True)
    future = work.get_future().then(lambda done: done.value()[0] * 2)
    assert torch.all(future.wait() == 2 * dist.get_world_size())
    assert work.is_completed() and work.is_success() and torch.equal(work.result()[0], tensor)
    # Nobody waits for this one, and it completes.
    work = dist.barrier(group=group(), async_op=True)
    work.get_future().wait()
    assert work.is_completed()


def test_a_wait_with_a_timeout():
    tensor = torch.ones(10)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, group=group(), async_op=True)
        error = ranks.raises(RuntimeError, lambda: work.wait(datetime.timedelta(seconds=0.2)))
        assert "all_reduce" in str(error), error
    dist.barrier()  # gloo's: the others come only now
    if dist.get_rank() != 0:
        work = dist.all_reduce(tensor, group=group(), async_op=True)
    assert work.wait(datetime.timedelta(seconds=60))
    assert torch.all(tensor == dist.get_world_size())
    assert work.wait(datetime.timedelta(seconds=1))


def test_a_receive_whose_wait_has_expired():
    """It ends with an error, and the group with it, so that its tensor is not taken for received. To wait again for a
    send is allowed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ways = {
        "recv": lambda group, tensor: dist.irecv(tensor, 1, group=group),
        "from any rank": lambda group, tensor: dist.irecv(tensor, group=group),
        "batch": lambda group, tensor: dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, 1, group)])[0],
        "behind a send": lambda group, tensor: dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, torch.ones(1 << 20), 1, group), dist.P2POp(dist.irecv, tensor, 1, group)]
        )[-1],
    }
    for name, receive in ways.items():
        pair = dist.new_group(backend="shoal", timeout=ranks.TIMEOUT)
        if rank == 0:
            work = receive(pair, torch.empty(4))
            error = ranks.raises(errors.TimeoutError, lambda: work.wait(datetime.timedelta(seconds=0.2)))
            calls = ("send", "recv") if name == "behind a send" else ("recv",)  # as one Work, or a Work for each
            assert any(call in str(error) for call in calls), (name, error)
            assert "wait's timeout of 0.2 s" in str(error), (name, error)
            ranks.raises(errors.TimeoutError, lambda: work.wait(datetime.timedelta(seconds=0.2)))
            later = ranks.raises(errors.TimeoutError, lambda: dist.recv(torch.empty(4), 1, group=pair))
            assert str(later) == str(error), (name, later)
        dist.barrier(group=ranks.gloo)
        if rank == 1 and name == "behind a send":
            dist.recv(torch.empty(1 << 20), 0, group=pair)
    if size < 2:
        return
    tensor = torch.full((4,), float(rank))
    if rank == 0:
        work = dist.isend(tensor, 1, group=group())
        ranks.raises(errors.TimeoutError, lambda: work.wait(datetime.timedelta(seconds=0.2)))
    dist.barrier(group=ranks.gloo)
    if rank == 1:
        dist.recv(tensor, 0, group=group())
        assert not tensor.any()
    if rank == 0:
        work.wait()


def test_what_has_failed_keeps_nothing_of_who_waited():
    """A wrapper that waited lives no longer than its user's last name for it; the error is there for whoever waits
    late."""
    rank = dist.get_rank()
    if dist.get_world_size() < 2:
        return
    gone = []
    for kind, sends in ((errors.TimeoutError, False), (errors.MismatchError, True)):
        pair, work = dist.new_group(backend="shoal", timeout=ranks.TIMEOUT), None
        if rank == 0:
            work = dist.irecv(torch.empty(4), 1, group=pair)
        elif rank == 1 and sends:
            work = dist.isend(torch.empty(5), 0, group=pair)
        gone += [(kind, _wait_with_something_in_hand(work, kind)) for _ in range(2 if work else 0)]
        dist.barrier(group=ranks.gloo)
    gc.collect()
    assert [kind for kind, one in gone if one()] == []


def _wait_with_something_in_hand(work, kind):
    in_hand = torch.nn.Module()
    wait_s = 0.2 if kind is errors.TimeoutError else 60
    ranks.raises(kind, lambda: work.wait(datetime.timedelta(seconds=wait_s)))
    return weakref.ref(in_hand)


def test_objects():
    size, rank = dist.get_world_size(), dist.get_rank()
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "more": "x" * rank}, group=group())
    assert [item["rank"] for item in gathered] == list(range(size))
    shared = [{"from": rank}, rank]
    dist.broadcast_object_list(shared, 1, group=group())
    assert shared == [{"from": 1}, 1]
    collected = [None] * size if rank == 0 else None
    dist.gather_object(("rank", rank), collected, 0, group=group())
    assert rank != 0 or collected == [("rank", other) for other in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, [f"to {i}" for i in range(size)], 0, group=group())
    assert mine == [f"to {rank}"]


def test_coalesced():
    size = dist.get_world_size()
    tensors = [torch.ones(3), torch.full((2, 2), 2.0)]
    dist.all_reduce_coalesced(tensors, group=group())
    assert tensors[0].tolist() == [size] * 3 and torch.all(tensors[1] == 2 * size)
    c10d = torch._C._distributed_c10d
    tensors = [torch.full((i + 1,), float(dist.get_rank())) for i in range(5)]
    c10d._broadcast_coalesced(group(), tensors, 16, 1)
    assert all(torch.all(tensor == 1) for tensor in tensors)
    inputs = [torch.full((2,), float(dist.get_rank())), torch.full((3,), 5.0)]
    outputs = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, inputs, group=group())
    for other in range(size):
        assert outputs[other][0].tolist() == [other] * 2 and outputs[other][1].tolist() == [5] * 3


def test_a_batch_of_which_one_is_refused():
    import shoal

    eighths, ones = torch.ones(3).to(torch.float8_e5m2), torch.ones(1000)
    for _ in range(2):
        group()._start_coalescing(torch.device("cpu"))
        work = dist.all_reduce(ones, group=group(), async_op=True)
        ranks.raises(shoal.InvalidError, lambda: dist.all_reduce(eighths, group=group()))
        work.wait()
    # torch does not end a batch in which something was raised: what follows is none of it.
    dist.all_reduce(torch.ones(5), group=group())
    error = ranks.raises(shoal.StateError, lambda: group()._end_coalescing(torch.device("cpu")))
    assert "float8_e5m2" in str(error), error
    group()._start_coalescing(torch.device("cpu"))
    dist.all_reduce(ones, group=group(), async_op=True)
    group()._end_coalescing(torch.device("cpu")).wait()
    assert torch.all(ones == dist.get_world_size() ** 3)


def test_wrong_arguments_harm_nobody():
    import shoal

    eighths = torch.ones(3).to(torch.float8_e5m2)
    error = ranks.raises(shoal.InvalidError, lambda: dist.all_reduce(eighths, group=group()))
    assert "float8_e5m2" in str(error), error
    few = [torch.ones(1)] * (dist.get_world_size() + 1)
    ranks.raises(shoal.InvalidError, lambda: dist.all_gather(few, torch.ones(1), group=group()))
    floats = torch.ones(3)
    error = ranks.raises(
        shoal.InvalidError, lambda: dist.all_reduce(floats, ReduceOp.BAND, group=group())
    )
    sparse = torch.ones(3).to_sparse()
    # A group in C++: torch's dispatcher has nothing for it on any backend.
    ranks.raises((shoal.InvalidError, NotImplementedError), lambda: group().broadcast([sparse]))
    ranks.raises(shoal.InvalidError, lambda: group().allreduce([sparse], ReduceOp.MAX))
    dist.all_reduce(floats, group=group())
    assert floats.tolist() == [dist.get_world_size()] * 3


def expanded_calls():
    """Each collective whose outputs get different values, with such an output and with a right one."""
    rank, size, where = dist.get_rank(), dist.get_world_size(), {"group": group()}
    one, many = torch.ones(4), [torch.ones(4) for _ in range(size)]

    def outputs(given):
        return [given, *[torch.empty(4) for _ in range(size - 1)]]

    return {
        "all_gather": lambda given: dist.all_gather(outputs(given), one, **where),
        "all_gather_into_tensor": lambda given: dist.all_gather_into_tensor(
            torch.ones(1).expand(4 * size) if given.stride() == (0,) else torch.empty(4 * size), one, **where
        ),
        "reduce_scatter": lambda given: dist.reduce_scatter(given, many, **where),
        "reduce_scatter_tensor": lambda given: dist.reduce_scatter_tensor(given, torch.ones(4 * size), **where),
        "gather": lambda given: dist.gather(one, outputs(given) if rank == 1 else None, 1, **where),
        "scatter": lambda given: dist.scatter(given, many if rank == 0 else None, 0, **where),
        "all_to_all": lambda given: dist.all_to_all(outputs(given), many, **where),
    }


def test_an_expanded_output_is_refused_and_harms_nobody():
    """On one rank, which then gives a right one: the others wait for it as for any other."""
    import shoal

    for name, call in expanded_calls().items():
        if dist.get_rank() == 1:
            error = ranks.raises(shoal.InvalidError, lambda: call(torch.ones(1).expand(4)))
            assert "share memory" in str(error) and name.split("_tensor")[0] in str(error), (name, error)
        call(torch.empty(4))
    ones = torch.ones(3)
    dist.all_reduce(ones, group=group())
    assert ones.tolist() == [dist.get_world_size()] * 3


def test_an_expanded_output_of_a_receive_is_refused():
    import shoal

    if dist.get_rank() == 1:
        given = torch.ones(1).expand(4)
        ranks.raises(shoal.InvalidError, lambda: dist.recv(given, 0, group=group()))
        given = torch.empty(4)
        dist.recv(given, 0, group=group())
        assert given.tolist() == [7] * 4
    elif dist.get_rank() == 0:
        dist.send(torch.full((4,), 7.0), 1, group=group())


def test_expanded_tensors_where_the_result_is_clear():
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    for shape, expanded in (((1,), (6,)), ((2, 1), (2, 3)), ((1, 2), (5, 2)), ((1, 1), (2, 2))):
        memory = torch.full(shape, float(rank + 1))
        dist.all_reduce(memory.expand(expanded), group=group())
        assert torch.all(memory == total), memory
        memory = torch.full(shape, float(rank + 1))
        dist.broadcast(memory.expand(expanded), 1, group=group())
        assert torch.all(memory == 2), memory
        memory = torch.full(shape, float("nan") if rank == 0 else 1.0)
        dist.reduce(memory.expand(expanded), 0, group=group())
        assert torch.all(memory.isnan() if rank == 0 else memory == 1), memory


def test_an_expanded_tensor_where_the_result_is_not_clear():
    """Another rank has different values: an error here, and the group goes on."""
    import shoal

    for number in range(2):
        if dist.get_rank() == 0:
            memory = torch.ones(1)
            error = ranks.raises(
                (shoal.InvalidError, RuntimeError), lambda: dist.all_reduce(memory.expand(3), group=group())
            )
            assert "those of another rank do" in str(error), error
            assert memory.tolist() == [1]
        else:
            dist.all_reduce(torch.arange(3.0), group=group())
    ones = torch.ones(3)
    dist.all_reduce(ones, group=group())
    assert ones.tolist() == [dist.get_world_size()] * 3


def test_direct_calls_of_a_group():
    size = dist.get_world_size()
    tensor = torch.ones(2)
    group().allreduce(tensor).wait()
    group().allreduce([tensor], ReduceOp.MAX).wait()
    assert tensor.tolist() == [size] * 2
    group().broadcast(tensor, 0).wait()
    group().reduce(tensor, 0).wait()
    group().barrier().wait()
    assert group().rank() == dist.get_rank() and group().size() == size
    assert group()._get_backend(torch.device("cpu")).name() == "shoal" and dist.get_backend(group()) == "shoal"


if __name__ == "__main__":
    ranks.start("gloo")
    ranks.run("__main__")
