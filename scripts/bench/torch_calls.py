#!/usr/bin/env python3
"""Measure what collectives cost through torch: the native backend, the one in Python and Gloo by turns,
with shoalperf beside them.

    torch_calls.py [--build BUILD] [--pairs N] [--seconds S] [--ranks 2,4] [--quick] [--json FILE]
    torch_calls.py --tables FILE...    the files of all torches in one Markdown

--quick: few sizes and all_reduce only. --seconds: of it all, shared by the numbers of ranks; no pair
begins that would probably not end in time, but for the first. Each pair is one run of each side, with
processes of its own.

The output is Markdown: first each measure beside its target, then the figures that they are made of. Figures are
medians over pairs; a ratio is of one pair.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import peers

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
KIB, MIB = 1 << 10, 1 << 20
SMALL = [4, 256, 4 * KIB, 16 * KIB, 64 * KIB]  # of which processor time and latency have targets
ALL_REDUCES = [*SMALL, 256 * KIB, MIB, 16 * MIB, 64 * MIB]
SIZES = [4, 4 * KIB, 64 * KIB, MIB, 64 * MIB]
COLLECTIVES = ["broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor",
               "all_to_all_single", "gather", "scatter"]
ASYNC = ("async", 4 * KIB)
NOTHING = ("nothing", 4)  # what torch and Python take themselves
STEPS = ("ddp", "fsdp")
SIDES = ("native", "python", "gloo", "shoalperf", "alone")


def cases_of(quick):
    """{side: [(what, bytes)]}"""
    steps = [("ddp", 0), ("fsdp", 0)]
    calls = [("all_reduce", size) for size in ([4, 4 * KIB, 64 * KIB] if quick else ALL_REDUCES)]
    compared = [] if quick else [(name, size) for name in COLLECTIVES for size in SIZES] + [("barrier", 0)]
    small = [case for case in calls if case[1] in SMALL]
    return {
        # The steps alone too: as many processes at once, and no communication.
        "native": [*calls, *compared, NOTHING, ASYNC, *steps, ("alone", 0)],
        "python": [*small, ASYNC, *steps],
        "gloo": [*calls, *compared, ASYNC, ("ddp", 0)],
        "shoalperf": small,
        "alone": [("alone", 0), ("wrapped", 0)],
    }


class Runs:
    """Runs of each side; each is {"WHAT BYTES": [time in us, processor time in us]}."""

    def __init__(self, build, ranks, cases):
        self.build, self.ranks, self.cases = pathlib.Path(build).resolve(), ranks, cases

    def run(self, side):
        if side == "shoalperf":
            return self.shoalperf(self.cases[side])
        backend, native = {"native": ("shoal", "1"), "python": ("shoal", "0")}.get(side, ("gloo", ""))
        return self.torch(1 if side == "alone" else self.ranks, backend, native, self.cases[side])

    def torch(self, ranks, backend, native, cases):
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            environment = {
                "PYTHONPATH": TREE / "worker" / "python", "SHOAL_LIBRARY": self.build / "lib" / "libshoal.so",
                "SHOAL_NATIVE": native, "BENCH_STORE": f"{folder}/store", "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": 1, "USE_LIBUV": 0,
            }
            words = [word for case in cases for word in case]
            command = ["env", "-u", "SHOAL_SOCKET", *(f"{k}={v}" for k, v in environment.items()),
                       self.build / "bin" / "shoalrun", "--timeout", peers.TIMEOUT_S - 60, "-n", ranks, "--",
                       sys.executable, "-B", HERE / "torch_ranks.py", backend, *words]
            said = peers.run([str(word) for word in command])
        return {key(row["what"], row["bytes"]): [row["time_us"], row["cpu_us"]] for row in said}

    def shoalperf(self, cases):
        """In place, as torch's is."""
        measured = {}
        for what, size in cases:
            case = peers.Case([size], 10, 300)
            command = peers.Tools(self.build).shoal(self.ranks, case, ("--in-place", "--check", "0"))
            measured[key(what, size)] = [peers.times(peers.run(command))[size] * 1e6, 0.0]
        return measured


def key(what, size_bytes):
    return f"{what} {size_bytes}"


def torch_of_this_python():
    """Its version."""
    done = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=False)
    words = done.stdout.split()
    if not words:
        raise peers.Missing(f"{sys.executable} has no torch")
    if tuple(map(int, words[0].split(".")[:2])) < (2, 6):
        raise peers.Missing(f"{sys.executable} has torch {words[0]}, and shoal needs 2.6 or later: scripts/torch-env.sh")
    return words[0]


def measure(runs, pairs, end):
    """{side: [a run for each pair]}; each pair begins with another side."""
    measured, took = {side: [] for side in SIDES}, 0.0
    for pair in range(pairs):
        began = time.monotonic()
        if pair > 0 and began + took > end:
            break
        for side in SIDES[pair % len(SIDES):] + SIDES[:pair % len(SIDES)]:
            peers.progress(f"  {runs.ranks} ranks, pair {pair + 1} of {pairs}, now: {side}")
            measured[side].append(runs.run(side))
        took = time.monotonic() - began
        peers.say(f"  {runs.ranks} ranks, pair {pair + 1} of {pairs}")
    return measured


# --- what the figures say

def median(measured, side, case, column=0):
    """None: it was not measured."""
    figures = [run[case][column] for run in measured[side] if case in run]
    return statistics.median(figures) if figures else None


def ratio(measured, over, under, case):
    """The median over pairs, or None."""
    both = [(a[case][0], b[case][0]) for a, b in zip(measured[over], measured[under]) if case in a and case in b]
    return statistics.median(a / b for a, b in both) if both else None


def size_text(size_bytes):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def compared(measured):
    """{case: time of Gloo over ours}"""
    ratios = {case: ratio(measured, "gloo", "native", case) for case in (measured["gloo"] or [{}])[0]}
    return {case: value for case, value in ratios.items() if value and case.split()[0] not in ("async", "ddp")}


def case_text(case):
    what, size_bytes = case.split()
    return what if what == "barrier" else f"{what} of {size_text(int(size_bytes))}"


def added(measured, side, what, column):
    """Return the us that a step takes beyond the step alone; None where one of the two is missing."""
    step, alone = median(measured, side, key(what, 0), column), median(measured, "alone", "alone 0", column)
    return None if step is None or alone is None else step - alone


def processor_cell(measured):
    worst = max(median(measured, "native", key("all_reduce", size), 1) or 0.0 for size in SMALL)
    return f"{worst:.0f} us", worst <= 40


def latency_cell(measured):
    ratios = {size: ratio(measured, "native", "shoalperf", key("all_reduce", size)) for size in SMALL}
    worst, size = max((value, size) for size, value in ratios.items() if value)
    return f"{worst:.2f} ({size_text(size)}); {least_latency(measured):.2f} is the least", worst <= 1.7


def least_latency(measured):
    """At 4 B, of a backend that adds nothing to the library's time: torch's own part is left."""
    perf = median(measured, "shoalperf", key("all_reduce", 4))
    return (perf + median(measured, "native", key(*NOTHING))) / perf


def gloo_cell(measured):
    ratios = compared(measured)
    least = min(ratios, key=ratios.get)
    slower = sum(value < 1 for value in ratios.values())
    text = f"{ratios[least]:.2f} ({case_text(least)})"
    return text + (f"; {slower} of {len(ratios)} below 1" if slower else ""), not slower


def async_cell(measured):
    figure = median(measured, "native", key(*ASYNC))
    return f"{figure:.1f} us", figure <= 30


def step_cell(what, column):
    def cell(measured):
        native, python = added(measured, "native", what, column), added(measured, "python", what, column)
        if native is None or python is None:
            return "", None
        share = native / python
        return f"{share:.2f} ({native / 1000:.1f} of {python / 1000:.1f} ms)", share <= 0.5

    return cell


MEASURES = [
    ("processor time of the calling rank, all_reduce of 4 B to 64 KiB, the worst", "at most 40 us", processor_cell),
    ("latency over shoalperf's, the same sizes, the worst", "at most 1.7", latency_cell),
    ("time of Gloo in torch over ours, every collective, 4 B to 64 MiB, the least", "above 1", gloo_cell),
    ("100 asynchronous all_reduces of 4 KiB and their waits, each", "at most 30 us", async_cell),
    ("what DDP adds to a step, native over Python: time", "at most 0.5", step_cell("ddp", 0)),
    ("the same: processor time", "", step_cell("ddp", 1)),
    ("what FSDP adds to a step, native over Python: time", "at most 0.5", step_cell("fsdp", 0)),
    ("the same: processor time", "", step_cell("fsdp", 1)),
]


def row(cells):
    return "| " + " | ".join(cells) + " |"


def table(head, rows):
    return [row(head), row(["---"] * len(head)), *map(row, rows), ""]


def number(value, digits=1):
    return "" if value is None else f"{value:.{digits}f}"


def columns_of(files):
    """[(head, figures)] for each torch and number of ranks."""
    return [(f"torch {file['torch']}, {ranks} ranks", measured)
            for file in files for ranks, measured in file["ranks"].items()]


def tables(files):
    """The lines of the Markdown for what main() has measured with each torch."""
    columns = columns_of(files)
    rows = []
    for what, target, cell in MEASURES:
        cells = []
        for _, measured in columns:
            text, reached = cell(measured)
            cells.append(f"{text}, MISSED" if target and reached is False else text)
        rows.append([what, target, *cells])
    lines = table(["measure", "target", *(head for head, _ in columns)], rows)
    for head, measured in columns:
        lines += [f"{head}, {len(measured['native'])} pairs", "", *all_reduce_table(measured), *gloo_table(measured)]
        lines += step_lines(measured)
    return lines


def all_reduce_table(measured):
    head = ["all_reduce", "native us", "its processor us", "Python us", "its processor us", "Gloo us",
            "shoalperf us"]
    rows = []
    for size in ALL_REDUCES:
        case = key("all_reduce", size)
        if median(measured, "native", case) is not None:
            rows.append([size_text(size), *(number(median(measured, side, case, column)) for side, column in (
                ("native", 0), ("native", 1), ("python", 0), ("python", 1), ("gloo", 0), ("shoalperf", 0)))])
    cells = [number(median(measured, side, key(*ASYNC), column)) for side, column in (
        ("native", 0), ("native", 1), ("python", 0), ("python", 1), ("gloo", 0))]
    return table(head, [*rows, ["100 at once of 4 KiB, each", *cells, ""]])


def gloo_table(measured):
    ratios = compared(measured)
    sizes = sorted({int(case.split()[1]) for case in ratios if not case.startswith("barrier")})
    names = list(dict.fromkeys(case.split()[0] for case in ratios))
    rows = [[name, *(number(ratios.get(key(name, size)), 2) for size in sizes)] for name in names if name != "barrier"]
    if "barrier 0" in ratios:
        rows.append(["barrier", number(ratios["barrier 0"], 2), *[""] * (len(sizes) - 1)])
    return table(["time of Gloo over ours", *map(size_text, sizes)], rows)


def step_lines(measured):
    def ms(side, what):
        figure = median(measured, side, key(what, 0))
        return "" if figure is None else f"{figure / 1000:.1f}"

    head = ["a step of 200 small layers, ms", "native", "Python", "Gloo"]
    rows = [[what, *(ms(side, what) for side in ("native", "python", "gloo"))] for what in STEPS
            if ms("native", what)]
    return [*table(head, rows),
            f"Alone it takes {ms('alone', 'alone')} ms, in as many processes at once {ms('native', 'alone')} ms, in "
            f"DDP's wrapper without communication {ms('alone', 'wrapped')} ms. An all_reduce that has nothing to do takes "
            f"{number(median(measured, 'native', key(*NOTHING)))} us: torch's own part.", ""]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=str(TREE / "build"))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--tables", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    if options.tables:
        files = [json.loads(path.read_text()) for path in options.tables if path.exists()]
    else:
        version = torch_of_this_python()
        cases, numbers = cases_of(options.quick), options.ranks.split(",")
        began, measured = time.monotonic(), {}
        for done, ranks in enumerate(numbers, 1):
            end = began + options.seconds * done / len(numbers)
            measured[ranks] = measure(Runs(options.build, int(ranks), cases), options.pairs, end)
        files = [{"torch": version, "ranks": measured}]
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(files[0]))
    print("\n".join(tables(files)))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except peers.Missing as missing:
        sys.exit(f"torch_calls: {missing}")
