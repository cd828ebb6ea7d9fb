"""One rank of a measurement on a GPU that all ranks share (scripts/bench/gpu.py starts them); rank 0
prints a line of JSON: the seconds of each way, in lists. The ways take turns in one process."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

WARM_UPS, ITERATIONS = 3, 10


def timed(group, work, warm_ups, iterations):
    """Seconds of one, the device's end of the last included."""
    for _ in range(warm_ups):
        work()
    torch.cuda.synchronize()
    dist.barrier(group)
    start = time.monotonic()
    for _ in range(iterations):
        work()
    torch.cuda.synchronize()
    return (time.monotonic() - start) / iterations


def by_turns(pairs, group, ways, warm_ups=WARM_UPS, iterations=ITERATIONS):
    seconds, names = {name: [] for name in ways}, list(ways)
    for pair in range(pairs):
        first = pair % len(names)  # each pair begins with another
        for name in names[first:] + names[:first]:
            seconds[name].append(timed(group, ways[name], warm_ups, iterations))
    return seconds


def all_reduce(pairs, ours, gloo):
    tensor, size = torch.ones(16 << 20, device="cuda"), dist.get_world_size()
    for group in (ours, gloo):
        tensor.fill_(1)
        dist.all_reduce(tensor, group=group)
        assert torch.all(tensor == size), "a wrong result"
    tensor.zero_()
    ways = {
        "shoal": lambda: dist.all_reduce(tensor, group=ours),
        "gloo": lambda: dist.all_reduce(tensor, group=gloo),
    }
    return by_turns(pairs, ours, ways)


class Products:
    """A stream of matrix products, in milliseconds of the device each."""

    COUNT = 300

    def __init__(self):
        self._left, self._right = (
            torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2)
        )
        self._product = torch.empty_like(self._left)
        self.begin()[1].synchronize()

    def begin(self):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(self.COUNT):
            torch.mm(self._left, self._right, out=self._product)
        last.record()
        return first, last

    def seconds(self, events):
        events[1].synchronize()
        return events[0].elapsed_time(events[1]) / 1e3 / self.COUNT


class PlainCopies:
    """Copies by torch itself that move the same bytes as an all-reduce."""

    def __init__(self, count):
        self._streams = [torch.cuda.Stream() for _ in range(2)]
        self._pinned = [torch.zeros(count).pin_memory() for _ in range(2)]
        self._device = [torch.zeros(count, device="cuda") for _ in range(2)]

    def once(self):
        with torch.cuda.stream(self._streams[0]):
            self._pinned[0].copy_(self._device[0], non_blocking=True)
        with torch.cuda.stream(self._streams[1]):
            self._device[1].copy_(self._pinned[1], non_blocking=True)
        for stream in self._streams:
            stream.synchronize()


def products(pairs, ours, _gloo):
    """Rank 0's products alone, beside plain copies, and while it reduces with ranks whose tensors are in memory:
    they stand for those that have a GPU of their own."""
    rank, count, side = dist.get_rank(), 16 << 20, torch.cuda.Stream()
    data = torch.zeros(count, device="cuda" if rank == 0 else "cpu")
    seconds = {"alone": [], "copies": [], "shoal": []}
    if rank == 0:
        stream_of_products, copies = Products(), PlainCopies(count)
    for _ in range(pairs):
        if rank == 0:
            seconds["alone"].append(stream_of_products.seconds(stream_of_products.begin()))
            events = stream_of_products.begin()
            while not events[1].query():
                copies.once()
            seconds["copies"].append(stream_of_products.seconds(events))
            events = stream_of_products.begin()
        done = False
        while not done:  # all ranks go on as long as rank 0's products do
            with torch.cuda.stream(side):
                dist.all_reduce(data, group=ours)
            side.synchronize()
            flag = torch.tensor([int(rank != 0 or events[1].query())])
            dist.all_reduce(flag, dist.ReduceOp.MIN, group=ours)
            done = bool(flag.item())
        if rank == 0:
            seconds["shoal"].append(stream_of_products.seconds(events))
    return seconds


class Model(torch.nn.Module):
    """A transformer of 350 million parameters."""

    def __init__(self, width=1024, layers=24, heads=16, words=50304, length=512):
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.position = torch.nn.Parameter(torch.zeros(length, width))
        layer = torch.nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, text):
        return self.head(self.layers(self.embedding(text) + self.position))


def trainer(wrapper):
    torch.manual_seed(1)
    model = Model().cuda().to(torch.bfloat16)
    wrapped = wrapper(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    text = torch.randint(0, 50304, (8, 512), device="cuda")

    def train():
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.cross_entropy(wrapped(text).flatten(0, 1).float(), text.flatten())
        loss.backward()
        optimizer.step()

    return train


def ddp(pairs, ours, gloo):
    """A step alone (every rank computes, nothing is exchanged), with shoal's wrapper, torch's on shoal, and on gloo."""
    import shoal.torch

    torchs = torch.nn.parallel.DistributedDataParallel
    ways = {
        "alone": trainer(lambda model: model),
        "shoal": trainer(lambda model: shoal.torch.DistributedDataParallel(model, process_group=ours)),
        "torch": trainer(lambda model: torchs(model, process_group=ours, gradient_as_bucket_view=True)),
    }
    try:
        ways["gloo"] = trainer(lambda model: torchs(model, process_group=gloo, gradient_as_bucket_view=True))
    except RuntimeError:
        pass  # this torch's gloo has no bfloat16
    return by_turns(pairs, ours, ways, 2, 4)


def main():
    what, pairs = sys.argv[1], int(sys.argv[2])
    import shoal.torch  # noqa: F401

    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("gloo")
    ours, gloo = dist.new_group(backend="shoal"), dist.new_group(backend="gloo")
    seconds = {"all_reduce": all_reduce, "products": products, "ddp": ddp}[what](pairs, ours, gloo)
    dist.barrier(ours)
    if dist.get_rank() == 0:
        print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
