"""All-reduce of f32 through torch.distributed, measured as shoalperf does: on the peer Gloo, or on shoal.

    gloo_ranks.py [--ranks N] [--shoal] WARMUP ITERATIONS BYTES...

With --ranks, N processes on this machine, over loopback; without, one rank of those that
`scripts/cluster.sh run` starts. With --shoal the backend is shoal's: PYTHONPATH has its package. Rank 0
prints {"bytes", "ranks", "time_us"} for each size: the mean over ranks of the mean time of the iterations.
"""
import argparse
import datetime
import json
import os
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist


def size_measure(size_bytes, warmup, iterations):
    """Mean seconds of an all-reduce in place, after a checked one and the warm-up."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = torch.full((size_bytes // 4,), float(rank + 1), dtype=torch.float32)
    dist.all_reduce(data)
    if not bool((data == ranks * (ranks + 1) / 2).all()):
        raise SystemExit(f"rank {rank}: wrong result")
    for _ in range(warmup):
        dist.all_reduce(data)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(data)
    seconds = torch.tensor([(time.perf_counter() - start) / iterations], dtype=torch.float64)
    dist.all_reduce(seconds)
    return float(seconds[0]) / ranks


def rank_run(init, rank, ranks, backend, warmup, iterations, sizes):
    """One rank, from joining to leaving."""
    torch.set_num_threads(1)
    if backend == "shoal":
        import shoal.torch  # noqa: F401 - it registers the name
    dist.init_process_group(backend, init_method=init, rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=120))
    for size_bytes in sizes:
        seconds = size_measure(size_bytes, warmup, iterations)
        if rank == 0:
            print(json.dumps({"bytes": size_bytes, "ranks": ranks, "time_us": seconds * 1e6}),
                  flush=True)
    dist.barrier()
    dist.destroy_process_group()


def ranks_fork(ranks, *what):
    """The ranks as processes of this one, which has loaded torch for all of them."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        children = []
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    rank_run(f"file://{folder}/store", rank, ranks, *what)
                    code = 0
                except BaseException:  # said here, for os._exit says nothing
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            children.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in children]
    return 1 if any(codes) else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--shoal", dest="backend", action="store_const", const="shoal", default="gloo")
    for name in ("warmup", "iterations"):
        parser.add_argument(name, type=int)
    parser.add_argument("sizes", type=int, nargs="+")
    given = parser.parse_args()
    what = (given.backend, given.warmup, given.iterations, given.sizes)
    if given.ranks:
        return ranks_fork(given.ranks, *what)
    rank_run("env://", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), *what)
    return 0


if __name__ == "__main__":
    sys.exit(main())
