"""Bandwidth against size, for the plot: each program goes through all sizes, several times by turns."""
import statistics

from peers import Case, Cluster, Failed, Missing, progress, run, say, times
from rows import KIB, MIB

SIZES = [4 * KIB << (2 * i) for i in range(8)]  # 4 KiB to 64 MiB
RANKS = 4
ROUNDS = 3


def medians(label, sides):
    """{name: {bytes: GB/s}}: the median of the rounds."""
    seconds = {name: [] for name in sides}
    for number in range(ROUNDS):
        for name, measure in list(sides.items()):
            progress(f"  {label}, round {number + 1} of {ROUNDS}, now: {name}")
            try:
                seconds[name].append(measure())
            except Missing as missing:
                say(f"  {name}: {missing}")
                del sides[name], seconds[name]
        say(f"  {label}, round {number + 1} of {ROUNDS}")
    return {name: {size: size / statistics.median(each[size] for each in rounds) / 1e9
                   for size in SIZES} for name, rounds in seconds.items()}


def one_host(tools):
    case = Case(SIZES, 3, 10)
    return {
        "title": f"one host, {RANKS} ranks, f32",
        "curves": medians("plot, one host", {
            "shoal, arena": lambda: times(run(tools.shoal(RANKS, case, ("--arena", "--in-place")))),
            "shoal, private buffers": lambda: times(run(tools.shoal(RANKS, case))),
            "Gloo": lambda: times(run(tools.gloo(RANKS, case))),
            "Open MPI": lambda: times(run(tools.mpi(RANKS, case))),
        })}


def four_nodes(tools):
    case, nodes = Case(SIZES, 1, 4), 4
    with Cluster(tools, nodes, 0, "1gbit") as cluster:
        curves = medians("plot, 4 nodes", {
            "shoal, private buffers": lambda: cluster.shoal(case),
            "Gloo": lambda: cluster.gloo(case),
        })
        rate = cluster.stream_Bps()
    curves["bound: raw streams"] = {size: rate * nodes / (2 * (nodes - 1)) / 1e9 for size in SIZES}
    return {"title": f"{nodes} nodes, 1 Gbit/s links, f32", "curves": curves}


def measure(tools):
    """The panels that this machine can fill."""
    panels = []
    for panel in (one_host, four_nodes):
        try:
            panels.append(panel(tools))
        except (Missing, Failed) as error:
            say(f"  plot: {error}")
    return panels
