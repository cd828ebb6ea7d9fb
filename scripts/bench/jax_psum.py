#!/usr/bin/env python3
"""Measure psum of JAX on CPUs over shoal and over Gloo, by turns. Run it by the Python of scripts/jax-env.sh.

    jax_psum.py [--ranks 2,4] [--turns 5]

A turn is a run of each side, one after the other, and gives the median of 7 means; the table has the median of the
turns, in microseconds, and that of the ratios. Prints Markdown.
"""

import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

SHOALRUN = pathlib.Path(__file__).resolve().parents[2] / "build/bin/shoalrun"
SIDES = {"shoal": ("--as", "jax"), "Gloo": ()}
# Bytes of each process: calls of which a mean is.
SIZES = {8: 200, 1 << 10: 200, 64 << 10: 100, 1 << 20: 20, 16 << 20: 5, 64 << 20: 5}


def rank_main(address):
    import jax
    import numpy as np

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    jax.distributed.initialize(address, size, rank)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    rows = jax.sharding.PartitionSpec("x")
    total = jax.jit(jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=rows,
                                  out_specs=jax.sharding.PartitionSpec()))
    for count, calls in SIZES.items():
        own = np.ones(count // 4, np.float32)
        array = jax.make_array_from_process_local_data(jax.sharding.NamedSharding(mesh, rows), own)
        assert (np.asarray(total(array).addressable_data(0)) == size).all()
        means = []
        for _ in range(7):
            began = time.perf_counter()
            for _ in range(calls):
                total(array).block_until_ready()
            means.append((time.perf_counter() - began) / calls)
        if rank == 0:
            print("MEDIAN", count, statistics.median(means) * 1e6, flush=True)


def run(side, ranks):
    """Return the medians of a side, by size."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{own.getsockname()[1]}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    if side == "Gloo":
        environment["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    command = [SHOALRUN, "-n", str(ranks), "--timeout", "600", *SIDES[side], "--", sys.executable, __file__]
    finished = subprocess.run([*command, "--rank-of", address], env=environment, stdout=subprocess.PIPE, text=True,
                              check=True)
    lines = [line.split()[1:] for line in finished.stdout.splitlines() if line.startswith("MEDIAN ")]
    return {int(size): float(median) for size, median in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4", help="numbers of processes (default: 2,4)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank_main(options.rank_of)
        return
    print("| processes | bytes | shoal, µs | Gloo, µs | shoal / Gloo |\n|---|---|---|---|---|")
    for ranks in map(int, options.ranks.split(",")):
        turns = [{side: run(side, ranks) for side in SIDES} for _ in range(options.turns)]
        for size in SIZES:
            shoal, gloo = ([turn[side][size] for turn in turns] for side in SIDES)
            ratio = statistics.median(a / b for a, b in zip(shoal, gloo, strict=True))
            medians = f"{statistics.median(shoal):.0f} | {statistics.median(gloo):.0f}"
            print(f"| {ranks} | {size} | {medians} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
