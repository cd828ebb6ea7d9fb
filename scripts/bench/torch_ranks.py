"""A rank that measures what collectives cost through torch.distributed, for torch_calls.py.

    torch_ranks.py BACKEND [WHAT BYTES]...

WHAT is a collective, "nothing" (an all-reduce of torch's backend "fake": what torch and Python themselves
take), "async" (100 all-reduces and their waits, for each of them), or a training step:
"ddp", "fsdp", "alone", or "wrapped": DDP's without communication, what the wrapper itself costs. Rank 0 prints a line
of JSON for each: the median over rounds of the mean time of a call, and of the processor time, in microseconds: the
calling thread's of a call, of all of the rank's threads of a step. Measures that this torch or backend does not have
are left out.
"""

import datetime
import functools
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

ROUNDS = 3
ROUND_S = 0.05  # as many calls as fit, at least one
MOST_CALLS = 300
ASYNC = 100
BUCKET_MIB = 0.02
STEPS = ("alone", "wrapped", "ddp", "fsdp")
LEAST_STEPS = 3


def calls_of(name, size_bytes, ranks):
    """The call of this collective whose large buffer has so many bytes."""
    whole = max(ranks, size_bytes // 4 // ranks * ranks)
    one = torch.ones(max(1, size_bytes // 4))
    root = dist.get_rank() == 0
    if name == "all_reduce":
        return lambda: dist.all_reduce(one)
    if name == "broadcast":
        return lambda: dist.broadcast(one, 0)
    if name == "reduce":
        return lambda: dist.reduce(one, 0)
    if name == "barrier":
        return dist.barrier
    large, part = torch.ones(whole), torch.ones(whole // ranks)
    parts = list(large.chunk(ranks))
    if name == "all_gather":
        return lambda: dist.all_gather(parts, part)
    if name == "gather":
        return lambda: dist.gather(part, parts if root else None, 0)
    if name == "scatter":
        return lambda: dist.scatter(part, parts if root else None, 0)
    if name == "all_gather_into_tensor":
        return lambda: dist.all_gather_into_tensor(large, part)
    if name == "reduce_scatter_tensor":
        return lambda: dist.reduce_scatter_tensor(part, large)
    if name == "all_to_all_single":
        other = torch.ones(whole)
        return lambda: dist.all_to_all_single(other, large)
    raise SystemExit(f"no collective {name}")


def calls_that_fit(call, least):
    """How many of these calls make a round, on all ranks; they have been warmed up then."""
    call()
    began = time.perf_counter()
    call()
    spent = time.perf_counter() - began
    count = torch.tensor(max(least, min(MOST_CALLS, int(ROUND_S / max(spent, 1e-6)))))
    dist.broadcast(count, 0)
    for _ in range(int(count) // 10):
        call()
    return int(count)


def measure(call, least=1, processor_clock=time.thread_time):
    """(median time of a call, of its processor time) in us."""
    count = calls_that_fit(call, least)
    times, processor = [], []
    for _ in range(ROUNDS):
        dist.barrier()
        began, spent = time.perf_counter(), processor_clock()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - began) / count * 1e6)
        processor.append((processor_clock() - spent) / count * 1e6)
    return statistics.median(times), statistics.median(processor)


def measure_nothing(size_bytes):
    """On torch's own backend that does nothing."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 - it registers its name

    group, tensor = dist.new_group(backend="fake"), torch.ones(size_bytes // 4)
    return measure(lambda: dist.all_reduce(tensor, group=group))


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
        # Small buckets: many collectives, as a large model has; the first one's size is another.
        dist._DEFAULT_FIRST_BUCKET_BYTES = int(BUCKET_MIB * (1 << 20))
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=BUCKET_MIB)
    if kind == "wrapped":
        model.register_comm_hook(None, keep_gradients)
    if kind == "fsdp":
        # Not fully_shard: with torch 2.6 it wants a GPU's streams when it trains.
        from torch.distributed.fsdp import FullyShardedDataParallel

        shard = functools.partial(FullyShardedDataParallel, device_id=torch.device("cpu"))
        model = shard(torch.nn.Sequential(*map(shard, model)))
    inputs = torch.ones(4, 32)

    def step():
        model(inputs).sum().backward()
        model.zero_grad()

    return step


def figures_of(what, size_bytes):
    if what == "async":
        return [figure / ASYNC for figure in measure(many_at_once(size_bytes))]
    if what == "nothing":
        return measure_nothing(size_bytes)
    if what in STEPS:
        return measure(step_of(what), LEAST_STEPS, time.process_time)
    return measure(calls_of(what, size_bytes, dist.get_world_size()))


def main(backend, cases):
    if backend == "shoal":
        import shoal.torch  # noqa: F401
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = f"file://{os.environ['BENCH_STORE']}"
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks, timeout=limit)
    for what, size_bytes in zip(*[iter(cases)] * 2):
        time_us, processor_us = figures_of(what, int(size_bytes))
        if rank == 0:
            said = {"what": what, "bytes": int(size_bytes), "time_us": time_us, "cpu_us": processor_us}
            print(json.dumps({**said, "torch": torch.__version__}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
