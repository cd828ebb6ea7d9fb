"""A process group that goes on after a loss, and one that a newcomer joins: the default process group is made anew,
over the next generation of the same job.

torch wants a store, and the old one may have been in a process that is lost. For this reason the next rank 0 has a
store, and says where in a broadcast of the job itself, which names whoever is lost meanwhile.
"""

import ctypes
import datetime
import json
import socket
import sys
import time

import torch.distributed as dist

from shoal import errors, library
from shoal.torch import _hosts, _process_group, _rendezvous, _session, _tensors, _versions

STRAGGLERS_S = 10
RANKS_MOST = 32768
LOSSES = 100  # one after the other, while a generation is made
_SLICE_MS = 500
_ADDRESS_BYTES = 512  # what rank 0 tells, with zeros behind it
_NOBODY = 2**31 - 1


def reconfigure(timeout=None, stragglers=None, least_ranks=0, wait=None):
    """Go on in this process, after an error that is_recoverable(): with the ranks that are left, in their
    old order, and then the newcomers that wait. Without a loss all ranks call it, to take newcomers in.

    The default process group is another one afterwards, with other ranks and another size. Other groups are gone,
    and what has been made for the old ones raises: make groups and wrappers such as DistributedDataParallel anew,
    and tell all the state of rank 0, since of the step that was lost some may have more than others.

    timeout: of it all, and of the new group (None: the old one's); stragglers: how long those ranks are waited for
    that live and do not call it (None: 10 s).

    least_ranks: how many ranks there are to be afterwards, with newcomers: when all that are left have called it, they
    wait for these. The last one ends the wait, and so does the time that `wait` says (None: as long as timeout allows;
    in any case 2 s less than that): then they go on with fewer, which is no error. The greatest number and the longest
    time that any rank wishes for count.

    After an error of reconfigure there is no process group any more."""
    group = _default_group("reconfigure")
    session = group.session
    session.check_process()
    if session.device is not None:
        raise errors.UnsupportedError("reconfigure: a job with CUDA tensors cannot go on, begin it anew")
    allowed = group.timeout if timeout is None else timeout
    waited = datetime.timedelta(seconds=STRAGGLERS_S) if stragglers is None else stragglers
    wish = _Wish(least_ranks, wait, allowed)
    deadline = time.monotonic() + allowed.total_seconds()
    session.acquire()  # it outlives its groups
    try:
        why = f"this process group is of generation {session.job.generation} of its job, which has gone on"
        session.retire(errors.StateError(f"{why}: make it anew"), deadline)
        dist.destroy_process_group()
        _settle(session, deadline, waited, wish)
        _begin(session, allowed)
    except BaseException:
        _end(session)
        raise
    finally:
        session.release(None)


def join(job, timeout=_process_group.DEFAULT_TIMEOUT):
    """Instead of init_process_group, as a newcomer to a job that was begun with shoal.torch.Options(job=...): wait until its ranks call reconfigure(), and be one of them afterwards.

    A daemon is to be there, as on the other nodes (SHOAL_SOCKET)."""
    if dist.is_initialized():
        raise errors.StateError("join: there is a process group, destroy it first")
    _process_group.Options(job)
    deadline = time.monotonic() + timeout.total_seconds()
    session = _session.Session(_rendezvous.place_of_newcomer(job), -1, 0, timeout)
    session.acquire()
    try:
        _settle(session, deadline, datetime.timedelta(seconds=STRAGGLERS_S))
        _begin(session, timeout)
    except BaseException:
        _end(session)
        raise
    finally:
        session.release(None)


def _end(session):
    if dist.is_initialized():
        dist.destroy_process_group()
    session.close()


def generation():
    """How often the ranks of the default process group have gone on, from 1; a newcomer counts as they do."""
    return _default_group("generation").session.job.generation


def position():
    """The number that the next collective of the job has, of all that its ranks have done together since it began: to
    be written into a checkpoint. Between two steps it is the same on all ranks."""
    return _default_group("position").session.job.position()


def replay(tensor, number):
    """Fill the tensor with the result of the all_reduce with this number, which this rank has missed: it was started
    again from a checkpoint. The daemons of the other ranks keep the last ones (replay.keep_steps). The tensor is like
    the one that was summed. StateError: it is not kept, and the text says which are."""
    group = _default_group("replay")
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.dtype not in _tensors.DTYPES:
        raise errors.InvalidError("replay: a tensor in memory, contiguous, of a type that can be summed")
    dtype, count = _tensors.movement(tensor)
    request = group.session.job.world.replay(number, tensor.data_ptr(), count, dtype)
    _wait(request, time.monotonic() + group.timeout.total_seconds())
    return tensor


def is_recoverable(error):
    """Whether reconfigure() may follow this error: it is a shoal.RecoverableError, or what torch's own wrapper has
    made of one (a RuntimeError of backward(), say)."""
    if isinstance(error, errors.RecoverableError):
        return True
    group = _process_group.member_of(dist.GroupMember.WORLD) if dist.is_initialized() else None
    if type(error) is not RuntimeError or group is None:
        return False
    failures = [member.failure() for member in list(group.session.members)]
    return any(isinstance(failure, errors.RecoverableError) for failure in failures)


def _default_group(what):
    if not dist.is_initialized():
        raise errors.StateError(f"{what}: there is no process group, call init_process_group first")
    group = _process_group.member_of(dist.GroupMember.WORLD)
    if group is None:
        raise errors.UnsupportedError(f"{what}: the default process group is not of shoal")
    group.session.open_job()
    return group


class _Wish:
    """For so many ranks, checked before anything is given up. Its time runs from here on, over further losses."""

    def __init__(self, least_ranks, wait, allowed):
        wait = allowed if wait is None and least_ranks else wait or datetime.timedelta(0)
        if not isinstance(least_ranks, int) or not 0 <= least_ranks <= RANKS_MOST:
            raise errors.InvalidError(f"reconfigure: least_ranks is {least_ranks!r}, it must be 0 to {RANKS_MOST}")
        if not datetime.timedelta(0) <= wait <= allowed:
            raise errors.InvalidError(f"reconfigure: wait is {wait}, it must be 0 to timeout, {allowed}")
        if wait and not least_ranks:
            raise errors.InvalidError(f"reconfigure: wait is {wait} without least_ranks")
        self.least_ranks = least_ranks
        self.until = time.monotonic() + wait.total_seconds()

    def options(self, timeout_ms):
        """Return the options of the library's call with this timeout: {} when nothing is wished for any more."""
        if not self.least_ranks or time.monotonic() >= self.until:
            return {}
        return {"least_ranks": self.least_ranks, "wait_ms": min(_left_ms(self.until), timeout_ms)}


def _settle(session, deadline, stragglers, wish=None):
    """Until all ranks of a generation are in touch; each one that is lost meanwhile makes another. wish: of a process
    that has been in a generation that is over."""
    going_on, losses = wish is not None, 0
    while True:
        try:
            if going_on:
                left_ms, stragglers_ms = _left_ms(deadline), max(1, _session.milliseconds(stragglers))
                session.job.reconfigure(left_ms, stragglers_ms, **(wish.options(left_ms) if wish else {}))
            session.store = _share_store(session.job, deadline, max(1.0, stragglers.total_seconds() / 2))
            return
        except errors.RankLostError:
            losses += 1
            if losses == LOSSES or time.monotonic() >= deadline:
                raise
            going_on = True


def _begin(session, timeout):
    """torch's part, in which no rank waits for another."""
    hook = sys.excepthook
    if getattr(hook, "__name__", "") == "_distributed_excepthook":
        sys.excepthook = session.excepthook  # torch puts another before it, with this rank's number
    _process_group.going_on = session
    try:
        with _versions.without_meeting():
            dist.init_process_group(
                "shoal",
                store=session.store,
                rank=session.job.rank,
                world_size=session.job.world_size,
                timeout=timeout,
            )
    finally:
        _process_group.going_on = None


def _share_store(job, deadline, connect_s):
    """A store that is in rank 0's process, once all have it."""
    timeout = datetime.timedelta(milliseconds=_left_ms(deadline))
    store, told = None, {}
    if job.rank == 0:
        store, told = _host_store(job, timeout)
    told = _tell(job, told, deadline)
    problem = None
    if store is None and "host" in told:
        store, problem = _find_store(_hosts.from_here(told["host"]), told["port"], timeout, connect_s)
    failed = _least(job, job.rank if "error" in told or problem else _NOBODY, deadline)
    if failed == _NOBODY:
        return store
    if "error" in told:
        raise errors.SystemCallError(f"rank 0 can have no store for the others: {told['error']}")
    raise errors.SystemCallError(
        f"rank {failed} cannot reach the store of rank 0 at {told['host']}:{told['port']}"
        + (f": {problem}" if problem else "")
    )


def _host_store(job, timeout):
    try:
        host = "127.0.0.1" if job.node_count == 1 else _hosts.own_address()
        store = _versions.make_store(host, 0, True, timeout)
        return store, {"host": host, "port": store.port}
    except (RuntimeError, OSError) as problem:
        return None, {"error": str(problem)[:300]}


def _find_store(host, port, timeout, connect_s):
    """(store, why there is none). torch tries again where it is refused; one that is lost is not to be waited for."""
    try:
        socket.create_connection((host, port), connect_s).close()
        store = _versions.make_store(host, port, False, timeout)
        # An answer: what rank 0 has not accepted when it is killed is reset, which is seen here.
        store.add("met", 1)
        return store, None
    except (RuntimeError, OSError) as problem:
        return None, problem


def _tell(job, told, deadline):
    """Return on all ranks what rank 0 has told."""
    text = (ctypes.c_char * _ADDRESS_BYTES)()
    text.value = json.dumps(told).encode() if job.rank == 0 else b""
    address = ctypes.addressof(text)
    _wait(job.world.broadcast(address, _ADDRESS_BYTES, library.U8, 0), deadline)
    return json.loads(text.value)


def _least(job, number, deadline):
    """Not by an all_reduce: what daemons keep for replays is the script's."""
    own, all_of_them = ctypes.c_int32(number), (ctypes.c_int32 * job.world_size)()
    size = ctypes.sizeof(own)
    parts = [(ctypes.addressof(all_of_them) + rank * size, 1) for rank in range(job.world_size)]
    _wait(job.world.all_gather(ctypes.addressof(own), parts, library.I32), deadline)
    return min(all_of_them)


def _wait(request, deadline):
    while not request.wait(min(_left_ms(deadline), _SLICE_MS)):
        if time.monotonic() >= deadline:
            request.free()
            raise errors.TimeoutError("timed out: the next generation's ranks have not all met")


def _left_ms(deadline):
    return max(1, min(int((deadline - time.monotonic()) * 1000), 86400000))
