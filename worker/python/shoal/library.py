"""The C library: where it is, and every declaration of shoal.h that Python uses.

A collective is one small method of Group, so that one more call of the C API is one more method
here. Addresses are integers; whoever calls keeps the memory alive until the request is complete.
"""

import ctypes
import os
import pathlib
import sys

from shoal import errors

EAGAIN, ETIMEOUT = -12, -3

F32, F64, F16, BF16, I8, U8, I32, I64, I16, U16, U32, U64 = range(12)
SUM, AVG, PROD, MIN, MAX, BAND, BOR, BXOR, LAND, LOR, LXOR = range(11)

_int, _size, _pointer, _text = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p


class Options(ctypes.Structure):
    """struct shoal_options."""

    _fields_ = [
        ("struct_size", _size),
        ("job", _text),
        ("socket_path", _text),
        ("rank_plus_1", _int),
        ("local_rank_plus_1", _int),
        ("world_size", _int),
        ("timeout_ms", _int),
        ("arena_bytes", ctypes.c_uint64),
        ("newcomer", _int),
        ("recovery", _int),
    ]


class ReconfigureOptions(ctypes.Structure):
    """struct shoal_reconfigure_options."""

    _fields_ = [
        ("struct_size", _size),
        ("timeout_ms", _int),
        ("stragglers_ms", _int),
        ("collectives", ctypes.POINTER(ctypes.c_uint64)),
        ("least_ranks", _int),
        ("wait_ms", _int),
    ]


class DeviceOptions(ctypes.Structure):
    """struct shoal_device_options."""

    _fields_ = [
        ("struct_size", _size),
        ("number", _int),
        ("library", _text),
        ("pinned_bytes", ctypes.c_uint64),
        ("stream_waits", _int),
    ]


# name: (result, arguments). A result of _int is checked by Library.call.
_DECLARATIONS = {
    "shoal_open": (_int, [_pointer, _pointer]),
    "shoal_close": (_int, [_pointer]),
    "shoal_job_reconfigure": (_int, [_pointer, _pointer]),
    "shoal_generation": (_int, [_pointer]),
    "shoal_position": (_int, [_pointer, _pointer]),
    "shoal_replay": (_int, [_pointer, ctypes.c_uint64, _pointer, _size, _int, _pointer]),
    "shoal_replay_kept": (_int, [_pointer, _pointer, _pointer]),
    "shoal_rank": (_int, [_pointer]),
    "shoal_world_size": (_int, [_pointer]),
    "shoal_local_rank": (_int, [_pointer]),
    "shoal_local_size": (_int, [_pointer]),
    "shoal_node_count": (_int, [_pointer]),
    "shoal_world": (_pointer, [_pointer]),
    "shoal_group_open": (_int, [_pointer, _pointer, _int, _int, _pointer]),
    "shoal_group_close": (_int, [_pointer]),
    "shoal_group_rank": (_int, [_pointer]),
    "shoal_group_size": (_int, [_pointer]),
    "shoal_all_reduce": (_int, [_pointer, _pointer, _pointer, _size, _int, _int, _pointer]),
    "shoal_reduce": (_int, [_pointer, _pointer, _pointer, _size, _int, _int, _int, _pointer]),
    "shoal_broadcast": (_int, [_pointer, _pointer, _size, _int, _int, _pointer]),
    "shoal_barrier": (_int, [_pointer, _pointer]),
    "shoal_all_gather_v": (_int, [_pointer, _pointer, _pointer, _pointer, _int, _pointer]),
    "shoal_reduce_scatter_v": (
        _int,
        [_pointer, _pointer, _pointer, _pointer, _int, _int, _pointer],
    ),
    "shoal_gather_v": (
        _int,
        [_pointer, _pointer, _size, _pointer, _pointer, _int, _int, _pointer],
    ),
    "shoal_scatter_v": (
        _int,
        [_pointer, _pointer, _pointer, _pointer, _size, _int, _int, _pointer],
    ),
    "shoal_all_to_all_v": (
        _int,
        [_pointer, _pointer, _pointer, _pointer, _pointer, _int, _pointer],
    ),
    "shoal_send": (_int, [_pointer, _pointer, _size, _int, _int, _int, _pointer]),
    "shoal_recv": (_int, [_pointer, _pointer, _size, _int, _int, _int, _pointer]),
    "shoal_recv_any": (_int, [_pointer, _pointer, _size, _int, _int, _pointer, _pointer]),
    "shoal_test": (_int, [_pointer]),
    "shoal_wait": (_int, [_pointer, _int]),
    "shoal_request_free": (None, [_pointer]),
    "shoal_completions_descriptor": (_int, [_pointer]),
    "shoal_completions_clear": (_int, [_pointer]),
    "shoal_device_open": (_int, [_pointer, _pointer]),
    "shoal_group_set_stream": (_int, [_pointer, _int, _pointer]),
    "shoal_request_wait_stream": (_int, [_pointer, _pointer]),
    "shoal_set_ending": (_int, [_pointer, _text]),
    "shoal_error_text": (_text, []),
    "shoal_result_name": (_text, [_int]),
    "shoal_version": (_text, []),
}


def library_paths():
    """Where libshoal may be, best first: SHOAL_LIBRARY alone when it is set; the bundle in a wheel; the
    tree that this file is in; the prefix that it is installed under; what the system's loader finds."""
    given = os.environ.get("SHOAL_LIBRARY")
    if given:
        return [given]
    here = pathlib.Path(__file__).resolve()
    paths = [here.parent / "_bundle" / "lib" / "libshoal.so.0"]
    paths += [here.parents[3] / "build" / "lib" / "libshoal.so.0"]
    # PREFIX/lib/python3.x/site-packages/shoal/library.py, or PREFIX/lib/python3/dist-packages/...
    paths += [parent / "libshoal.so.0" for parent in here.parents if parent.name == "lib"]
    paths += [pathlib.Path(prefix) / "lib" / "libshoal.so.0" for prefix in (sys.prefix, "/usr/local")]
    return [str(path) for path in paths if path.exists()] + ["libshoal.so.0"]


def said(name, text):
    """Join a result's name and the library's text; a text that begins with the name stands alone."""
    if not text:
        return name
    return text if text.removeprefix("the ").startswith(name) else f"{name}: {text}"


class Library:
    """libshoal, loaded. All its threads are C's; calls release Python's lock."""

    def __init__(self):
        tried = []
        for path in library_paths():
            try:
                self.c = ctypes.CDLL(path)
                break
            except OSError as problem:
                tried.append(f"{path}: {problem}")
        else:
            raise ImportError(
                "libshoal is not there (build the tree, install it, or set SHOAL_LIBRARY to the"
                " path of libshoal.so): " + "; ".join(tried)
            )
        self.path = path
        for name, (result, arguments) in _DECLARATIONS.items():
            function = getattr(self.c, name)
            function.restype = result
            function.argtypes = arguments

    def error(self, code):
        """The exception for what just failed in this thread."""
        text = self.c.shoal_error_text().decode(errors="replace")
        name = self.c.shoal_result_name(code).decode()
        return errors.make_error(code, said(name, text))

    def call(self, function, *arguments):
        result = function(*arguments)
        if result < 0:
            raise self.error(result)
        return result


_library = None


def load():
    """The library, loaded once for the process."""
    global _library
    if _library is None:
        _library = Library()
    return _library


class Job:
    """A job that this process has joined (shoal_open)."""

    def __init__(
        self, name, socket_path, rank, world_size, *, local_rank, timeout_ms, arena_bytes, newcomer=False, recovery=0
    ):
        """Join the job. A newcomer, which has no rank yet, becomes one of the job's next generation. recovery is 1, -1
        or 0, as in shoal.h."""
        self.library = load()
        options = Options(
            struct_size=ctypes.sizeof(Options),
            job=os.fsencode(name),
            socket_path=os.fsencode(socket_path),
            rank_plus_1=rank + 1,
            local_rank_plus_1=local_rank + 1,
            world_size=world_size,
            timeout_ms=timeout_ms,
            arena_bytes=arena_bytes,
            newcomer=newcomer,
            recovery=recovery,
        )
        handle = _pointer()
        self.library.call(self.library.c.shoal_open, ctypes.byref(options), ctypes.byref(handle))
        self.handle = handle
        self.pid = os.getpid()
        self._set_place()

    def _set_place(self):
        c, handle = self.library.c, self.handle
        self.generation = c.shoal_generation(handle)
        self.rank = c.shoal_rank(handle)
        self.world_size = c.shoal_world_size(handle)
        self.local_rank = c.shoal_local_rank(handle)
        self.local_size = c.shoal_local_size(handle)
        self.node_count = c.shoal_node_count(handle)
        self.world = Group(self, c.shoal_world(handle))

    def reconfigure(self, timeout_ms=0, stragglers_ms=0, least_ranks=0, wait_ms=0):
        """Go on as the next generation: after a loss with the ranks that are left, or without one, when
        all call it, and with newcomers. Ranks and sizes are new, those of `world`, too, which is another
        object. Returns how many collectives of the old world, from its first, every rank that is
        left has. RankLostError: another rank is lost, call it again. least_ranks: wait for newcomers until
        there are so many, wait_ms at most. 0: the library's defaults."""
        kept = ctypes.c_uint64()
        options = ReconfigureOptions(
            ctypes.sizeof(ReconfigureOptions), timeout_ms, stragglers_ms, ctypes.pointer(kept), least_ranks, wait_ms
        )
        self.library.call(self.library.c.shoal_job_reconfigure, self.handle, ctypes.byref(options))
        self.world.handle = None  # the library's is the new one's
        self._set_place()
        return kept.value

    def position(self):
        """The number that the next collective of the world has, of all since the job began."""
        number = ctypes.c_uint64()
        self.library.call(self.library.c.shoal_position, self.handle, ctypes.byref(number))
        return number.value

    def close(self):
        """Leave the job. Requests under way fail first; memory of shoal_alloc stays until it is freed."""
        handle, self.handle = self.handle, None
        # A forked child has nothing to close.
        if handle is not None and os.getpid() == self.pid:
            self.library.call(self.library.c.shoal_close, handle)

    def set_ending(self, why):
        """Say why this process is about to end: the other ranks find it in their errors."""
        text = why.encode(errors="replace")
        self.library.call(self.library.c.shoal_set_ending, self.handle, text)

    def open_group(self, ranks, timeout_ms):
        """A group of these ranks, in this order; all of them call it."""
        list_of_ranks = (_int * len(ranks))(*ranks)
        handle = _pointer()
        self.library.call(
            self.library.c.shoal_group_open,
            self.handle,
            list_of_ranks,
            len(ranks),
            timeout_ms,
            ctypes.byref(handle),
        )
        return Group(self, handle)

    def open_device(self, number):
        """The GPU on whose memory collectives may be started (Group.set_stream); one a job."""
        options = DeviceOptions(ctypes.sizeof(DeviceOptions), number, None, 0)
        self.library.call(self.library.c.shoal_device_open, self.handle, ctypes.byref(options))

    def completions_descriptor(self):
        return self.library.call(self.library.c.shoal_completions_descriptor, self.handle)

    def clear_completions(self):
        self.library.call(self.library.c.shoal_completions_clear, self.handle)


class Group:
    """A group of ranks; each collective returns a Request."""

    def __init__(self, job, handle):
        self.job = job
        self.handle = handle
        c = job.library.c
        self.rank = c.shoal_group_rank(handle)
        self.size = c.shoal_group_size(handle)

    def close(self):
        handle, self.handle = self.handle, None
        if handle is not None and self.job.handle is not None:
            self.job.library.call(self.job.library.c.shoal_group_close, handle)

    def _start(self, function, *arguments):
        if self.job.handle is None or self.handle is None:
            raise errors.StateError("not possible now: the process group has been destroyed")
        request = _pointer()
        self.job.library.call(function, self.handle, *arguments, ctypes.byref(request))
        return Request(self.job, request)

    def set_stream(self, stream):
        """Put what this thread starts next on the job's device, in the order of this stream (its handle); None: in
        memory."""
        if self.job.handle is not None and self.handle is not None:
            on_device = stream is not None
            self.job.library.call(
                self.job.library.c.shoal_group_set_stream, self.handle, int(on_device), stream
            )

    def all_reduce(self, send, recv, count, dtype, op):
        return self._start(self.job.library.c.shoal_all_reduce, send, recv, count, dtype, op)

    def reduce(self, send, recv, count, dtype, op, root):
        return self._start(self.job.library.c.shoal_reduce, send, recv, count, dtype, op, root)

    def broadcast(self, data, count, dtype, root):
        return self._start(self.job.library.c.shoal_broadcast, data, count, dtype, root)

    def replay(self, number, recv, count, dtype):
        """The result of the all_reduce with this number, of the world, which other ranks' daemons keep."""
        return self._start(self.job.library.c.shoal_replay, number, recv, count, dtype)

    def replay_kept(self):
        """(the least number that is kept, one more than the greatest)"""
        first, end = ctypes.c_uint64(), ctypes.c_uint64()
        library = self.job.library
        library.call(library.c.shoal_replay_kept, self.handle, ctypes.byref(first), ctypes.byref(end))
        return first.value, end.value

    def barrier(self):
        return self._start(self.job.library.c.shoal_barrier)

    # A part is (address, count); parts are listed by rank of the group.

    def all_gather(self, send, parts, dtype):
        """`send` is this rank's part; parts[r] is where rank r's comes."""
        c = self.job.library.c
        return self._start(c.shoal_all_gather_v, send, *_lists(parts), dtype)

    def reduce_scatter(self, parts, recv, dtype, op):
        """`recv` becomes the reduction of everybody's part for this rank."""
        addresses, counts = _lists(parts)
        c = self.job.library.c
        return self._start(c.shoal_reduce_scatter_v, addresses, recv, counts, dtype, op)

    def gather(self, send, count, parts, dtype, root):
        """parts: on the root alone, else None."""
        c = self.job.library.c
        return self._start(c.shoal_gather_v, send, count, *_lists(parts), dtype, root)

    def scatter(self, parts, recv, count, dtype, root):
        """parts: on the root alone, else None."""
        c = self.job.library.c
        return self._start(c.shoal_scatter_v, *_lists(parts), recv, count, dtype, root)

    def all_to_all(self, sent, received, dtype):
        """sent[r] goes to rank r, received[r] comes from it."""
        c = self.job.library.c
        return self._start(c.shoal_all_to_all_v, *_lists(sent), *_lists(received), dtype)

    def send(self, data, count, dtype, peer, tag):
        c = self.job.library.c
        return self._start(c.shoal_send, data, count, dtype, peer, tag)

    def recv(self, data, count, dtype, peer, tag):
        c = self.job.library.c
        return self._start(c.shoal_recv, data, count, dtype, peer, tag)

    def recv_any(self, data, count, dtype, tag, source):
        """source: a ctypes.c_int, kept by the caller; who sent it when the request is complete."""
        c = self.job.library.c
        return self._start(c.shoal_recv_any, data, count, dtype, tag, ctypes.byref(source))


def _lists(parts):
    """(array of addresses, array of counts) of [(address, count)]."""
    if parts is None:
        return None, None
    addresses, counts = zip(*parts)
    return (_pointer * len(parts))(*addresses), (_size * len(parts))(*counts)


class Request:
    """A collective under way. One thread at a time may use it."""

    def __init__(self, job, handle):
        self.job = job
        self.handle = handle
        self.waits_for = ""  # said by the last wait whose time has passed

    def test(self):
        """True when it is complete; raises when it has failed. Either way it is freed then."""
        result = self.job.library.c.shoal_test(self.handle)
        if result == EAGAIN:
            return False
        error = self.job.library.error(result) if result < 0 else None
        self.free()
        if error:
            raise error
        return True

    def wait(self, timeout_ms):
        """True when it is complete, False when the time has passed first; raises as test does."""
        result = self.job.library.c.shoal_wait(self.handle, timeout_ms)
        if result == ETIMEOUT:
            self.waits_for = str(self.job.library.error(result)).partition(" ms have passed: ")[2]
            return False
        self.handle = None
        if result < 0:
            raise self.job.library.error(result)
        return True

    def wait_stream(self, stream):
        """Make a stream of the device (its handle) wait for it; nothing is freed. Raises when it
        has failed already, UnsupportedError where streams of this device cannot wait."""
        self.job.library.call(self.job.library.c.shoal_request_wait_stream, self.handle, stream)

    def free(self):
        handle, self.handle = self.handle, None
        if handle is not None and self.job.handle is not None:
            self.job.library.c.shoal_request_free(handle)
