#!/usr/bin/env python3
"""Measure the device path on a host with a GPU, beside plain copies and torch's gloo: a table in
Markdown. Where there is no GPU, or no torch with CUDA, rows are skipped with the reason.

    gpu.py [--pairs N] [--strict] [FOLDER]    FOLDER: a build tree or a bundle

The exit status is 1 when a row failed, with --strict also when a target is not reached.
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import sys

import peers
import rows

HERE = pathlib.Path(__file__).resolve().parent
SIZE = 64 << 20


class Host:
    def __init__(self, folder, pairs):
        self.folder = pathlib.Path(folder).resolve()
        self.pairs = pairs
        package = self.folder / "python"
        if not package.exists():
            package = HERE.parents[1] / "worker" / "python"
        self.environment = {
            "SHOAL_LIBRARY": str(self.folder / "lib" / "libshoal.so"),
            "PYTHONPATH": str(package),
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def under_shoalrun(self, ranks, *command):
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        limit_s = peers.TIMEOUT_S - 60
        whole = ["env", *variables, self.folder / "bin" / "shoalrun", "--timeout", limit_s, "-n", ranks]
        return [str(word) for word in (*whole, "--", *command)]

    def run(self, ranks, *command):
        """Return the last line of JSON that a command under shoalrun prints."""
        said = peers.run(self.under_shoalrun(ranks, *command))
        if not said:
            raise peers.Failed(f"{' '.join(map(str, command))}: it says nothing")
        return said[-1]

    def turns(self, ranks, what):
        """{way: seconds of each turn}, of rank 0."""
        return self.run(ranks, sys.executable, HERE / "gpu_ranks.py", what, self.pairs)

    def copies_s(self):
        program = next(
            (p for p in (self.folder / part / "bench_gpu_copy" for part in ("bench", "bin")) if p.exists()),
            None,
        )
        if program is None:
            raise peers.Missing("bench_gpu_copy is not built")
        done = subprocess.run(
            [program, str(SIZE)], stdout=subprocess.PIPE, check=True, timeout=peers.TIMEOUT_S
        )
        return float(done.stdout) / 1e6

    def why_not(self):
        """Why there is no device to measure; None: there is one, or something is wrong."""
        words = ["all_reduce", "-b", "4", "-n", "1", "--device", "cuda"]
        done = subprocess.run(
            self.under_shoalrun(1, self.folder / "bin" / "shoalperf", *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=peers.TIMEOUT_S,
        )
        reasons = "no CUDA driver|process has 0|ERROR_NO_DEVICE"
        known = re.search(rf"GPU \d+.*({reasons}).*", done.stdout) if done.returncode else None
        return known and known.group(0)


def has_torch():
    probe = "import torch, torch.distributed as d; assert d.is_available() and torch.cuda.is_available()"
    if subprocess.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL).returncode != 0:
        raise peers.Missing(f"{sys.executable} has no torch with CUDA")


def median_ratio(seconds, over, under):
    return statistics.median(rows.divided(seconds[over], seconds[under]))


def medians(seconds):
    return {way: statistics.median(values) for way, values in seconds.items()}


def arena_row(host):
    """One rank: every iteration is 64 MiB out of the GPU and 64 MiB into it, in a pipeline."""

    def ours():
        words = ["all_reduce", "--in-place", "-b", "64M", "--device", "cuda", "--json", "--check", "0"]
        return host.run(1, host.folder / "bin" / "shoalperf", *words)["time_us"] / 1e6

    seconds = rows.by_turns(host.pairs, "seconds", ours=ours, plain=host.copies_s)
    median, ratio = medians(seconds), median_ratio(seconds, "plain", "ours")
    return (
        f"{SIZE / median['ours'] / 1e9:.1f} GB/s each way, "
        f"plain copies {SIZE / median['plain'] / 1e9:.1f}: {ratio:.2f}",
        ratio >= 0.9,
    )


def products_row(host):
    has_torch()
    seconds = host.turns(2, "products")
    slower, copies = (100 * (median_ratio(seconds, way, "alone") - 1) for way in ("shoal", "copies"))
    return (
        f"{medians(seconds)['alone'] * 1e3:.2f} ms each alone; slowed by {slower:.1f} %, "
        f"by plain copies as fast as they go by {copies:.1f} %",
        slower <= 2,
    )


def all_reduce_row(ranks):
    def measure(host):
        has_torch()
        seconds = host.turns(ranks, "all_reduce")
        median, ratio = medians(seconds), median_ratio(seconds, "gloo", "shoal")
        return (
            f"{median['shoal'] * 1e3:.2f} ms, gloo {median['gloo'] * 1e3:.2f} ms: {ratio:.1f} times as fast",
            ratio >= 5,
        )

    return measure


def ddp_row(host):
    has_torch()
    seconds = host.turns(2, "ddp")
    median, ratios = medians(seconds), {way: median_ratio(seconds, way, "alone") for way in seconds}
    names = (("shoal", "shoal's wrapper"), ("torch", "torch's on shoal"), ("gloo", "on gloo"))
    there = [(way, name) for way, name in names if way in median]
    ways = "; ".join(f"{name} {median[way] * 1e3:.0f} ms: {ratios[way]:.2f}" for way, name in there)
    return f"{median['alone'] * 1e3:.0f} ms alone; {ways}", ratios["shoal"] <= 1.15


ROWS = [
    ("out of and into the GPU through the arena, 64 MiB, both ways at once", "0.9 of plain pinned copies", arena_row),
    ("8192-cubed bf16 products while all-reduces run", "slowed by at most 2 %", products_row),
    ("all-reduce of 64 MiB f32 CUDA tensors, 2 ranks", "5 times gloo", all_reduce_row(2)),
    ("all-reduce of 64 MiB f32 CUDA tensors, 4 ranks", "5 times gloo", all_reduce_row(4)),
    ("DDP step, 350 M parameters, bf16, 2 ranks", "1.15 of the step alone", ddp_row),
]


def default_folder():
    """The bundle that this file is in, or the tree's build."""
    top = HERE.parents[1]
    return top if (top / "bin").exists() else top / "build"


def table_print(host, strict):
    """Row after row; the exit status."""
    bad = False
    print("| what | to reach | measured | |\n|---|---|---|---|", flush=True)
    for what, target, measure in ROWS:
        verdict = ""
        try:
            text, reached = measure(host)
            verdict = "reached" if reached else "MISSED"
            bad = bad or (strict and not reached)
        except peers.Missing as why:
            text = f"skipped: {why}"
        except Exception as error:  # whatever it is: the other rows are measured
            text = "failed: " + " ".join(str(error).split() or [repr(error)])
            bad = True
        print(f"| {what} | {target} | {text} | {verdict} |", flush=True)
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=default_folder())
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    host = Host(options.folder, options.pairs)
    reason = host.why_not()
    if reason:
        print(f"SKIP bench-gpu: {reason}")
        return 0
    return table_print(host, options.strict)


if __name__ == "__main__":
    sys.exit(main())
