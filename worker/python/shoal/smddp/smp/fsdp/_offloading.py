"""Activation offloading with prefetch: what torch's OffloadWrapper does while sm_activation_offloading is on.

torch's own copies each activation to the host in the forward pass, and back when the backward pass asks for it:
the GPU waits for every one. Here the copies go on beside the computation. Activations come in groups, one for
each layer under an activation checkpoint (its inputs are what is left to keep); at most
activation_loading_horizon groups are on the device:

    forward    a group goes to the host when as many later ones have begun; the last ones stay
    backward   when a group is asked for, the ones before it are fetched

Tensors that are on the CPU anyway are kept as they are. A tensor that has been changed in place since the forward pass
is an error in the backward pass, as it is without offloading: where hooks keep tensors, torch leaves that to them.
"""

import functools
import weakref

import torch
from torch.autograd.graph import saved_tensors_hooks


def install(state):
    """Let OffloadWrapper ask `state` from now on; and CheckpointWrapper say where a layer begins."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, OffloadWrapper

    offload, layer = OffloadWrapper, CheckpointWrapper
    if hasattr(offload.forward, "shoal_original"):
        return
    own_forward, layer_forward = offload.forward, layer.forward
    under_way = []  # the Offloading of the forward pass that is under way, innermost last

    @functools.wraps(own_forward)
    def forward(self, *given, **named):
        if not (state.is_initialized and state.sm_activation_offloading):
            return own_forward(self, *given, **named)
        offloading = Offloading(state.activation_loading_horizon, CudaCopies())
        under_way.append(offloading)
        try:
            with saved_tensors_hooks(offloading.pack, offloading.unpack):
                return self._checkpoint_wrapped_module(*given, **named)
        finally:
            under_way.pop()
            offloading.end_forward()

    @functools.wraps(layer_forward)
    def forward_layer(self, *given, **named):
        if under_way:
            under_way[-1].begin_group()
        return layer_forward(self, *given, **named)

    forward.shoal_original, forward_layer.shoal_original = own_forward, layer_forward
    offload.forward, layer.forward = forward, forward_layer


class Offloading:
    """The activations of one forward pass. copies: moves tensors (CudaCopies)."""

    def __init__(self, horizon, copies):
        self.horizon, self.copies = horizon, copies
        # Weak references to each group's _Kept, which are the graph's: what it is done with is gone.
        self.groups = [[]]
        self._kept = {}  # id of a tensor -> (its weak reference, its _Kept): one that is saved twice is kept once

    def begin_group(self):
        """Begin the group of the next layer: tensors that are saved from now on belong to it."""
        if self.groups[-1]:
            self.groups.append([])
            if len(self.groups) > self.horizon:
                for kept in _alive(self.groups[-1 - self.horizon]):
                    kept.put_away(self.copies)

    def end_forward(self):
        self._kept.clear()

    def pack(self, tensor):
        """For saved_tensors_hooks."""
        if isinstance(tensor, torch.nn.Parameter) or not self.copies.has(tensor):
            return _Same(tensor)
        reference, kept = self._kept.get(id(tensor), (None, None))
        if reference is None or reference() is not tensor or kept.version.has_changed():
            kept = _Kept(tensor, len(self.groups) - 1)
            self._kept[id(tensor)] = (weakref.ref(tensor), kept)
            self.groups[-1].append(weakref.ref(kept))
        return kept

    def unpack(self, packed):
        """For saved_tensors_hooks."""
        packed.version.check()
        if isinstance(packed, _Same):
            return packed.tensor
        first = max(0, packed.group - self.horizon + 1)
        for group in self.groups[packed.group + 1 :]:
            for kept in _alive(group):
                kept.drop()
        for group in reversed(self.groups[first : packed.group + 1]):
            for kept in _alive(group):
                kept.fetch(self.copies)
        return packed.take(self.copies)


def _alive(references):
    return [kept for kept in (reference() for reference in references) if kept is not None]


class _Version:
    """How often a tensor had been changed in place when it was packed, and by its counter, how often now."""

    def __init__(self, tensor):
        self.packed, self.kind, self.shape = tensor._version, tensor.type(), list(tensor.shape)
        self._counter = None  # a tensor of several, as torch.distributed.tensor has them, is not watched
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):
            self._counter = tensor.detach()
            self._counter.data = tensor.detach().new_empty(0)  # keeps the counter, and not the memory

    def has_changed(self):
        return self._counter is not None and self._counter._version != self.packed

    def check(self):
        """Raises torch's error."""
        if self.has_changed():
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self.kind} {self.shape}] is at version {self._counter._version}; expected version {self.packed} "
                "instead. torch.autograd.set_detect_anomaly(True) finds the operation that needs it"
            )


class _Same:
    """A saved tensor that stays where it is."""

    def __init__(self, tensor):
        self.tensor, self.version = tensor, _Version(tensor)


class _Kept:
    """One activation: on the device, on the host, or, while the host has it, on both."""

    def __init__(self, tensor, group):
        self.group, self.version = group, _Version(tensor)
        # Not the tensor itself, which may be an output that would keep its graph alive.
        self.on_device, self.on_host = tensor.detach(), None

    def put_away(self, copies):
        if self.on_host is None:
            if _is_taken_back(self.on_device):
                return  # a parameter that FSDP has taken back, and gives again before the backward pass
            self.on_host = copies.to_host(self.on_device)
        self.on_device = None

    def fetch(self, copies):
        if self.on_device is None:
            self.on_device = copies.to_device(self.on_host)

    def drop(self):
        """The backward pass is past it; it stays on the host for another one."""
        if self.on_host is not None:
            self.on_device = None

    def take(self, copies):
        return copies.wait(self.on_device)


def _is_taken_back(tensor):
    return tensor.untyped_storage().size() == 0


class CudaCopies:
    """Copies between a GPU and pinned memory, on streams of their own."""

    def __init__(self):
        self._streams = {}  # device -> stream

    def has(self, tensor):
        return tensor.is_cuda and not tensor.is_sparse

    def _stream(self, device):
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def to_host(self, tensor):
        """(host tensor, device, the copy's event). The copy comes after what has been asked of the GPU."""
        stream = self._stream(tensor.device)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(stream)  # its memory is not given to others before the copy is done
            return host, tensor.device, stream.record_event()

    def to_device(self, hosted):
        """(device tensor, the copy's event)"""
        host, device, stored = hosted
        stream = self._stream(device)
        with torch.cuda.stream(stream):
            stream.wait_event(stored)
            tensor = torch.empty(host.shape, dtype=host.dtype, device=device)
            tensor.copy_(host, non_blocking=True)
            return tensor, stream.record_event()

    def wait(self, on_device):
        """The tensor, for the stream that computes."""
        if isinstance(on_device, torch.Tensor):
            return on_device
        tensor, fetched = on_device
        current = torch.cuda.current_stream(tensor.device)
        current.wait_event(fetched)
        tensor.record_stream(current)
        return tensor
