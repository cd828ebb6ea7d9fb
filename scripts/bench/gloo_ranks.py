"""The peer Gloo: all-reduce of f32 through torch.distributed, measured as shoalperf does.

    gloo_ranks.py [--ranks N] WARMUP ITERATIONS BYTES...

With --ranks, N processes on this machine, over loopback; without, one rank of those that
`scripts/cluster.sh run` starts. Rank 0 prints {"bytes", "ranks", "time_us"} for each size: the mean
over ranks of the mean time of the iterations.
"""
import datetime
import json
import os
import sys
import tempfile
import time

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


def rank_run(init, rank, ranks, warmup, iterations, sizes):
    """One rank, from joining to leaving."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=ranks,
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
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            children.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in children]
    return 1 if any(codes) else 0


def main(words):
    ranks = 0
    if words and words[0] == "--ranks":
        ranks, words = int(words[1]), words[2:]
    warmup, iterations, *sizes = map(int, words)
    if ranks:
        return ranks_fork(ranks, warmup, iterations, sizes)
    rank_run("env://", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), warmup, iterations,
             sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
