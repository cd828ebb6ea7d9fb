"""A rank that measures what collectives cost through torch.distributed, for torch_calls.py.

    torch_ranks.py BACKEND [WHAT BYTES ITERATIONS]...

WHAT is a collective, "async" (100 all-reduces and their waits, for each of them), or a training step:
"ddp", "fsdp", "alone", or "wrapped": DDP's without communication, what the wrapper itself costs. Rank 0
prints a line of JSON for each: the median over rounds of the mean time of a call, and of the processor
time, in microseconds: the calling thread's of a call, of all of the rank's threads of a step.
"""

import datetime
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

ROUNDS = 5
ASYNC = 100
BUCKET_MIB = 0.02
STEPS = ("alone", "wrapped", "ddp", "fsdp")


def calls_of(name, size_bytes, ranks):
    """The call of this collective whose large buffer has so many bytes."""
    whole = max(ranks, size_bytes // 4 // ranks * ranks)
    one = torch.ones(max(1, size_bytes // 4))
    if name == "all_reduce":
        return lambda: dist.all_reduce(one)
    if name == "broadcast":
        return lambda: dist.broadcast(one, 0)
    if name == "reduce":
        return lambda: dist.reduce(one, 0)
    if name == "barrier":
        return dist.barrier
    large, part = torch.ones(whole), torch.ones(whole // ranks)
    if name == "all_gather":
        parts = list(large.chunk(ranks))
        return lambda: dist.all_gather(parts, part)
    if name == "all_gather_into_tensor":
        return lambda: dist.all_gather_into_tensor(large, part)
    if name == "reduce_scatter_tensor":
        return lambda: dist.reduce_scatter_tensor(part, large)
    if name == "all_to_all_single":
        other = torch.ones(whole)
        return lambda: dist.all_to_all_single(other, large)
    raise SystemExit(f"no collective {name}")


def measure(call, iterations, processor_clock=time.thread_time):
    """(median time of a call, of its processor time) in us."""
    for _ in range(max(2, iterations // 10)):
        call()
    times, processor = [], []
    for _ in range(ROUNDS):
        dist.barrier()
        began, spent = time.perf_counter(), processor_clock()
        for _ in range(iterations):
            call()
        times.append((time.perf_counter() - began) / iterations * 1e6)
        processor.append((processor_clock() - spent) / iterations * 1e6)
    return statistics.median(times), statistics.median(processor)


def many_at_once(size_bytes):
    tensors = [torch.ones(size_bytes // 4) for _ in range(ASYNC)]

    def call():
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return call


def keep_gradients(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def step_of(kind):
    """A training step of 200 small layers; kind: one of STEPS."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(200)))
    if kind in ("ddp", "wrapped"):
        # Small buckets: many collectives, as a large model has. torch 1.13 has one size for the first bucket,
        # which would hold the whole model.
        dist._DEFAULT_FIRST_BUCKET_BYTES = int(BUCKET_MIB * (1 << 20))
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=BUCKET_MIB)
    if kind == "wrapped":
        model.register_comm_hook(None, keep_gradients)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    inputs = torch.ones(4, 32)

    def step():
        model(inputs).sum().backward()
        model.zero_grad()

    return step


def say(what, size_bytes, figures):
    if dist.get_rank() == 0:
        time_us, processor_us = figures
        print(json.dumps({"what": what, "bytes": size_bytes, "time_us": time_us, "cpu_us": processor_us}))
        sys.stdout.flush()


def main(backend, cases):
    if backend == "shoal":
        import shoal.torch  # noqa: F401
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = f"file://{os.environ['BENCH_STORE']}"
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks, timeout=limit)
    for what, size_bytes, iterations in zip(*[iter(cases)] * 3):
        size_bytes, iterations = int(size_bytes), int(iterations)
        if what == "async":
            time_us, processor_us = measure(many_at_once(size_bytes), iterations)
            figures = time_us / ASYNC, processor_us / ASYNC
        elif what in STEPS:
            figures = measure(step_of(what), iterations, time.process_time)
        else:
            figures = measure(calls_of(what, size_bytes, ranks), iterations)
        say(what, size_bytes, figures)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
