"""torch.cuda, as far as the backend needs it: one small class, so that tests can put another in
for it where there is no GPU.

The order of things is nccl's. A collective is in the order of the stream that is current when it is
called. Its end comes onto a stream of its group's, or of the sends to a rank or the receives from
one, with what must follow it (copies into tensors that are laid out otherwise); wait() makes the
current stream wait for that, and never the host.
"""

import torch


class Cuda:
    """Streams are torch.cuda.Stream objects, devices their numbers."""

    def device_of(self, tensor):
        """The number of the tensor's device; None: it is in memory."""
        return tensor.device.index if tensor.device.type == "cuda" else None

    def current(self, device):
        return torch.cuda.current_stream(device)

    def make(self, device):
        """One that waits for collectives. Streams of one priority share the device's queues: with that of
        computation it could hold that up."""
        return torch.cuda.Stream(device, priority=-1)

    def handle(self, stream):
        return stream.cuda_stream

    def using(self, stream):
        """A context in which torch's work goes onto the stream."""
        return torch.cuda.stream(stream)

    def event(self, stream):
        """Return an event that stands for what is on the stream by now."""
        return stream.record_event()

    def join(self, device, event):
        """Let the current stream wait for the event before what comes onto it next."""
        torch.cuda.current_stream(device).wait_event(event)

    def record(self, tensor, stream):
        """The tensor's memory is used on the stream: the allocator must not give it away before."""
        tensor.record_stream(stream)

    def future(self, device):
        return torch.futures.Future(devices=[torch.device("cuda", device)])

    def complete(self, future, stream, value):
        """At once; the current stream of who waits for it waits for what is on the stream by now. torch has that
        only of the devices of the value's tensors: a future that is completed with none is waited for by nobody."""
        with torch.cuda.stream(stream):
            future.set_result(value)


runtime = Cuda()
