"""One rank of a measurement on a GPU that all ranks share (scripts/bench/gpu.py starts them); rank 0
prints a line of JSON."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

WARM_UPS, ITERATIONS = 5, 20


def timed(work, iterations=ITERATIONS):
    """Seconds of one, the device's end of the last included."""
    for _ in range(WARM_UPS):
        work()
    torch.cuda.synchronize()
    dist.barrier()
    start = time.monotonic()
    for _ in range(iterations):
        work()
    torch.cuda.synchronize()
    return (time.monotonic() - start) / iterations


def all_reduce():
    size = dist.get_world_size()
    tensor = torch.ones(16 << 20, device="cuda")
    dist.all_reduce(tensor)
    assert torch.all(tensor == size), "a wrong result"
    tensor.zero_()
    return {"seconds": timed(lambda: dist.all_reduce(tensor))}


def products():
    """A stream of matrix products by rank 0, alone and while all ranks reduce all the time."""
    rank, side = dist.get_rank(), torch.cuda.Stream()
    data = torch.zeros(16 << 20, device="cuda")
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def multiply():
        torch.mm(left, right)

    def events(count):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(count):
            multiply()
        last.record()
        return first, last

    def seconds(pair, count):
        pair[1].synchronize()
        return pair[0].elapsed_time(pair[1]) / 1e3 / count

    count = 400
    if rank == 0:
        for _ in range(20):
            multiply()
        alone = seconds(events(count), count)
    dist.barrier()
    if rank == 0:
        pair = events(count)
    done = False
    while not done:  # all ranks go on as long as rank 0's products do
        with torch.cuda.stream(side):
            work = dist.all_reduce(data, async_op=True)
            work.wait()
        side.synchronize()
        flag = torch.tensor([int(rank != 0 or pair[1].query())])
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        done = bool(flag.item())
    if rank == 0:
        return {"alone": alone, "beside": seconds(pair, count)}
    return {}


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


def step(wrapper):
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

    return {
        "seconds": timed(train, 10),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def ddp(how):
    if how == "alone":  # every rank computes, nothing is exchanged
        return step(lambda model: model)
    if how == "gloo":
        return step(torch.nn.parallel.DistributedDataParallel)
    import shoal.torch

    return step(shoal.torch.DistributedDataParallel)


def main():
    what, backend = sys.argv[1:3]
    import shoal.torch  # noqa: F401

    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group(backend=backend)
    result = {"all_reduce": all_reduce, "products": products}.get(what, lambda: ddp(sys.argv[3]))()
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
