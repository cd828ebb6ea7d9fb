#!/usr/bin/env python3
"""Measure what collectives cost through torch: the native backend, the one in Python and Gloo by turns,
with shoalperf beside them. Prints a table in Markdown.

    torch_calls.py [--build BUILD] [--pairs N] [--seconds S] [--ranks 2,4] [--quick] [--fsdp]

--quick: few sizes and all_reduce only. --fsdp: also FSDP's step, which needs torch 2. --seconds: after so
many no further pair begins, for each number of ranks. Each pair is one run of each side, with processes
of its own; figures are medians over pairs, in microseconds.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import peers

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
KIB, MIB = 1 << 10, 1 << 20
SMALL = [4, 4 * KIB, 64 * KIB]
SIZES = [4, 256, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 16 * MIB, 64 * MIB]
COLLECTIVES = ["broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor",
               "all_to_all_single"]


def iterations_of(size_bytes):
    return max(3, min(300, 16 * MIB // max(1, size_bytes)))


def cases_of(options):
    sizes = SMALL if options.quick else SIZES
    cases = [("all_reduce", size) for size in sizes]
    if not options.quick:
        cases += [(name, size) for name in COLLECTIVES for size in sizes]
        cases.append(("barrier", 0))
    cases += [("async", 4 * KIB), ("ddp", 0)]
    return cases + ([("fsdp", 0)] if options.fsdp else [])


def words_of(cases):
    steps = {"async": 5, "ddp": 5, "fsdp": 5, "alone": 5, "wrapped": 5}
    return [str(word) for what, size in cases for word in (what, size, steps.get(what) or iterations_of(size))]


class Sides:
    def __init__(self, options):
        self.build = pathlib.Path(options.build).resolve()

    def torch(self, ranks, backend, cases, native=""):
        """{(what, bytes): (time, processor time)}"""
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            environment = {
                "PYTHONPATH": TREE / "worker" / "python", "SHOAL_LIBRARY": self.build / "lib" / "libshoal.so",
                "SHOAL_NATIVE": native, "BENCH_STORE": f"{folder}/store", "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": 1, "USE_LIBUV": 0,
            }
            command = ["env", "-u", "SHOAL_SOCKET", *(f"{k}={v}" for k, v in environment.items()),
                       self.build / "bin" / "shoalrun", "--timeout", peers.TIMEOUT_S - 60, "-n", ranks, "--",
                       sys.executable, "-B", HERE / "torch_ranks.py", backend, *words_of(cases)]
            said = peers.run([str(word) for word in command])
        return {(row["what"], row["bytes"]): (row["time_us"], row["cpu_us"]) for row in said}

    def shoalperf(self, ranks, sizes):
        """{bytes: us} of an all-reduce, in place, as torch's is."""
        measured = {}
        for size in sizes:
            case = peers.Case([size], 10, iterations_of(size))
            command = peers.Tools(self.build).shoal(ranks, case, ("--in-place", "--check", "0"))
            measured[size] = peers.times(peers.run(command))[size] * 1e6
        return measured


def median(sides, key, column):
    return statistics.median(side[key][column] for side in sides)


def row(cells):
    print("| " + " | ".join(cells) + " |")


def table(ranks, cases, measured):
    print(f"\n{ranks} ranks\n")
    row(["what", "bytes", "native us", "its cpu us", "python us", "its cpu us", "gloo us", "gloo / native", "native / shoalperf"])
    row(["---"] * 9)
    for key in cases:
        native, python = measured["native"], measured["python"]
        cells = [key[0], str(key[1]), *(f"{median(side, key, i):.1f}" for side in (native, python) for i in (0, 1))]
        gloo = measured["gloo"] if all(key in side for side in measured["gloo"]) else None
        cells += [f"{median(gloo, key, 0):.1f}" if gloo else "",
                  f"{statistics.median(g[key][0] / n[key][0] for g, n in zip(gloo, native)):.2f}" if gloo else ""]
        perf = measured["shoalperf"]
        cells.append(f"{statistics.median(n[key][0] / p[key[1]] for n, p in zip(native, perf)):.2f}"
                     if key[0] == "all_reduce" else "")
        row(cells)
    say_steps([key for key in cases if key[0] in ("ddp", "fsdp")], measured)


def say_steps(steps, measured):
    """What communication adds to a step: its time, and the processor time of all of a rank's threads."""
    alone, wrapped = [[median(measured["alone"], (what, 0), i) for i in (0, 1)] for what in ("alone", "wrapped")]
    print(f"\nA step alone takes {alone[0]:.0f} us, in DDP without communication {wrapped[0]:.0f} us.")
    for key in steps:
        added = {side: [median(measured[side], key, i) - alone[i] for i in (0, 1)] for side in ("native", "python")}
        shares = [added["native"][i] / added["python"][i] for i in (0, 1)]
        print(f"What {key[0]} adds, native over python: {shares[0]:.2f} of the time, {shares[1]:.2f} of processor time.")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=str(TREE / "build"))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fsdp", action="store_true")
    options = parser.parse_args()
    cases, sides = cases_of(options), Sides(options)
    gloo_cases = [case for case in cases if case[0] not in ("reduce_scatter_tensor", "all_to_all_single", "fsdp")]
    sizes = sorted({size for what, size in cases if what == "all_reduce"})
    for ranks in map(int, options.ranks.split(",")):
        measured = {side: [] for side in ("native", "python", "gloo", "shoalperf", "alone")}
        runs = {
            "native": lambda: sides.torch(ranks, "shoal", cases, "1"),
            "python": lambda: sides.torch(ranks, "shoal", cases, "0"),
            "gloo": lambda: sides.torch(ranks, "gloo", gloo_cases),
            "shoalperf": lambda: sides.shoalperf(ranks, sizes),
            "alone": lambda: sides.torch(1, "gloo", [("alone", 0), ("wrapped", 0)]),
        }
        end = time.monotonic() + options.seconds
        for pair in range(options.pairs):
            if pair > 0 and time.monotonic() > end:
                break
            order = list(runs)
            for side in order[pair % len(order):] + order[:pair % len(order)]:
                peers.progress(f"  {ranks} ranks, pair {pair + 1} of {options.pairs}, now: {side}")
                measured[side].append(runs[side]())
            peers.say(f"  {ranks} ranks, pair {pair + 1} of {options.pairs}")
        table(ranks, cases, measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
