"""torch's data-parallel wrapper, with its buckets in the arena and their averages asked of the daemon."""

import contextlib
import inspect
import os
import threading
import time

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from shoal import errors
from shoal.torch import _native, _process_group

# torch reads it whenever it makes buckets: with 0 their memory is the process group's. Before 2.13 it does not know it.
IN_PLACE = "DDP_DISABLE_COMM_MEM"


def _our_group(process_group):
    group = process_group if process_group is not None else dist.GroupMember.WORLD
    if _process_group.member_of(group) is None:
        raise errors.InvalidError(
            'the process group is not of shoal: init_process_group(backend="shoal") first'
        )
    return group


def allreduce_hook(
    state: object, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook for torch's own wrapper: the average by the daemons, with no division
    before. `state` is the process group, None for the default one."""
    return _average(_our_group(state), bucket).get_future().then(lambda done: done.value()[0])


def _average(group, bucket):
    options = c10d.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    return group.allreduce([bucket.buffer()], options)


@contextlib.contextmanager
def _buckets_in_the_arena():
    """Have torch take the memory of buckets from the process group, unless the user has said otherwise."""
    if IN_PLACE in os.environ:
        yield
        return
    os.environ[IN_PLACE] = "0"
    try:
        yield
    finally:
        os.environ.pop(IN_PLACE, None)  # another thread's wrapper may have been faster


class _Averages:
    """Start and time the averages of a wrapper's buckets, as a hook, where no native backend does. The time after the
    start of the last bucket counts as exposed."""

    def __init__(self, group):
        self._group = group
        self._lock = threading.Lock()
        self._works = []  # those that the last pass has started
        self._script = None  # (the script's hook, its state)
        self._begin()
        self._last = self._counted()

    def _begin(self):
        self._buffers = self._bytes = self._under_way = self._communication = 0
        self._since = self._last_start = time.monotonic_ns()

    def _counted(self):
        exposed = min(self._communication, max(0, self._since - self._last_start))
        names = "buffers", "bytes", "communication_ns", "exposed_ns"
        return dict(zip(names, (self._buffers, self._bytes, self._communication, exposed)))

    def settle(self):
        """Wait for the averages of a pass that has raised, which write into the buckets."""
        while self._works:
            with contextlib.suppress(errors.ShoalError):  # the group has failed, and says so when it is next used
                self._works[0].wait()
            del self._works[:1]

    def hand_over(self, state, hook):
        """Have the script's hook do what start() does, from now on."""
        self.settle()
        self._script = hook, state

    def start(self, state, bucket):
        if self._script:
            hook, state = self._script
            return hook(state, bucket)
        buffer, first = bucket.buffer(), bucket.index() == 0
        if first:
            self.settle()  # a pass that has raised has left some, where no forward pass came in between
        with self._lock:
            if first:
                self._begin()
            self._last_start = time.monotonic_ns()
            if self._under_way == 0:
                self._since = self._last_start
            self._under_way += 1
            self._buffers += 1
            self._bytes += 0 if buffer.is_sparse else buffer.nbytes
        work = _average(self._group, bucket)
        self._works.append(work)
        return work.get_future().then(self._ended)

    def _ended(self, done):
        value = done.value()[0]
        with self._lock:
            now = time.monotonic_ns()
            self._communication, self._since = self._communication + now - self._since, now
            self._under_way -= 1
            if self._under_way == 0:
                self._last = self._counted()
        return value

    def statistics(self):
        with self._lock:
            return dict(self._last)


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch's class, used instead of it for a process group of shoal: with the same arguments and methods.

    The gradients are views of torch's buckets, which lie where the daemon reads and writes them (from torch 2.13 on, on
    the CPU, with the native backend; else the daemon's part of a bucket is copied). The daemon averages them: torch
    makes no pass over a bucket to divide it. A communication hook of the script's own takes the place of that one.
    """

    _averages = None
    _hooked = False  # by the script

    def __init__(self, *given, **named):
        arguments = inspect.signature(super().__init__).bind(*given, **named).arguments
        mesh = arguments.get("device_mesh")
        _our_group(arguments.get("process_group") if mesh is None else mesh.get_group(mesh_dim=0))
        arguments.setdefault("gradient_as_bucket_view", True)
        super().__init__(**arguments)

    # --- torch's own steps

    def _ddp_init_helper(self, *given, **named):
        with _buckets_in_the_arena():
            super()._ddp_init_helper(*given, **named)

    def _lazy_init(self):
        super()._lazy_init()
        if self._hooked or self._comm_hooks or self._use_python_reducer or self._delay_all_reduce_all_params:
            return
        if isinstance(_process_group.member_of(self.process_group), c10d.ProcessGroup):
            self._averages = _Averages(self.process_group)
            dist._register_comm_hook(self.reducer, None, self._averages.start)
        else:
            self._averages = _native.average_gradients(self.reducer, self.process_group, self.static_graph)
        self.logger._set_comm_hook_name("shoal.torch")

    @torch._disable_dynamo  # the environment is none of torch.compile's
    def _pre_forward(self, *inputs, **named):
        # A forward pass without gradients may come within a backward pass, whose averages are under way.
        if self._averages is not None and torch.is_grad_enabled():
            self._averages.settle()
        never = self.find_unused_parameters and not self.static_graph
        if self._has_rebuilt_buckets or never:
            return super()._pre_forward(*inputs, **named)
        with _buckets_in_the_arena():  # it lays them out anew, once
            return super()._pre_forward(*inputs, **named)

    def register_comm_hook(self, state, hook):
        if self._averages is None:
            super().register_comm_hook(state, hook)
            return
        self._check_comm_hook(hook)
        name = hook.__qualname__  # torch wants it too; what has none is refused before anything has changed
        self._averages.hand_over(state, hook)
        self._averages, self._hooked = None, True
        self._comm_hooks.append((hook, state))
        self.logger._set_comm_hook_name(name)

    def _register_builtin_comm_hook(self, comm_hook_type):
        if self._averages is not None:
            raise errors.UnsupportedError(
                "_register_builtin_comm_hook after a forward pass: torch takes one hook, and that is shoal's by then;"
                " call it before the first forward pass, or register_comm_hook, which may come later"
            )
        super()._register_builtin_comm_hook(comm_hook_type)
        self._hooked = True

    def _update_process_group(self, new_process_group):
        if self._averages is not None:
            raise errors.UnsupportedError(
                "_update_process_group after a forward pass: the averages are of the old group; make another wrapper"
            )
        super()._update_process_group(new_process_group)

    def join_hook(self, **named):
        if not named.get("divide_by_initial_world_size", True):
            if self._averages is not None:
                raise errors.UnsupportedError(
                    "join(divide_by_initial_world_size=False) after a forward pass: the daemon divides by all ranks by"
                    " then; enter it before the first forward pass, and torch divides"
                )
            self._hooked = True
        return super().join_hook(**named)

    def __getstate__(self):
        state = super().__getstate__()  # without the reducer: that of a copy knows no hook, and has new buckets
        state.update({"_averages": None, "_lazy_init_ran": False, "_has_rebuilt_buckets": False})
        return state

    # --- the rest

    def statistics(self):
        """Return figures of the last backward pass: buffers and bytes sent, the time during which one was under way as
        far as this rank knows (communication_ns), and the part of it that nothing else hid (exposed_ns). Zeros before
        the first."""
        if self._averages is not None:
            return self._averages.statistics()
        if self._hooked or self._comm_hooks:
            raise errors.StateError("statistics: the averages are those of the script's communication hook")
        return dict.fromkeys(("buffers", "bytes", "communication_ns", "exposed_ns"), 0)
