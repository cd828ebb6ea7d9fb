"""Collectives on a device that is a stand-in: what is asked of tensors in memory is asked of these
too, and that the host never waits."""

import os
import time
import unittest

import fake_cuda
import ranks
import shoal.torch  # noqa: F401
import torch
import torch.distributed as dist
from ranks_collectives import *  # noqa: F403
from shoal import library

cuda = None  # the stand-in for torch.cuda


def where_the_host_waits(case):
    """Return a case of a timeout, or one that is skipped: a wait for a stream knows no timeout."""

    def skipped():
        raise unittest.SkipTest("the host goes on where streams wait: there is no timeout")

    return case if os.environ.get("SHOAL_STREAM_WAITS") != "1" else skipped


for name in (
    "test_a_wait_with_a_timeout",
    "test_a_receive_whose_wait_has_expired",
    "test_what_has_failed_keeps_nothing_of_who_waited",
):
    globals()[name] = where_the_host_waits(globals()[name])


def strict(case):
    """A case in which the host goes on while streams wait, where they may."""

    def run():
        if os.environ.get("SHOAL_STREAM_WAITS") != "1":
            return
        cuda.strict = True
        try:
            case()
        finally:
            cuda.strict = False

    return run


def late_all_reduce(tensor, **options):
    """An all-reduce whose stream has not come to it, and is let go later."""
    cuda.now.hold()
    return dist.all_reduce(tensor, group=ranks.shoal_group, async_op=True, **options)


@strict
def test_host_never_waits():
    size = dist.get_world_size()
    for count in (1, 1000, 300000):
        tensor = torch.full((count,), float(dist.get_rank() + 1))
        before = tensor.clone()
        work = late_all_reduce(tensor)
        work.wait()
        assert work.is_completed()  # as those of nccl: on the stream
        assert torch.equal(tensor, before), "the stream has not come to it"
        cuda.now.let_go()
        cuda.now.finish()
        assert torch.all(tensor == size * (size + 1) / 2), tensor


@strict
def test_memory_is_kept_and_recorded():
    tensor = torch.ones(5000)
    address = tensor.data_ptr()
    work = late_all_reduce(tensor)
    assert [stream for place, stream in cuda.recorded if place == address and stream != cuda.now.handle]
    work.wait()
    del tensor, work
    other = torch.zeros(5000)  # would get the same memory, were it free
    assert other.data_ptr() != address
    cuda.now.let_go()
    cuda.now.finish()
    assert torch.all(other == 0)


@strict
def test_one_after_the_other_on_a_stream():
    size = dist.get_world_size()
    tensor = torch.ones(20000)
    cuda.now.hold()
    for _ in range(5):
        dist.all_reduce(tensor, group=ranks.shoal_group)
    dist.broadcast(tensor, 0, group=ranks.shoal_group)
    assert torch.all(tensor == 1)
    cuda.now.let_go()
    cuda.now.finish()
    assert torch.all(tensor == size**5), tensor


@strict
def test_another_stream_does_not_wait():
    """The current stream waits for a work when it is told to, not before."""
    first, second = cuda.now, cuda.make(0)
    try:
        tensor, other = torch.ones(3000), torch.ones(3000)
        held = late_all_reduce(tensor)
        cuda.now = second
        dist.all_reduce(other, group=ranks.shoal_group)  # waits on the second stream
    finally:
        cuda.now = first
        first.let_go()
    held.wait()
    second.finish()
    first.finish()
    assert torch.all(tensor == dist.get_world_size()) and torch.all(other == dist.get_world_size())


def neighbours():
    size, rank = dist.get_world_size(), dist.get_rank()
    return (rank + 1) % size, (rank - 1) % size


@strict
def test_host_does_not_wait_for_a_send_or_receive():
    right, left = neighbours()
    for count in (1, 300000):
        sent, got = torch.full((count,), float(dist.get_rank())), torch.full((count,), -1.0)
        cuda.now.hold()
        works = [
            dist.isend(sent, right, group=ranks.shoal_group),
            dist.irecv(got, left, group=ranks.shoal_group),
        ]
        for work in works:
            work.wait()
            assert work.is_completed()
        assert torch.all(got == -1), "the stream has not come to it"
        for tensor in (sent, got):
            assert [place for place, _ in cuda.recorded if place == tensor.data_ptr()]
        cuda.now.let_go()
        cuda.now.finish()
        assert torch.all(got == left), got


@strict
def test_batch_of_sends_and_receives():
    """Several as one Work, as batch_isend_irecv makes on a GPU."""
    right, left = neighbours()
    group, got = ranks.shoal_group, torch.full((20000,), -1.0)
    cuda.now.hold()
    group._start_coalescing(torch.device("cpu"))
    dist.isend(torch.full((20000,), float(dist.get_rank())), right, group=group)
    dist.irecv(got, left, group=group)
    work = group._end_coalescing(torch.device("cpu"))
    work.wait()
    assert torch.all(got == -1), "the stream has not come to it"
    cuda.now.let_go()
    cuda.now.finish()
    assert torch.all(got == left), got


@strict
def test_a_late_send_holds_up_nothing_else():
    """A receive whose sender is late, and a send whose receiver is: what comes behind them on the
    current stream does not wait unless it is told to."""
    late, got, sum_of_all = torch.full((5000,), 7.0), torch.zeros(5000), torch.ones(3000)
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    work = None
    if rank == 0:
        work = dist.irecv(got, last, group=ranks.shoal_group, tag=1)
    if rank == 1:
        work = dist.isend(late, last, group=ranks.shoal_group, tag=1)
    dist.all_reduce(sum_of_all, group=ranks.shoal_group)
    cuda.now.finish()
    assert torch.all(sum_of_all == dist.get_world_size())
    dist.barrier()  # gloo's
    if rank == last:
        dist.send(late, 0, group=ranks.shoal_group, tag=1)
        dist.recv(got, 1, group=ranks.shoal_group, tag=1)
    if work:
        work.wait()
    cuda.now.finish()
    assert rank not in (0, last) or torch.all(got == 7), got


def test_source_is_waited_for():
    """dist.recv from any rank, and the rank asked for before the data is waited for."""
    if dist.get_rank() == 0:
        got = torch.zeros(3000)
        work = dist.irecv(got, group=ranks.shoal_group, tag=3)
        assert work._source_rank() == 1
        work.wait()
        assert torch.all(got == 4), got
    elif dist.get_rank() == 1:
        dist.send(torch.full((3000,), 4.0), 0, group=ranks.shoal_group, tag=3)


def test_streams_that_cannot_wait():
    """wait() waits on the host then. A future is for tensors of the device all the same, and what
    follows (copies into tensors that are laid out otherwise) comes onto the operation's stream."""
    made, used, joined, size = [], [], [], dist.get_world_size()

    def refuse(request, stream):
        raise shoal.UnsupportedError("streams of this device cannot wait")

    kept = library.Request.wait_stream, cuda.future, cuda.using, cuda.join, cuda.complete
    library.Request.wait_stream = refuse
    cuda.future = lambda device: made.append(device) or kept[1](device)
    cuda.using = lambda stream: used.append(stream) or kept[2](stream)
    cuda.complete = lambda future, stream, value: used.append(stream) or kept[4](future, stream, value)
    cuda.join = lambda device, event: joined.append(event) or kept[3](device, event)
    try:
        for number, wait in enumerate((lambda work: work.wait(), lambda work: work.get_future().wait())):
            tensor = torch.ones(40, 30).t()
            wait(dist.all_reduce(tensor, group=ranks.shoal_group, async_op=True))
            assert torch.all(tensor == size), tensor
            assert made == [0] * (number + 1)
            assert len(used) == 2 * (number + 1)  # the copy, the end of the future
        assert all(stream == used[0] for stream in joined), (joined, used)
    finally:
        library.Request.wait_stream = kept[0]
        for name in ("future", "using", "join", "complete"):
            del cuda.__dict__[name]


def test_futures_are_completed_with_the_devices_tensors():
    """A wait in C++ is for the devices that the value's tensors are on, and for no other."""
    size, whole = dist.get_world_size(), torch.zeros(7 * dist.get_world_size())
    mine, parts = torch.ones(7), [torch.zeros(7) for _ in range(size)]
    calls = (
        (mine, dist.all_reduce, (mine,)),
        (mine, dist.broadcast, (mine, 0)),
        (parts[0], dist.all_gather, (parts, mine)),
        (whole, dist.all_gather_into_tensor, (whole, mine)),
    )
    for result, call, arguments in calls:
        work = call(*arguments, group=ranks.shoal_group, async_op=True)
        work.wait()
        work.get_future().wait()
        assert result.data_ptr() in cuda.completed[-1][0], call


@strict
def test_what_streams_wait_for_is_waited_for_at_the_end():
    """The end waits for operations that wait() was called on: others wait for this rank's part. It does not wait for
    the rest."""
    completions, size = ranks.member(ranks.shoal_group).session.completions, dist.get_world_size()
    tensor = torch.ones(5000)
    late_all_reduce(tensor).wait()
    begin = time.monotonic()
    completions.end_streamed(0.2)
    assert time.monotonic() - begin >= 0.2, "the stream has not come to it"
    cuda.now.let_go()
    completions.end_streamed(None)
    assert not [operation for operation in completions.pending.values() if operation.requests]
    cuda.now.finish()
    assert torch.all(tensor == size), tensor


def test_future_of_a_work():
    tensor = torch.ones(7)
    work = dist.all_reduce(tensor, group=ranks.shoal_group, async_op=True)
    (value,) = work.get_future().wait()
    assert value.data_ptr() == tensor.data_ptr() and torch.all(value == dist.get_world_size())


if __name__ == "__main__":
    cuda = fake_cuda.install()
    ranks.start("gloo")
    ranks.run("__main__")
