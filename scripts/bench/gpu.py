#!/usr/bin/env python3
"""Measure the device path on a host with a GPU, beside plain copies and torch's gloo: a table in
Markdown. Where there is no GPU, or no torch with CUDA, rows are skipped with the reason.

    gpu.py FOLDER    a build tree or a bundle
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SIZE = 64 << 20
LIMIT_S = 600


class Skip(Exception):
    """Why a row cannot be measured here."""


class Host:
    def __init__(self, folder, pairs):
        self.folder = pathlib.Path(folder).resolve()
        self.pairs = pairs
        package = self.folder / "python"
        if not package.exists():
            package = HERE.parents[1] / "worker" / "python"
        self.environment = dict(
            os.environ,
            SHOAL_LIBRARY=str(self.folder / "lib" / "libshoal.so"),
            PYTHONPATH=str(package),
            GLOO_SOCKET_IFNAME="lo",
        )

    def run(self, ranks, *command):
        """The last line of output of a command under shoalrun."""
        whole = [self.folder / "bin" / "shoalrun", "--timeout", LIMIT_S - 60, "-n", ranks, "--", *command]
        done = subprocess.run(
            [str(word) for word in whole],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()[-1500:]}")
        return done.stdout.strip().splitlines()[-1]

    def rank(self, ranks, *arguments):
        return json.loads(self.run(ranks, sys.executable, HERE / "gpu_ranks.py", *arguments))

    def copies_s(self):
        program = next(
            (p for p in (self.folder / part / "bench_gpu_copy" for part in ("bench", "bin")) if p.exists()),
            None,
        )
        if program is None:
            raise Skip("bench_gpu_copy is not built")
        return float(subprocess.run([program, str(SIZE)], stdout=subprocess.PIPE, check=True).stdout) / 1e6

    def why_not(self):
        try:
            self.run(1, self.folder / "bin" / "shoalperf", "all_reduce", "-b", "4", "-n", "1", "--device", "cuda")
        except RuntimeError as error:
            known = re.search(r"GPU \d+.*(no CUDA driver|without CUDA|process has 0|ERROR_NO_DEVICE).*", str(error))
            if known:
                return known.group(0)
            raise
        return None


def has_torch():
    probe = "import torch, torch.distributed as d; assert d.is_available() and torch.cuda.is_available()"
    if subprocess.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip(f"{sys.executable} has no torch with CUDA")


def median_of_pairs(host, ours, theirs):
    """(median of ours, median of theirs, median of the ratios theirs to ours), in turns."""
    pairs = []
    for number in range(host.pairs):
        if number % 2:
            other = theirs()
            pairs.append((ours(), other))
        else:
            pairs.append((ours(), theirs()))
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(b / a for a, b in pairs),
    )


def arena_row(host):
    """One rank: every iteration is 64 MiB out of the GPU and 64 MiB into it, in a pipeline."""

    def ours():
        words = ["all_reduce", "--in-place", "-b", "64M", "--device", "cuda", "--json", "--check", "0"]
        return json.loads(host.run(1, host.folder / "bin" / "shoalperf", *words))["time_us"] / 1e6

    mine, plain, ratio = median_of_pairs(host, ours, host.copies_s)
    return f"{SIZE / mine / 1e9:.1f} GB/s each way, plain copies {SIZE / plain / 1e9:.1f}: {ratio:.2f}", ratio >= 0.9


def products_row(host):
    has_torch()
    runs = [host.rank(2, "products", "shoal") for _ in range(host.pairs)]
    slower = statistics.median(run["beside"] / run["alone"] for run in runs)
    return f"{statistics.median(r['alone'] for r in runs) * 1e3:.2f} ms each alone; slowed by {100 * (slower - 1):.1f} %", slower <= 1.02


def all_reduce_row(ranks):
    def measure(host):
        has_torch()
        mine, gloo, ratio = median_of_pairs(
            host,
            lambda: host.rank(ranks, "all_reduce", "shoal")["seconds"],
            lambda: host.rank(ranks, "all_reduce", "gloo")["seconds"],
        )
        return f"{mine * 1e3:.2f} ms, gloo {gloo * 1e3:.2f} ms: {ratio:.1f} times as fast", ratio >= 5

    return measure


def ddp_row(host):
    has_torch()
    runs = {"alone": [], "shoal": [], "gloo": []}
    for _ in range(host.pairs):
        for how, times in runs.items():
            backend = "gloo" if how == "gloo" else "shoal"
            times.append(host.rank(2, "ddp", backend, how)["seconds"])
    alone, ours, gloo = (statistics.median(runs[how]) for how in runs)
    ratio = statistics.median(b / a for a, b in zip(runs["alone"], runs["shoal"]))
    return f"{alone * 1e3:.0f} ms alone, shoal {ours * 1e3:.0f} ms: {ratio:.2f}; gloo {gloo * 1e3:.0f} ms: {gloo / alone:.2f}", ratio <= 1.15


ROWS = [
    ("out of and into the GPU through the arena, 64 MiB, both ways at once", "0.9 of plain pinned copies", arena_row),
    ("8192-cubed bf16 products while all-reduces run", "slowed by at most 2 %", products_row),
    ("all-reduce of 64 MiB f32 CUDA tensors, 2 ranks", "5 times gloo", all_reduce_row(2)),
    ("all-reduce of 64 MiB f32 CUDA tensors, 4 ranks", "5 times gloo", all_reduce_row(4)),
    ("DDP step, 350 M parameters, bf16, 2 ranks", "1.15 of the step alone", ddp_row),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=HERE.parents[1])
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    host = Host(options.folder, options.pairs)
    reason = host.why_not()
    if reason:
        print(f"SKIP bench-gpu: {reason}")
        return 0
    print("| what | to reach | measured | |\n|---|---|---|---|", flush=True)
    for what, target, measure in ROWS:
        try:
            text, reached = measure(host)
            print(f"| {what} | {target} | {text} | {'reached' if reached else 'MISSED'} |", flush=True)
        except Skip as why:
            print(f"| {what} | {target} | skipped: {why} | |", flush=True)
        except (RuntimeError, subprocess.SubprocessError) as error:
            print(f"| {what} | {target} | failed: {error} | |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
