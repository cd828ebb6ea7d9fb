"""Calls that torch makes of a Backend in C++, and of no process group in Python: on two ranks."""

import datetime
import os
import threading
import unittest

import ranks
import torch
import torch.distributed as dist
from shoal import errors
from torch._C import _distributed_c10d as c10d

CPU = torch.device("cpu")
SHORT = datetime.timedelta(seconds=1)


def world():
    return dist.GroupMember.WORLD


def backend(group=None):
    return (group or world())._get_backend(CPU)


def needs(thing, name):
    if not hasattr(thing, name):
        raise unittest.SkipTest(f"torch {torch.__version__} has no {name}")


def check_sum(group, size):
    tensor = torch.ones(3)
    group.allreduce(tensor).wait()
    assert tensor.tolist() == [size] * 3


def test_the_group_is_torchs():
    assert type(world()) is dist.ProcessGroup and backend().name() == "shoal"
    assert backend().supports_splitting and world()._device_types == [CPU]
    assert ranks.member(world()) is backend().member
    assert ranks.member(ranks.gloo) is None and ranks.member(None) is None


def test_short_forms():
    """Tensors without a list, operations without options: torch's own overloads."""
    tensor = torch.full((2,), dist.get_rank() + 1.0)
    world().allreduce(tensor, op=dist.ReduceOp.MAX).wait()
    assert tensor.tolist() == [2, 2]
    world().broadcast(torch.ones(2), root=1).wait()
    output = [torch.zeros(2), torch.zeros(2)]
    world().allgather(output, torch.full((2,), float(dist.get_rank()))).wait()
    assert [part[0].item() for part in output] == [0, 1]


def test_operators():
    """torch.compile and inductor call these operators, by the group's name."""
    size, rank = dist.get_world_size(), dist.get_rank()
    functional = torch.ops._c10d_functional
    out = torch.zeros(2 * size)
    if hasattr(functional, "all_gather_into_tensor_out"):
        part = torch.full((2,), float(rank))
        out = functional.all_gather_into_tensor_out(part, size, world().group_name, out=out)
        assert functional.wait_tensor(out).tolist() == [0, 0, 1, 1]
    total = functional.all_reduce(torch.ones(4), "sum", world().group_name)
    assert functional.wait_tensor(total).tolist() == [size] * 4
    if hasattr(functional, "batch_p2p_ops"):
        got = torch.zeros(2)
        both = [torch.full((2,), float(rank)), got]
        came = functional.batch_p2p_ops(["isend", "irecv"], [1 - rank] * 2, [0, 0], both, world().group_name)
        assert functional.wait_tensor(came[1]).tolist() == [1 - rank] * 2
    if rank == 0:
        torch.ops.c10d.send([torch.full((3,), 7.0)], world().boxed(), 1, 0)
    else:
        got = torch.zeros(3)
        world().recv([got], 0, 0).wait()
        assert got.tolist() == [7] * 3


def test_modes_and_the_profiler_see_collectives():
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.profiler import ProfilerActivity, profile

    with CommDebugMode() as seen:
        dist.all_reduce(torch.ones(3))
    assert seen.get_total_counts() == 1, seen.get_comm_counts()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        dist.broadcast(torch.ones(3), 0)
    assert any("c10d::broadcast_" in event.key for event in profiled.key_averages())


def test_timeouts():
    """set_timeout of the group, of the backend and of torch.distributed: of calls that say none, on both ways."""
    group = dist.new_group(timeout=ranks.TIMEOUT)
    ways = (lambda time: group.set_timeout(time), lambda time: dist.distributed_c10d._set_pg_timeout(time, group))
    for seconds, way in enumerate(ways, 70):
        if way is ways[0] and not hasattr(group, "set_timeout"):
            continue  # torch before 2.7
        way(datetime.timedelta(seconds=seconds))
        assert backend(group).options._timeout == datetime.timedelta(seconds=seconds)
        assert ranks.member(group).timeout == datetime.timedelta(seconds=seconds)
    dist.distributed_c10d._set_pg_timeout(SHORT, group)
    if dist.get_rank() == 0:
        error = ranks.raises(errors.TimeoutError, lambda: dist.all_reduce(torch.ones(3), group=group))
        assert "timeout of 1 s" in str(error), error
    dist.barrier(group=ranks.gloo)


def test_what_has_failed():
    group = dist.new_group(timeout=ranks.TIMEOUT)
    needs(backend(group), "get_error")
    assert backend(group).get_error() == c10d.ErrorType.SUCCESS
    ranks.raises(errors.MismatchError, lambda: dist.all_reduce(torch.ones(3 + dist.get_rank()), group=group))
    assert backend(group).get_error() == c10d.ErrorType.REMOTE_ERROR
    group = dist.new_group(timeout=ranks.TIMEOUT)
    dist.distributed_c10d._set_pg_timeout(SHORT, group)  # not before: to open it may take longer
    if dist.get_rank() == 0:
        ranks.raises(errors.TimeoutError, lambda: dist.all_reduce(torch.ones(3), group=group))
        assert backend(group).get_error() == c10d.ErrorType.TIMEOUT
    dist.barrier(group=ranks.gloo)


def test_abort_frees_a_waiter():
    """abort() frees who waits for a call in C++, and for one in Python; later calls raise."""
    for tensor in (torch.ones(3), torch.ones(4, 4).t()[::2]):
        group = dist.new_group(timeout=ranks.TIMEOUT)
        needs(backend(group), "abort")
        if dist.get_rank() == 0:
            work, said = dist.all_reduce(tensor, group=group, async_op=True), []
            waiter = threading.Thread(target=lambda: said.append(ranks.raises(errors.StateError, work.wait)))
            waiter.start()
            backend(group).abort()
            waiter.join(ranks.TIMEOUT.total_seconds() / 2)
            assert "was aborted" in str(said[0]), said
            ranks.raises(errors.StateError, lambda: dist.all_reduce(torch.ones(1), group=group))
            backend(group).abort()  # nothing more
        dist.barrier(group=ranks.gloo)


def test_parts_of_a_group():
    needs(world(), "split_group")
    rank = dist.get_rank()
    both = world().split_group([1, 0], group_name="both")
    assert (both.rank(), both.size()) == (rank, 2) and ranks.member(both).session is ranks.member(world()).session
    check_sum(both, 2)
    other = ranks.TIMEOUT * 2
    alone = world().split_group([rank], timeout=other, group_name=f"alone-{rank}")
    check_sum(alone, 1)
    assert backend(alone).options._timeout == other
    again = both.split_group([both.rank()], group_name=f"again-{rank}")  # its ranks are the group's, not the job's
    check_sum(again, 1)


def test_what_cannot_be_split():
    member = ranks.member(world())
    for wrong in ([0, 0, 1], [0, 1, 2], [-1, 0, 1]):
        error = ranks.raises(errors.InvalidError, lambda wrong=wrong: member.split(None, wrong))
        assert "of a group of 2" in str(error), error


def test_a_group_without_some():
    """shrink: all ranks but those; the new group outlives the old one, as torch's shrink_group has it."""
    group = dist.new_group(timeout=ranks.TIMEOUT)
    needs(backend(group), "shrink")
    rank = dist.get_rank()
    if rank == 1:
        alone = ranks.member(group).shrink([0])
        assert alone.name() == "shoal" and (alone.rank(), alone.size()) == (0, 1)
        dist.destroy_process_group(group)
        assert alone.member.failure() is None
    dist.barrier(group=ranks.gloo)


def test_a_group_that_was_destroyed():
    """Whoever keeps it is told; the groups beside it go on."""
    group = dist.new_group(timeout=ranks.TIMEOUT)
    dist.destroy_process_group(group)
    member = ranks.member(group)
    if hasattr(c10d.Backend, "shutdown"):  # torch 2.6 tells nobody
        error = ranks.raises(errors.StateError, lambda: group.allreduce([torch.ones(1)]).wait())
        assert "was destroyed" in str(error), error
    assert member.session.job is not None
    check_sum(world(), 2)


def test_groups_that_merge():
    """Two jobs of one rank each become one of two."""
    needs(world(), "merge_remote_group")
    path = os.path.join(os.environ["TEST_FOLDER"], "merge")
    store = dist.FileStore(path, 2)
    merged = world().merge_remote_group(store, 2, ranks.TIMEOUT, "merged")
    assert merged.size() == 2 and ranks.member(merged).session is not ranks.member(world()).session
    check_sum(merged, 2)


def test_a_receive_from_any_rank():
    from shoal.torch import _native

    if dist.get_rank() == 0:
        dist.send(torch.arange(3.0), 1, tag=5)
    else:
        got = torch.zeros(3)
        work = world().recv_anysource([got], 5)
        assert _native.is_work(work) and work._source_rank() == 0  # which waits for it
        assert got.tolist() == [0, 1, 2]


def test_errors_keep_their_class_in_backward():
    """They go through torch's engine, whose threads have not Python's lock."""

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(context, tensor):
            return tensor.clone()

        @staticmethod
        def backward(context, gradient):
            dist.all_reduce(torch.ones(3 + dist.get_rank()), group=group)
            return gradient

    group = dist.new_group(timeout=ranks.TIMEOUT)
    tensor = torch.ones(2, requires_grad=True)
    ranks.raises(errors.MismatchError, lambda: Sum.apply(tensor).sum().backward())
    group = dist.new_group(timeout=ranks.TIMEOUT)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=group)
    dist.all_reduce(torch.ones(2), group=group)
    if dist.get_rank() == 0:
        ranks.raises(errors.MismatchError, lambda: dist.all_reduce(torch.ones(3), group=group))
        error = ranks.raises(RuntimeError, lambda: model(torch.ones(1, 4)).sum().backward())
        assert "ranks disagree" in str(error), error
    else:
        ranks.raises(errors.MismatchError, lambda: dist.all_reduce(torch.ones(4), group=group))


if __name__ == "__main__":
    ranks.start("shoal")
    ranks.run("__main__")
