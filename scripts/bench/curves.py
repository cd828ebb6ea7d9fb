"""Bandwidth against size, for the plot: each program goes through all sizes, several times by turns."""
import statistics

from peers import Case, Cluster, Failed, Missing, progress, run, say, times
from rows import KIB

SIZES = [4 << (2 * i) for i in range(13)]  # 4 B to 64 MiB
SMALL = [size for size in SIZES if size <= 64 * KIB]  # more often, so that a run's beginning takes little of it
LARGE = [size for size in SIZES if size > 64 * KIB]
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


def all_sizes(cases, measure):
    """{bytes: seconds} of all of the cases."""
    return {size: seconds for case in cases for size, seconds in measure(case).items()}


def one_host(tools):
    # Enough of each to have touched the memory that the first ones touch.
    cases = (Case(SMALL, 200, 1000), Case(LARGE[:2], 20, 200), Case(LARGE[2:], 10, 20))

    def sizes(command, *options):
        return all_sizes(cases, lambda case: times(run(command(RANKS, case, *options))))

    return {
        "title": f"one host, {RANKS} ranks, f32",
        "curves": medians("plot, one host", {
            "shoal, arena": lambda: sizes(tools.shoal, ("--arena", "--in-place")),
            "shoal, private buffers": lambda: sizes(tools.shoal),
            "shoal in torch": lambda: sizes(tools.torch),
            "Gloo in torch": lambda: sizes(tools.gloo),
            "Open MPI": lambda: sizes(tools.mpi),
        })}


def four_nodes(tools):
    cases, nodes = (Case(SMALL, 2, 20), Case(LARGE, 1, 4)), 4
    with Cluster(tools, nodes, 0, "1gbit") as cluster:
        curves = medians("plot, 4 nodes", {
            "shoal, private buffers": lambda: all_sizes(cases, cluster.shoal),
            "Gloo in torch": lambda: all_sizes(cases, cluster.gloo),
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
