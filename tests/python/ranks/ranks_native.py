"""Calls that the native backend takes, and those that it leaves to the one in Python: which of the two has
made a Work, and that values, errors and the end are the same."""

import datetime
import gc

import ranks
import torch
import torch.distributed as dist
from shoal import errors
from shoal.torch import _native
from torch._C import _distributed_c10d as c10d


def start_all_reduce(tensor, **options):
    return dist.all_reduce(tensor, group=ranks.shoal_group, async_op=True, **options)


def total():
    return dist.get_world_size() * (dist.get_world_size() + 1) / 2


def test_a_tensor_in_memory_is_native():
    tensor = torch.full((1000,), dist.get_rank() + 1.0)
    work = start_all_reduce(tensor)
    assert _native.is_work(work), type(work)
    work.wait()
    assert torch.all(tensor == total()) and work.is_completed() and work.is_success()
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
        assert "all_reduce (number 1 of group" in str(error) and "timeout of 1 s" in str(error), error
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
