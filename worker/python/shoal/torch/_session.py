"""A job of the library as the process groups of this process share it."""

import atexit
import contextlib
import multiprocessing.process
import multiprocessing.util
import os
import sys
import threading
import time
import weakref

from shoal import errors, library
from shoal.torch import _native, _streams, _work

# The end of a process, which may have failed, waits so long for what its streams wait for.
EXIT_S = 5
ENDING_LENGTH = 500  # of what other ranks are told of an exception

_sessions = weakref.WeakSet()
_left_open = []  # jobs that the end of the process leaves, and the memory that they use


class Session:
    """A job, the thread that completes its operations, and the embedded daemon if there is one.
    It ends with the last process group of it, or with the process."""

    def __init__(self, meeting, rank, size, timeout):
        """meeting: of _rendezvous. A rank of -1 is a newcomer's, which waits until the job's ranks go on."""
        self.pid = os.getpid()
        self.forgotten = False
        self.lock = threading.Lock()
        self.groups = 0
        self.device = None  # its number
        self.streams = {}  # onto which operations on it end: (group, what waits in one order)
        self.excepthook = sys.excepthook  # which torch takes over after this
        self.store = None  # of torch's, since the job has gone on
        self.members = weakref.WeakSet()  # the process groups
        self.meeting = meeting
        try:
            self.job = library.Job(
                self.meeting.job,
                self.meeting.socket_path,
                rank,
                size,
                local_rank=self.meeting.local_rank,
                timeout_ms=milliseconds(timeout),
                arena_bytes=_arena_bytes(self.meeting.local_size),
                newcomer=rank < 0,
            )
        except BaseException:
            self.meeting.leave()
            raise
        finally:
            self.meeting.settled()
        # A device's tensors are the Python backend's; a stand-in for one has them in memory.
        self.native = _native.make_session(self.job) if type(_streams.runtime) is _streams.Cuda else None
        bell = _native.make_bell(self.native) if self.native is not None else None
        self.completions = _work.Completions(self.job, bell)
        _sessions.add(self)
        # Leaving is a courtesy to the other ranks: without it this rank counts as lost. Before Python 3.13 a process of
        # multiprocessing does not run atexit's functions, but its own.
        self.bootstrap = _bootstrap_frame()
        atexit.unregister(_end_process)
        atexit.register(_end_process)
        multiprocessing.util.Finalize(None, _end_process, exitpriority=100)

    def open_job(self):
        """Return the job. StateError: it has been left."""
        job = self.job
        if job is None:
            raise errors.StateError("the process group has been aborted or destroyed: make it anew")
        return job

    def use_device(self, number):
        """Open the job's device at the first tensor on it."""
        with self.lock:
            if self.device is None:
                self.job.open_device(number)
                self.device = number
            elif self.device != number:
                raise errors.UnsupportedError(
                    f"a tensor on CUDA device {number}: this process uses device {self.device}"
                )

    def stream_of(self, group, way):
        """A stream onto which operations end that may wait for each other: the collectives of a group, or what it sends
        to, or gets from, one rank (`way`). nccl has the same streams, but here sends do not wait for receives."""
        with self.lock:
            if (group, way) not in self.streams:
                self.streams[group, way] = _streams.runtime.make(self.device)
            return self.streams[group, way]

    def check_process(self):
        if self.pid != os.getpid():
            raise errors.StateError(
                f"process {os.getpid()} was forked from {self.pid}, whose process group it cannot use"
            )

    def acquire(self):
        with self.lock:
            self.groups += 1

    def retire(self, why, end):
        """Before the job goes on: what is under way on either backend is waited for
        until `end` (time.monotonic()) and fails with `why` then, and the process groups raise it from now on."""
        self.completions.settle(end, why)
        if self.native is not None:
            self.native.settle(max(0.0, end - time.monotonic()), str(why))
        for member in list(self.members):
            member.retire(why)

    def release(self, group):
        """A process group has gone, or (None) whoever has acquired it. The last ones may go at the process's end
        after the modules have, so that nothing of this one's is there: close_all() has been by then."""
        if self.job is None or self.forgotten:
            return
        with self.lock:
            self.groups -= 1
            last, job = self.groups == 0, self.job
            for key in [key for key in self.streams if key[0] is group]:
                del self.streams[key]
        if last:
            self.close()
        elif job is not None and group is not None and group is not job.world:
            try:
                group.close()
            except errors.StateError:
                pass  # collectives of it are under way: it is closed with the job

    def close(self, limit_s=None, leave=True, ending=None):
        """Leave the job. limit_s: how long at the most to wait for what streams wait for. leave: the other ranks hear
        of it now, and else when the process has ended. ending: why it ends, which they hear too."""
        if self.job is None or self.pid != os.getpid():
            return
        with self.lock:
            job, self.job = self.job, None
        if job is None:
            return
        _sessions.discard(self)  # a child that is forked later has nothing of it to let go
        self.completions.end_streamed(limit_s)
        if ending:
            with contextlib.suppress(errors.ShoalError):
                job.set_ending(ending)
        closed = errors.StateError("the process group was destroyed before this was complete")
        kept = self.completions.stop(closed)
        if self.native is not None:
            self.native.close(str(closed))
        if leave:
            job.close()
            kept.clear()
            if self.native is not None:
                self.native.release()
        else:
            _left_open.append((job, kept))
        self.completions.close()
        self.meeting.leave()

    def forget(self):
        """In a forked child, which has nothing of the job: it must not wait for a lock that a thread of
        the parent held, or keep the embedded daemon."""
        self.forgotten = True
        self.lock = threading.Lock()
        self.completions.forget()
        self.meeting.leave()


def _ending():
    """Return in one line why an exception ends this process, or None; called at its end. An error of shoal's own has
    its reason from elsewhere, and a person at a prompt may have seen any number of exceptions."""
    if hasattr(sys, "ps1"):
        return None
    error = sys.exc_info()[1] or getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not isinstance(error, (Exception, KeyboardInterrupt)) or isinstance(error, errors.ShoalError):
        return None
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= ENDING_LENGTH else text[:ENDING_LENGTH] + "..."


def milliseconds(timeout):
    """A timedelta as the library takes it: at the most a day."""
    return min(int(timeout.total_seconds() * 1000), 86400000)


def _arena_bytes(local_size):
    """0, the library's own, when the environment says it; else what may be needed for gradients.
    Only what is touched takes memory."""
    if os.environ.get("SHOAL_ARENA_BYTES"):
        return 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(256 << 20, min(memory // 2 // local_size, 32 << 30) >> 20 << 20)


def _end_process():
    """Close all sessions at the end of this process. The parent of a process of multiprocessing takes the first process
    that has ended for the cause and says that one's error, so ranks that this error will end hear of it when this
    process has ended."""
    for session in list(_sessions):
        session.close(EXIT_S, session.bootstrap is None or _ends_well(session.bootstrap), _ending())


def _bootstrap_frame():
    """Return the frame in which multiprocessing runs this process, None in a process that it has not started."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None and frame.f_code is not multiprocessing.process.BaseProcess._bootstrap.__code__:
        frame = frame.f_back
    return frame


def _ends_well(bootstrap):
    """Return whether a process of multiprocessing ends without an error. Python 3.13 calls this when the frame has
    handled the exception and has an exit status, older ones while the exception is on its way through the frame."""
    error = sys.exc_info()[1]
    if error is None:
        return bootstrap.f_locals.get("exitcode", 0) == 0
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _forget_all():
    for session in list(_sessions):
        session.forget()
    _sessions.clear()


os.register_at_fork(after_in_child=_forget_all)
