"""A plugin of pytest for DeepSpeed's own tests: of each function the first set of parameters, and ranks that begin and
end at once.

A server that has imported DeepSpeed forks the ranks, each of which needs some seconds for that otherwise. The first
rank that fails ends the others: DeepSpeed waits for them until its limit, and then ends all of pytest.
"""

import multiprocessing
import multiprocessing.connection
import pathlib
import socket
import time
import traceback

import pytest


def pytest_collection_modifyitems(config, items):
    seen, kept, left = set(), [], []
    for item in items:
        name = item.nodeid.partition("[")[0]
        (left if name in seen else kept).append(item)
        seen.add(name)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_collection_finish(session):
    from unit.common import DistributedExec

    multiprocessing.set_forkserver_preload(["torch", "deepspeed"])
    DistributedExec._launch_procs = launch


def launch(test, ranks, init_method):
    """In place of DistributedExec's."""
    test.reuse_dist_env = test.non_daemonic_procs = False
    context = multiprocessing.get_context("forkserver")
    place = (ranks, free_port(), init_method)
    heard, processes = [], []
    try:
        for rank in range(ranks):
            mine, its = context.Pipe(duplex=False)
            heard.append(mine)
            processes.append(context.Process(target=be_rank, args=(its, test, rank, *place)))
            processes[-1].start()
            its.close()
        skips = hear(heard, test.exec_timeout)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for buffer in pathlib.Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{place[1]}_*"):
            buffer.unlink()  # 66 MiB of each rank
    if any(skips):
        pytest.skip(next(filter(None, skips)))


def be_rank(says, test, *place):
    try:
        skip = test._dist_run(*place)
        test._dist_destroy()
        says.send((skip, None))
    except BaseException:
        says.send((None, traceback.format_exc()))


def hear(ranks, limit_s):
    """Why each has skipped the test, "" of one that has passed."""
    skips, left, until = [], list(ranks), time.monotonic() + limit_s
    while left:
        ready = multiprocessing.connection.wait(left, until - time.monotonic())
        if not ready:
            pytest.fail(f"no end after {limit_s} s")
        for one in ready:
            left.remove(one)
            try:
                skip, error = one.recv()
            except EOFError:
                pytest.fail("a rank has ended without a word")
            if error:
                pytest.fail(error)
            skips.append(skip)
    return skips


def free_port():
    """Return a port that was free just now. DeepSpeed counts from one and the same, and two of its runs would meet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return str(bound.getsockname()[1])
