"""torch.cuda on the stand-in for CUDA's driver: tensors in memory count as the device's, and streams
are the stand-in's, so that results of collectives are late, and whoever looks too early sees it."""

import contextlib
import ctypes
import os
import threading

import torch
from shoal.torch import _streams, _work


class Stream:
    def __init__(self, library):
        self.library = library
        self.handle = library.stand_in_stream_make()

    def __eq__(self, other):
        return self.handle == other.handle

    __hash__ = None

    def hold(self):
        self.library.stand_in_stream_hold(self.handle)

    def let_go(self):
        self.library.stand_in_stream_let_go(self.handle)

    def finish(self):
        self.library.stand_in_stream_finish(self.handle)


class FakeCuda:
    """strict: the host goes on, as on a GPU. Without it the host waits where torch's own work, which the CPU does at
    once, would be put onto a stream or look at a result: for programs that know of no streams."""

    def __init__(self, strict=False):
        self.strict = strict
        self.library = ctypes.CDLL(os.environ["SHOAL_CUDA_LIBRARY"])
        for name in ("make", "hold", "let_go", "finish", "follow"):
            function = getattr(self.library, f"stand_in_stream_{name}")
            function.restype = ctypes.c_void_p if name == "make" else None
            function.argtypes = [ctypes.c_void_p] * {"make": 0, "follow": 2}.get(name, 1)
        self.library.stand_in_set_any_memory(True)
        self.now = Stream(self.library)
        self.recorded = []
        self.completed = []  # (addresses of the tensors in a future's value, stream)
        self.ends = []  # (stream, thread that completes a future when the stream has come there)

    def device_of(self, tensor):
        return 0 if tensor.device.type == "cpu" and tensor.layout == torch.strided else None

    def current(self, device):
        return self.now

    def make(self, device):
        return Stream(self.library)

    def handle(self, stream):
        return stream.handle

    @contextlib.contextmanager
    def using(self, stream):
        if not self.strict:
            stream.finish()
        yield

    def event(self, stream):
        return stream

    def join(self, device, event):
        self.follow(self.now, event)
        if not self.strict:
            self.now.finish()
            # An operation whose wait() has returned is complete, as on a GPU.
            for thread in [thread for stream, thread in list(self.ends) if stream == event]:
                if thread is not threading.current_thread():
                    thread.join()

    def follow(self, stream, other):
        self.library.stand_in_stream_follow(stream.handle, other.handle)

    def record(self, tensor, stream):
        self.recorded.append((tensor.data_ptr(), stream.handle))

    def future(self, device):
        return torch.futures.Future()

    def complete(self, future, stream, value):
        # torch's futures know of the devices of their tensors alone.
        places = [tensor.data_ptr() for tensor in _work._tensors_in([value]) if tensor.layout == torch.strided]
        self.completed.append((places, stream.handle))
        if self.strict:
            future.set_result(value)
        else:
            late = threading.Thread(target=self._complete_late, args=(future, stream, value), daemon=True)
            late.start()
            self.ends = [(at, thread) for at, thread in self.ends if thread.is_alive()]
            self.ends.append((stream, late))

    def _complete_late(self, future, stream, value):
        stream.finish()
        future.set_result(value)


def install(strict=False):
    _streams.runtime = FakeCuda(strict)
    return _streams.runtime
