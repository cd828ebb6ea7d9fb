"""Data-parallel training without copies: gradients that live in fusion buffers.

A parameter's .grad is a view of its part of a fusion buffer, so that the backward pass writes the
gradient where the daemon reads it, in the arena, and the average comes back to the same memory. A
buffer is sent as soon as its gradients are there, while the backward pass goes on. On a GPU the
buffers are in its memory, and a full one is copied as a whole; the host waits in the first step, and,
with find_unused_parameters, in each one.
"""

import contextlib
import ctypes
import functools
import time
import weakref

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.autograd import Variable

from shoal import errors, library
from shoal.torch import _process_group, _streams, _tensors, _versions, _work

_SLICE_MS = int(_work.SLICE_S * 1000)


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
    group = _our_group(state)
    options = c10d.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    future = group.allreduce([bucket.buffer()], options).get_future()
    return future.then(lambda done: done.value()[0])


class _Gradients:
    """The fusion buffers, and each parameter's view of its part of them."""

    def __init__(self, group, parameters, bucket_bytes):
        self.member = _process_group.member_of(group)
        self.parameters = parameters
        self.device = _device_of(parameters)  # None: in memory
        shapes = [(p.numel(), _element_type(p)) for p in parameters]
        self.memory = None  # of the buffers, on the device
        if self.device is not None:
            self.member.session.use_device(self.device)
            size = library.Fusion.bytes(shapes)
            self.memory = torch.empty(size, dtype=torch.uint8, device=parameters[0].device)
        self.fusion = library.Fusion(
            self.member.group,
            shapes,
            library.AVG,
            threshold_bytes=bucket_bytes,
            first_buffer_bytes=min(bucket_bytes, 1 << 20),
            device_memory=None if self.memory is None else self.memory.data_ptr(),
        )
        self.begun, self.stream = False, None  # of a step on a device
        self.placed = False  # for good: the first step decides on the order in the buffers
        self.views = []
        self.make_views()

    def make_views(self):
        self.views = [self._view(index) for index in range(len(self.parameters))]

    def _view(self, index):
        parameter = self.parameters[index]
        if parameter.numel() == 0:
            return torch.zeros_like(parameter)
        size = parameter.numel() * parameter.element_size()
        if self.memory is not None:
            start = self.fusion.gradient(index) - self.memory.data_ptr()
            part = self.memory[start : start + size]
            return part.view(parameter.dtype).view(parameter.shape)
        memory = (ctypes.c_char * size).from_address(self.fusion.gradient(index))
        return torch.frombuffer(memory, dtype=parameter.dtype).view(parameter.shape)

    def attached(self, index):
        gradient = self.parameters[index].grad
        return gradient is not None and gradient.data_ptr() == self.views[index].data_ptr()

    def attach(self, index):
        """The parameter's gradient, whatever it is now, comes into its part of a buffer."""
        gradient, view = self.parameters[index].grad, self.views[index]
        if gradient is None:
            view.zero_()
        elif gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
        else:
            return
        self.parameters[index].grad = view

    def ready(self, index):
        if self.device is not None and not self.begun:
            self.begun = True
            self.stream = _streams.runtime.current(self.device)
            self.fusion.set_stream(_streams.runtime.handle(self.stream))
        if self.device is not None and self.stream != _streams.runtime.current(self.device):
            # Another of autograd's: what is on it comes first.
            _streams.runtime.follow(self.stream, _streams.runtime.current(self.device))
        self.fusion.ready(index)

    def _wait(self):
        """True when the step is done: on a GPU, when the current stream has been made to wait."""
        if self.device is None:
            return self.fusion.wait(_SLICE_MS)
        current = _streams.runtime.current(self.device)
        if self.begun and self.stream != current:
            _streams.runtime.follow(current, self.stream)
        return self.fusion.wait_stream(_streams.runtime.handle(current), _SLICE_MS)

    def wait(self):
        """Until all averages are there; the first time, they are in other buffers than before."""
        end = time.monotonic() + self.member.timeout.total_seconds()
        while not self._wait():
            if time.monotonic() >= end:
                error = errors.TimeoutError(
                    "timed out: the gradients have not been averaged within"
                    f" {self.member.timeout.total_seconds():g} s"
                )
                self.member._fail(error)
                raise error
        self.begun = False
        if self.placed:
            return
        self.placed = True
        attached = [self.attached(index) for index in range(len(self.parameters))]
        self.make_views()
        for index, parameter in enumerate(self.parameters):
            if attached[index]:
                parameter.grad = self.views[index]

    def detach(self):
        """Before the arena goes: gradients that lie in it become ordinary tensors."""
        for index, parameter in enumerate(self.parameters):
            if self.attached(index):
                parameter.grad = parameter.grad.clone()
        self.fusion.free()

    def forget(self):
        """In a forked child, which does not have the arena: nor does it have these gradients."""
        for index, parameter in enumerate(self.parameters):
            if self.attached(index):
                parameter.grad = None
        self.views = []
        self.fusion.handle = None


def _device_of(parameters):
    """The number of the device that all parameters are on; None: in memory."""
    devices = {parameter.device for parameter in parameters}
    if len(devices) > 1:
        raise errors.UnsupportedError(f"parameters on {', '.join(sorted(map(str, devices)))} together")
    return _streams.runtime.device_of(parameters[0])


def _element_type(parameter):
    if parameter.device.type not in ("cpu", "cuda") or parameter.dtype not in _tensors.DTYPES:
        raise errors.UnsupportedError(
            f"a parameter of {parameter.dtype} on {parameter.device}; shoal takes CPU and CUDA"
            f" tensors of {_tensors.known_names()}"
        )
    return _tensors.DTYPES[parameter.dtype]


class DistributedDataParallel(torch.nn.Module):
    """Used instead of torch.nn.parallel.DistributedDataParallel, for a module on the CPU or on one
    CUDA device.

    After backward() each parameter's .grad holds the average over the ranks. Gradients accumulate
    over backward passes inside no_sync(). A parameter that a rank has not used counts as zero
    there; with find_unused_parameters one that no rank has used keeps the .grad that it had, and
    without, where torch's class raises, its .grad is zero.
    The arguments are those of torch's class of any version. What has no meaning here is accepted,
    what asks for something else is refused. With device_ids=[n] forward() moves the inputs of a
    module on a CUDA device to device n.
    """

    def __init__(
        self,
        module,
        device_ids=None,
        output_device=None,
        dim=0,
        broadcast_buffers=True,
        process_group=None,
        bucket_cap_mb=None,
        find_unused_parameters=False,
        check_reduction=False,
        gradient_as_bucket_view=True,
        static_graph=False,
        *,
        init_sync=True,
        **refused,
    ):
        super().__init__()
        for name, value in refused.items():
            if name not in _versions.REFUSED_ARGUMENTS:
                raise TypeError(f"DistributedDataParallel has no argument {name}")
            if value:
                raise errors.UnsupportedError(f"{name}: not with shoal's DistributedDataParallel")
        if len(device_ids or []) > 1:
            raise errors.UnsupportedError("device_ids: shoal takes a module on one device")
        self.module = module
        self.process_group = _our_group(process_group)
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.require_backward_grad_sync = True
        self._trained = [p for p in module.parameters() if p.requires_grad]
        if not self._trained:
            raise errors.InvalidError("the module has no parameter that requires a gradient")
        if init_sync:
            dist._verify_params_across_processes(self.process_group, self._trained, None)
            self._broadcast([t.detach() for t in (*module.parameters(), *module.buffers())])
        bucket_bytes = int((bucket_cap_mb or 0) * 2**20)  # 0: the library's, for both sizes
        self._gradients = _Gradients(self.process_group, self._trained, bucket_bytes)
        self._gradients.member.session.arena_users.add(self)
        self.device_ids = None  # as torch's: a list of one number, never for a module in memory
        if device_ids and self._gradients.device is not None:
            self.device_ids = [torch._utils._get_device_index(device_ids[0], True)]
        self._forward_sync = True
        self._under_way = False  # this backward pass has begun to send
        self._ready = set()
        self._untouched = set()  # parameters that had no .grad before forward() attached one
        self._accumulators = []
        for index, parameter in enumerate(self._trained):
            # The node that adds to .grad; hooks of it run after it has done so.
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(functools.partial(_call_hook, weakref.ref(self), index))
            self._accumulators.append(node)

    def _broadcast(self, tensors):
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # in order, on all ranks
            same = [tensor for tensor in tensors if tensor.dtype == dtype and tensor.numel() > 0]
            if same:
                dist._broadcast_coalesced(self.process_group, same, 250 << 20, 0)

    # --- forward and backward

    def forward(self, *inputs, **named_inputs):
        self._gradients.member.check_not_retired()
        # As torch has it: not after a forward pass without gradients or without averages.
        if self.broadcast_buffers and self._forward_sync:
            self._broadcast(list(self.module.buffers()))
        self._forward_sync = torch.is_grad_enabled() and self.require_backward_grad_sync
        # Without the arena, after the end of the process group or in a forked child, it is as torch's.
        if torch.is_grad_enabled() and self._gradients.fusion.handle is not None:
            for index in range(len(self._trained)):
                self._attach(index)
        if self.device_ids:
            device = torch.device("cuda", self.device_ids[0])
            inputs, named_inputs = _versions.move_inputs(device, inputs, named_inputs)
        return self.module(*inputs, **named_inputs)

    def _on_gradient(self, index):
        """The backward pass has added to a parameter's gradient."""
        self._gradients.attach(index)
        self._untouched.discard(index)
        if not self.require_backward_grad_sync:
            return
        if not self._under_way:
            self._under_way = True
            Variable._execution_engine.queue_callback(self._on_backward_done)
        if index not in self._ready:
            self._ready.add(index)
            self._gradients.ready(index)

    def _on_backward_done(self):
        """All of this rank's gradients are there: wait for the averages."""
        try:
            for index in range(len(self._trained)):
                if index not in self._ready:
                    # Unused in this pass: zero, or what earlier passes have accumulated.
                    self._attach(index)
                    self._gradients.ready(index)
            # Behind all buffers, which ranks begin to send at different times.
            used = self._ask_for_used() if self.find_unused_parameters else None
            self._gradients.wait()
            if used is not None:
                self._forget_unused(*used)
            self._untouched.clear()
        finally:
            self._under_way = False
            self._ready.clear()

    def _attach(self, index):
        if self._trained[index].grad is None:
            self._untouched.add(index)
        self._gradients.attach(index)

    def _ask_for_used(self):
        """Which parameters some rank has used: a tensor and the Work that it is complete with."""
        used = torch.tensor([index not in self._untouched for index in range(len(self._trained))])
        options = c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        return used, self.process_group.allreduce([used], options)

    def _forget_unused(self, used, work):
        """Nobody has used them, and here they had no .grad: they have none again."""
        work.wait()
        for index in self._untouched:
            if not used[index]:
                self._trained[index].grad = None

    @contextlib.contextmanager
    def no_sync(self):
        """Backward passes inside it accumulate gradients on this rank alone."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    # --- the rest

    def register_comm_hook(self, state, hook):
        raise errors.UnsupportedError(
            "shoal.torch.DistributedDataParallel sends gradients from where they lie; take torch's"
            " wrapper for communication hooks"
        )

    def statistics(self):
        """Of the last backward pass: buffers and bytes sent, the time during which one was under
        way (communication_ns), and the part of it that nothing else hid (exposed_ns)."""
        return self._gradients.fusion.statistics()

    def detach(self):
        """Gradients become ordinary tensors, and no more are averaged."""
        self._gradients.detach()

    def forget(self):
        """In a forked child: it has no gradients, and none are averaged."""
        self._gradients.forget()

    def __del__(self):
        gradients = self.__dict__.get("_gradients")
        if gradients is not None and gradients.fusion.handle is not None:
            gradients.detach()


def _call_hook(reference, index, *_):
    # The nodes of the graph outlive the wrapper.
    wrapper = reference()
    if wrapper is not None and wrapper._gradients.fusion.handle is not None:
        wrapper._on_gradient(index)
