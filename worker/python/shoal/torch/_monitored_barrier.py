"""monitored_barrier: a barrier that names the ranks that did not come. Over torch's store, so that
a rank that is stuck in a collective does not count as one that came; rank 0 watches the others."""

import contextlib
import time

from shoal import errors


def wait(store, name, rank, size, timeout, wait_all_ranks):
    """Returns when all `size` ranks have called it under this name; raises after `timeout`."""
    if size == 1:
        return
    if rank == 0:
        _watch(store, name, size, timeout, wait_all_ranks)
    else:
        _come(store, name, rank, timeout)


def _come(store, name, rank, timeout):
    store.set(f"{name}/{rank}", b"here")
    try:
        store.wait([f"{name}/all"], timeout)
    except RuntimeError as problem:
        raise errors.TimeoutError(
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting"
            " for send/recv from rank 0. Please check rank 0 logs for faulty rank."
        ) from problem
    store.set(f"{name}/left/{rank}", b"left")


def _watch(store, name, size, timeout, wait_all_ranks):
    end = time.monotonic() + timeout.total_seconds()
    milliseconds = int(timeout.total_seconds() * 1000)
    missing = []
    for other in range(1, size):
        key = f"{name}/{other}"
        remaining_s = end - time.monotonic()
        if remaining_s <= 0 and not missing:
            raise errors.TimeoutError(
                f"Rank 0 timed out in monitoredBarrier after {milliseconds} ms, before rank {other}"
            )
        try:
            store.wait([key], type(timeout)(seconds=max(0.001, remaining_s)))
        except RuntimeError:
            missing.append(other)
            if not wait_all_ranks:
                break
            continue
        store.delete_key(key)
    if missing:
        word = "Ranks" if wait_all_ranks else "Rank"
        raise errors.TimeoutError(
            f"[Rank 0]: {word} {', '.join(str(other) for other in missing)}"
            f" failed to pass monitoredBarrier in {milliseconds} ms"
        )
    store.set(f"{name}/all", b"here")
    # The store may be in this process, which may end now: until the others have seen that all are there.
    with contextlib.suppress(RuntimeError):
        remaining_s = max(0.001, end - time.monotonic())
        store.wait([f"{name}/left/{other}" for other in range(1, size)], type(timeout)(seconds=remaining_s))
