"""Groups of some ranks: translation of ranks, failures that stay in a group, barriers that watch; and
works, of which threads wait and nobody."""

import contextlib
import datetime
import gc
import os
import threading
import unittest

import ranks
import shoal.torch
import torch
import torch.distributed as dist
from shoal import errors, library
from shoal.torch import _native

SHORT = datetime.timedelta(seconds=1)


def new_group(members, timeout=ranks.TIMEOUT):
    return dist.new_group(members, backend="shoal", timeout=timeout)


def test_groups_of_some_ranks():
    rank, size = dist.get_rank(), dist.get_world_size()
    for members in ([0, 2], [1, 2, 3], [3], list(range(size)), [0, 2]):
        group = new_group(members)
        if rank not in members:
            continue
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [sum(members)] * 3
        tensor = torch.full((3,), float(rank))
        dist.broadcast(tensor, members[-1], group=group)
        assert tensor.tolist() == [members[-1]] * 3
        gathered = [torch.empty(1) for _ in members]
        dist.all_gather(gathered, torch.tensor([float(rank)]), group=group)
        assert [item.item() for item in gathered] == members
        if len(members) < size:
            dist.destroy_process_group(group)


def test_jobs_of_the_same_ranks_share_their_daemons():
    """A job that is made beside another one, as new_group("gloo") beside NCCL makes one, starts no daemon; it goes on
    when the one that has started them is gone."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("shared", dist.distributed_c10d._get_default_store())
    first = shoal.torch.make_group(dist.PrefixStore("first", store), rank, size, ranks.TIMEOUT)
    paths = [ranks.member(first).session.meeting.socket_path]
    second = shoal.torch.make_group(dist.PrefixStore("second", store), rank, size, ranks.TIMEOUT)
    paths.append(ranks.member(second).session.meeting.socket_path)
    ranks.member(first).shutdown()
    del first
    gc.collect()
    made = [second]
    if rank < 2:  # of a part of them, in another order
        made.append(shoal.torch.make_group(dist.PrefixStore("pair", store), 1 - rank, 2, ranks.TIMEOUT))
        paths.append(ranks.member(made[1]).session.meeting.socket_path)
    assert len(set(paths)) == 1, paths
    for group in made:
        tensor = torch.ones(3)
        group.allreduce([tensor]).wait()
        assert tensor.tolist() == [group.size()] * 3, tensor
    dist.barrier(group=ranks.gloo)
    for group in made:
        ranks.member(group).shutdown()


def test_one_rank_writes_checkpoints():
    """One of all, one of each group, and none that is not in it."""
    rank = dist.get_rank()
    pairs = [new_group([0, 1]), new_group([3, 2])]
    told = torch.zeros(3, dtype=torch.int64)
    for place, group in enumerate([None, *pairs]):
        told[place] = shoal.torch.is_checkpoint_rank(group)
    assert told.tolist() == [rank == 0, rank == 0, rank == dist.get_global_rank(pairs[1], 0) if rank > 1 else 0]
    dist.all_reduce(told)
    assert told.tolist() == [1, 1, 1]
    child = os.fork()
    if child == 0:  # no rank, though it has the parent's memory
        code = 1
        try:
            shoal.torch.is_checkpoint_rank()
        except errors.StateError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_two_groups_at_once():
    rank = dist.get_rank()
    pairs = [new_group([0, 1]), new_group([2, 3])]
    crosses = [new_group([0, 2]), new_group([1, 3])]
    for _ in range(20):
        first, second = torch.ones(1000), torch.ones(1000)
        works = [
            dist.all_reduce(first, group=pairs[rank // 2], async_op=True),
            dist.all_reduce(second, group=crosses[rank % 2], async_op=True),
        ]
        for work in works if rank % 2 else reversed(works):
            work.wait()
        assert torch.all(first == 2) and torch.all(second == 2)


def test_many_groups_are_given_back():
    for _ in range(300):  # more than a job may have open
        group = new_group([0, 1])
        if dist.get_rank() < 2:
            dist.barrier(group=group)
            dist.destroy_process_group(group)
        del group


def test_works_that_nobody_keeps():
    size = dist.get_world_size()
    tensors = [torch.full((50_000,), float(i)).view(2, -1).t() for i in range(8)]
    futures = [dist.all_reduce(t, group=ranks.shoal_group, async_op=True).get_future() for t in tensors]
    gc.collect()
    torch.futures.wait_all(futures)
    for i, tensor in enumerate(tensors):
        assert torch.all(tensor == i * size)


@contextlib.contextmanager
def seen_in_library(work):
    """(a function that waits for this work, an event that is set when it does so in the library). With the native
    backend nothing is seen behind the call, which makes no other call."""
    inside = threading.Event()
    if _native.is_work(work):
        yield (lambda: (inside.set(), work.wait())), inside
        return
    c = library.load().c
    wait = c.shoal_wait

    def wait_and_say(*arguments):
        inside.set()
        return wait(*arguments)

    c.shoal_wait = wait_and_say
    try:
        yield work.wait, inside
    finally:
        c.shoal_wait = wait


def test_a_wait_does_not_hold_up_other_threads():
    """While a thread of rank 0 waits in the library for the others, another thread fetches them."""
    tensor = torch.ones(10)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, group=ranks.shoal_group, async_op=True)
        with seen_in_library(work) as (wait, inside):
            thread = threading.Thread(target=wait)
            thread.start()
            assert inside.wait(100)
            dist.barrier(ranks.gloo)  # the others come only now
            thread.join()
    else:
        dist.barrier(ranks.gloo)
        dist.all_reduce(tensor, group=ranks.shoal_group)
    assert torch.all(tensor == dist.get_world_size())


def test_a_callback_that_waits_for_another_collective():
    size = dist.get_world_size()
    first, second = torch.ones(3), torch.ones(4)

    def go_on(_):
        return dist.all_reduce(second, group=ranks.shoal_group, async_op=True).get_future().wait()

    if dist.get_rank() > 0:
        dist.barrier(ranks.gloo)  # rank 0 has hung it on what is not complete
    future = dist.all_reduce(first, group=ranks.shoal_group, async_op=True).get_future().then(go_on)
    if dist.get_rank() == 0:
        dist.barrier(ranks.gloo)
    future.wait()
    assert torch.all(first == size) and torch.all(second == size)


def test_sends_of_objects():
    size, rank = dist.get_world_size(), dist.get_rank()
    right, left = (rank + 1) % size, (rank - 1) % size
    received = [None, None]
    thread = threading.Thread(target=lambda: dist.send_object_list([rank, "x" * rank], right))
    thread.start()
    dist.recv_object_list(received, left)
    thread.join()
    assert received == [left, "x" * left]


def test_ranks_that_disagree():
    import shoal

    group = new_group([0, 1, 2])
    if dist.get_rank() < 3:
        count = 7 if dist.get_rank() == 1 else 8
        work = dist.all_reduce(torch.ones(count), group=group, async_op=True)
        error = ranks.raises(shoal.MismatchError, work.wait)
        for part in ("ranks disagree", "rank 1 asked for all_reduce sum float count 7"):
            assert part in str(error), error
        assert "ranks disagree" in str(ranks.raises(RuntimeError, work.get_future().wait))
        again = ranks.raises(shoal.MismatchError, lambda: dist.barrier(group=group))
        assert str(again) == str(error)
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=ranks.shoal_group)  # another group goes on
    assert tensor.item() == dist.get_world_size()


def test_a_batch_that_fails_before_it_is_waited_for():
    import shoal

    group = new_group([0, 1, 2])
    if dist.get_rank() < 3:
        group._start_coalescing(torch.device("cpu"))
        count = 7 if dist.get_rank() == 1 else 8
        dist.all_reduce(torch.ones(count), group=group, async_op=True)
        work = group._end_coalescing(torch.device("cpu"))
        ranks.raises(RuntimeError, work.get_future().wait)
        for _ in range(2):
            ranks.raises(shoal.MismatchError, work.wait)


def test_a_send_and_a_receive_that_do_not_fit():
    """Both calls raise, with what each gave; the group and what else is under way go on."""
    import shoal

    group = new_group([0, 1, 2, 3])
    sent, wanted = torch.arange(7, dtype=torch.float32), torch.full((8,), -1.0)
    cases = [
        (wanted[:6], "0"),
        (wanted, "0"),
        (torch.full((7,), -1, dtype=torch.int64), "0"),
        (torch.full((500000,), -1.0), "0"),
        (wanted, "any"),
    ]
    early = torch.zeros(2)
    work = dist.irecv(early, 0, group=group, tag=99) if dist.get_rank() == 1 else None
    for buffer, source in cases:
        if dist.get_rank() == 0:
            error = ranks.raises(shoal.MismatchError, lambda: dist.send(sent, 1, group=group))
        if dist.get_rank() == 1:
            before = buffer.clone()
            from_rank = None if source == "any" else 0
            error = ranks.raises(shoal.MismatchError, lambda b=buffer, f=from_rank: dist.recv(b, f, group=group))
            assert torch.equal(buffer, before)
        if dist.get_rank() < 2:
            assert "rank 0 of the group sends 7 float, rank 1 receives " in str(error), error
        total = torch.ones(3)
        dist.all_reduce(total, group=group)
        assert total.tolist() == [4.0] * 3
    if dist.get_rank() == 0:
        dist.send(torch.tensor([5.0, 6.0]), 1, group=group, tag=99)
    if dist.get_rank() == 1:
        work.wait()
        assert early.tolist() == [5.0, 6.0]
    dist.barrier(group=group)


def test_a_timeout_of_a_group():
    import shoal

    group = new_group([0, 1, 2, 3], SHORT)
    if dist.get_rank() == 0:
        for call in (
            lambda: dist.all_reduce(torch.ones(2), group=group),
            lambda: dist.all_reduce(torch.ones(2), group=group),
        ):
            error = ranks.raises(shoal.TimeoutError, call)
            assert isinstance(error, TimeoutError)
            for part in ("all_reduce (torch", "timeout of 1 s", "0, 1, 2, 3", "collective 0 of group "):
                assert part in str(error), error
    dist.barrier(ranks.gloo)


def test_a_timeout_of_a_sparse_sum():
    """A sparse sum waits for the other ranks when it is called."""
    import shoal

    group = new_group([0, 1, 2, 3], SHORT)
    if dist.get_rank() == 0:
        sparse = torch.ones(3).to_sparse()
        error = ranks.raises(shoal.TimeoutError, lambda: dist.all_reduce(sparse, group=group))
        assert "all_reduce (torch" in str(error), error
        again = ranks.raises(shoal.TimeoutError, lambda: dist.barrier(group=group))
        assert str(again) == str(error)
    dist.barrier(ranks.gloo)


def test_a_sparse_sum_that_is_interrupted():
    """By Ctrl-C: the library may still write what it was waited for."""
    import shoal

    group = new_group([0, 1, 2, 3], SHORT)
    if dist.get_rank() == 0:
        wait = library.Request.wait

        def interrupt(request, timeout_ms):
            raise KeyboardInterrupt

        library.Request.wait = interrupt
        try:
            sparse = torch.ones(3).to_sparse()
            ranks.raises(KeyboardInterrupt, lambda: dist.all_reduce(sparse, group=group))
        finally:
            library.Request.wait = wait
        kept = [o.kept for o in ranks.member(group).session.completions.pending.values()]
        assert any(torch.equal(t, torch.tensor([3, 0, 0, 0])) for memory in kept for t in memory), kept
        ranks.raises(shoal.StateError, lambda: dist.barrier(group=group))
    dist.barrier(ranks.gloo)


def test_ranks_that_disagree_about_a_sparse_sum():
    import shoal

    group = new_group([0, 1, 2, 3])
    rank = dist.get_rank()
    tensor = torch.ones(3) if rank == 1 else torch.ones(3).to_sparse()
    error = ranks.raises(shoal.MismatchError, lambda: dist.all_reduce(tensor, group=group))
    again = ranks.raises(shoal.MismatchError, lambda: dist.barrier(group=group))
    assert str(again) == str(error)
    dist.barrier(ranks.gloo)


def test_a_timeout_of_a_month():
    """More milliseconds than the library counts."""
    group = new_group([0, 1, 2, 3], datetime.timedelta(days=30))
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [4, 4]


def test_a_timeout_that_nobody_waits_for():
    group = new_group([0, 1, 2, 3], SHORT)
    if dist.get_rank() == 0:
        future = dist.all_reduce(torch.ones(2), group=group, async_op=True).get_future()
        error = ranks.raises(RuntimeError, future.wait)
        assert "timeout of 1 s" in str(error), error
    dist.barrier(ranks.gloo)


def test_monitored_barrier():
    dist.monitored_barrier(group=ranks.shoal_group)
    dist.monitored_barrier(group=ranks.gloo)
    rank = dist.get_rank()
    if rank == 0:
        group = ranks.shoal_group
        at_once = ranks.raises(RuntimeError, lambda: group.monitored_barrier(0 * SHORT))
        assert "Rank 0 timed out in monitoredBarrier" in str(at_once), at_once
        ranks.member(group)._barriers -= 1
        error = ranks.raises(
            RuntimeError, lambda: dist.monitored_barrier(ranks.shoal_group, SHORT, True)
        )
        assert "Ranks 1, 3 failed to pass monitoredBarrier in 1000 ms" in str(error), error
    elif rank == 2:
        error = ranks.raises(RuntimeError, lambda: dist.monitored_barrier(ranks.shoal_group, SHORT))
        assert "reached monitoredBarrier" in str(error), error
    else:
        ranks.member(ranks.shoal_group)._barriers += 1  # as if it had been called and got stuck before
    dist.barrier(ranks.gloo)
    dist.monitored_barrier(group=ranks.shoal_group)


def test_data_parallel_over_a_group():
    """torch's DDP: its C++ calls broadcast, allgather and allreduce of the group."""
    rank = dist.get_rank()
    torch.manual_seed(rank)  # rank 0's parameters are the ones that count
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=ranks.shoal_group)
    inputs = torch.full((4, 5), float(rank)) + torch.arange(20.0).reshape(4, 5) / 7
    parallel(inputs).sum().backward()
    for parameter in model.parameters():
        for tensor in (parameter.detach(), parameter.grad):
            others = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
            dist.all_gather(others, tensor, group=ranks.gloo)
            assert all(torch.equal(other, tensor) for other in others)


def test_functional_collectives():
    """DTensor and torch.compile call these: from C++, by the group's name."""
    from torch.distributed import _functional_collectives as functional

    rank, size = dist.get_rank(), dist.get_world_size()
    for group in (ranks.shoal_group, new_group(list(range(size)))):
        ones = torch.ones(size, 2)
        assert torch.all(functional.all_reduce(ones, "sum", group) == size)
        assert torch.all(functional.all_reduce(ones, "avg", group) == 1)
        gathered = functional.all_gather_tensor(torch.full((1, 2), float(rank)), 0, group)
        assert torch.equal(gathered[:, 0], torch.arange(size).float())
        part = functional.reduce_scatter_tensor(ones * (rank + 1), "sum", 0, group)
        assert part.shape == (1, 2) and torch.all(part == size * (size + 1) / 2)
        swapped = functional.all_to_all_single(ones * rank, None, None, group)
        assert torch.equal(swapped[:, 0], torch.arange(size).float())
        assert torch.all(functional.broadcast(ones * rank, 2, group) == 2)


def test_tensor_parallel_modules():
    """parallelize_module over a device mesh trains as the whole module does."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(5)
    whole = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    split = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    split.load_state_dict(whole.state_dict())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(split, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inputs = torch.arange(12.0).reshape(3, 4)
    for module in (whole, split):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            module(inputs).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(split(inputs), whole(inputs))


def test_a_group_that_is_made_beside_torchs():
    """torchft asks for such a group: from a store, rank and size alone."""
    import shoal

    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.FileStore(f"{os.environ['TEST_FOLDER']}/made", size)
    for options in (None, shoal.torch.Options(reconfigurable=True)):
        group = shoal.torch.make_group(store, rank, size, ranks.TIMEOUT, options)  # the same store twice
        assert (group.rank(), group.size()) == (rank, size)
        tensor = torch.ones(3)
        group.allreduce([tensor]).wait()
        assert tensor.tolist() == [size] * 3
        assert ranks.member(group).session is not ranks.member(ranks.shoal_group).session
    ranks.raises(shoal.InvalidError, lambda: shoal.torch.make_group(store, size, size))


def test_a_group_of_torchs_second_interface():
    try:
        from torch.distributed import _dist2
    except ImportError:
        raise unittest.SkipTest("this torch has no torch.distributed._dist2") from None
    size = dist.get_world_size()
    store = dist.FileStore(f"{os.environ['TEST_FOLDER']}/dist2", size)
    rendezvous = _dist2.rendezvous
    _dist2.rendezvous = lambda url: iter([(store, dist.get_rank(), size)])
    try:
        for options in ({}, {"reconfigurable": True}):
            group = _dist2.new_group("shoal", ranks.TIMEOUT, "cpu", **options)
            tensor = torch.ones(3)
            group.allreduce([tensor]).wait()
            assert tensor.tolist() == [size] * 3
        ranks.raises(TypeError, lambda: _dist2.new_group("shoal", ranks.TIMEOUT, "cpu", unknown=1))
    finally:
        _dist2.rendezvous = rendezvous


def test_errors_count_collectives_alike():
    """From 0, as the library does, whether it is late or differs, and where it is made."""
    for count in (3, 1 << 18):  # in shared memory at once, and in pieces

        def group_after_three():
            group = dist.new_group(backend="shoal", timeout=ranks.TIMEOUT)
            for _ in range(3):
                dist.all_reduce(torch.ones(count), group=group)
            return group

        group, rank = group_after_three(), dist.get_rank()
        texts = [ranks.raises(errors.MismatchError, lambda: dist.all_reduce(torch.ones(count + rank), group=group))]
        group = group_after_three()
        if rank != 0:
            options = dist.AllreduceOptions()
            options.timeout = datetime.timedelta(seconds=1)
            work = group.allreduce([torch.ones(count)], options)
            texts.append(ranks.raises(errors.TimeoutError, work.wait))
        dist.barrier(group=ranks.gloo)
        for text in texts:
            assert "collective 3 of group " in str(text), text


def test_compiled_data_parallel():
    if type(ranks.shoal_group) is not dist.ProcessGroup and not hasattr(torch._C._dynamo.eval_frame, "_FrameAction"):
        raise unittest.SkipTest("this torch traces a group in Python, of which it can make nothing")
    size = dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=ranks.shoal_group)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        compiled(torch.full((2, 4), dist.get_rank() + 1.0)).sum().backward()
    mean = (size + 1) / 2  # of the ranks' inputs; 2 rows, 2 steps
    torch.testing.assert_close(model.module.weight.grad, torch.full((4, 4), 4 * mean))


if __name__ == "__main__":
    ranks.start("shoal")
    ranks.run("__main__")
    ranks.run("ranks_sharding")
