"""Collectives on a device that is a stand-in: what is asked of tensors in memory is asked of these
too, and that the host never waits."""

import fake_cuda
import ranks
import shoal.torch  # noqa: F401
import torch
import torch.distributed as dist
from ranks_collectives import *  # noqa: F403

# A wait for a stream knows no timeout: the host does not wait.
del test_a_wait_with_a_timeout  # noqa: F821
# Only between tensors in memory.
del test_send_and_receive, test_receive_from_any_rank  # noqa: F821

cuda = None  # the stand-in for torch.cuda


def strict(case):
    """A case in which the host goes on while streams wait."""

    def run():
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
    session = ranks.shoal_group.session
    tensor = torch.ones(5000)
    address = tensor.data_ptr()
    work = late_all_reduce(tensor)
    assert (address, session.stream.handle) in cuda.recorded
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


def test_send_is_for_memory():
    other = (dist.get_rank() + 1) % dist.get_world_size()
    error = ranks.raises(
        RuntimeError, lambda: dist.send(torch.ones(3), other, group=ranks.shoal_group)
    )
    assert "only those in memory" in str(error), error


def test_future_of_a_work():
    tensor = torch.ones(7)
    work = dist.all_reduce(tensor, group=ranks.shoal_group, async_op=True)
    (value,) = work.get_future().wait()
    assert value.data_ptr() == tensor.data_ptr() and torch.all(value == dist.get_world_size())


if __name__ == "__main__":
    cuda = fake_cuda.install()
    ranks.start("gloo")
    ranks.run("__main__")
