"""The rows of the table: what is measured, against what, and what is to be reached.

A row measures pair after pair, by turns, and gives Results: a name, a target, and one ratio a pair.
"""
import math
import os
from dataclasses import dataclass, field

from peers import Case, Cluster, Missing, progress, run, run_cpu, say, times

KIB, MIB = 1 << 10, 1 << 20


@dataclass
class Result:
    """One figure. The measured value is the median of the ratios."""
    row: str
    what: str
    figure: str  # what the ratio is of
    target: float  # None: shown, nothing to reach
    at_least: bool = True
    ratios: list = field(default_factory=list)
    skipped: str = ""  # why there are no ratios
    seconds: dict = field(default_factory=dict)  # what was measured, by who


def by_turns(pairs, label, **sides):
    """{side: [value a pair]}; each pair begins with another side."""
    measured = {side: [] for side in sides}
    for pair in range(pairs):
        order = list(sides)
        order = order[pair % len(order):] + order[:pair % len(order)]
        for side in order:
            progress(f"  {label}, pair {pair + 1} of {pairs}, now: {side}")
            measured[side].append(sides[side]())
        say(f"  {label}, pair {pair + 1} of {pairs}: " + ", ".join(
            f"{side} {figure(values[-1])}" for side, values in measured.items()))
    return measured


def figure(value):
    return " ".join(f"{one:.3g}" for one in value.values()) if isinstance(value, dict) else f"{value:.6g}"


def divided(above, below):
    return [a / b for a, b in zip(above, below)]


def optional_mpi(tools, ranks, case):
    """A side for Open MPI, or none where it is not installed."""
    try:
        command = tools.mpi(ranks, case)
    except Missing as missing:
        say(f"  {missing}")
        return {}
    return {"open_mpi": lambda: times(run(command))[case.sizes[0]]}


# --- one host ---------------------------------------------------------------------------------------


def one_host(tools, pairs, row, ranks, case, target, options=(), what="", floor=False):
    """Gloo's time over ours; Open MPI's and, with private buffers, the floor's are shown beside."""
    size = case.sizes[0]
    sides = {"shoal": lambda: times(run(tools.shoal(ranks, case, options)))[size],
             "gloo": lambda: times(run(tools.gloo(ranks, case)))[size],
             **optional_mpi(tools, ranks, case)}
    if floor:
        # Memory at least: every rank's buffer is read once and written once, as by one copy of it.
        sides["copy_floor"] = lambda: ranks * size / (tools.copy_GBps() * 1e9)
        sides["pieces_floor"] = lambda: tools.pieces_s(ranks, size)
    label = f"one host, {what}, {ranks} ranks"
    seconds = by_turns(pairs, label, **sides)
    results = [Result(row, label, "time of Gloo / ours", target, True,
                      divided(seconds["gloo"], seconds["shoal"]), seconds=seconds)]
    if "open_mpi" in seconds:
        results.append(Result(row, label, "time of Open MPI / ours", None, True,
                              divided(seconds["open_mpi"], seconds["shoal"])))
    if floor:
        results.append(Result(row, label, "our time / one copy of every buffer", None, False,
                              divided(seconds["shoal"], seconds["copy_floor"])))
        results.append(Result(row, label, "our time / its copies and sums alone", None, False,
                              divided(seconds["shoal"], seconds["pieces_floor"])))
    return results


def row_1(tools, pairs):
    for ranks in (2, 4, 8):
        yield from one_host(tools, pairs, "1", ranks, Case([64 * MIB], 2, 8), 3.0,
                            what="64 MiB f32, private buffers", floor=True)


def row_2(tools, pairs):
    case, arena = Case([64 * MIB], 2, 8), ("--arena", "--in-place")
    for ranks in (2, 4, 8):
        yield from one_host(tools, pairs, "2", ranks, case, 4.0, arena,
                            what="64 MiB f32, arena, in place")


def row_2b(tools, pairs):
    case, shared = Case([64 * MIB], 2, 8), ("--arena", "--shared-result")
    for ranks in (2, 4, 8):
        yield from one_host(tools, pairs, "2b", ranks, case, 6.0, shared,
                            what="64 MiB f32, arena, one shared result")


def row_3(tools, pairs):
    yield from one_host(tools, pairs, "3", 4, Case([4 * KIB], 50, 300), 10.0,
                        what="4 KiB f32, private buffers")


def row_4(tools, pairs):
    """Within the program, by turns; the floor is the faster of its two loops."""
    targets = {"float": 0.9, "bfloat16": 0.8, "half": 0.8}
    for figures in tools.reduce_figures(pairs):
        floor = [max(pair) for pair in zip(figures["plain_GBps"], figures["streamed_GBps"])]
        names = {"float": "f32", "bfloat16": "bf16", "half": "f16"}
        yield Result("4", f"sum of {figures['inputs']} inputs out of cache, one thread, "
                     f"{names[figures['dtype']]} ({figures['isa']})",
                     "bandwidth / loop that only reads and writes", targets[figures["dtype"]], True,
                     divided(figures["kernel_GBps"], floor),
                     seconds={key: figures[key] for key in figures if key.endswith("GBps")})


def row_11(tools, pairs):
    """Measure by how much a backward pass of 1 / 0.9 of the links' time is lengthened, over the last buffer's time."""
    # With BERT's even layers a buffer of 25 MiB is ready just before the end, and the last one, of the
    # embeddings, would wait for it on ideal links too ("ideal" of the JSON; scripts/bench/README.md).
    models = (("ResNet-50", "resnet50", "float", 3, 25), ("BERT-large", "bert_large", "bfloat16", 1, 6))
    with Cluster(tools, 4, 0, "1gbit") as cluster:
        for name, table, dtype, steps, threshold in models:
            label = f"4 nodes, 1gbit links, backward pass of {name}, {dtype}, buffers of {threshold} MiB"
            runs = []

            def replay(table=table, dtype=dtype, steps=steps, threshold=threshold, runs=runs):
                runs.append({"stream_Bps": cluster.stream_Bps()})
                runs[-1].update(cluster.overlap(table, dtype, runs[-1]["stream_Bps"], steps, threshold))
                return runs[-1]["exposed_us"] / runs[-1]["last_us"]

            ratios = by_turns(pairs, label, ratio=replay)["ratio"]
            yield Result("11", label, "added to the step / last buffer alone", 1.15, False, ratios,
                         seconds={"runs": runs})


def row_12(tools, pairs):
    """Processor seconds of an all-reduce: what more iterations take beyond few, so that starting the
    processes and filling the buffers are not counted."""
    few, many, ranks = Case([64 * MIB], 0, 2), Case([64 * MIB], 0, 22), 4

    def each(command):
        return (run_cpu(command(many)) - run_cpu(command(few))) / (many.iterations - few.iterations)

    label = "one host, 64 MiB f32, private buffers, 4 ranks"
    seconds = by_turns(pairs, label + ", processor",
                       shoal=lambda: each(lambda case: tools.shoal(ranks, case, ("--check", "0"))),
                       gloo=lambda: each(lambda case: tools.gloo(ranks, case)))
    yield Result("12", label, "processor time of ours / Gloo's", 0.5, False,
                 divided(seconds["shoal"], seconds["gloo"]), seconds=seconds)


SMALL_PARTS = [64 << 2 * i for i in range(6)]  # of up to 16 ranks each has an element
SIZES = {"all_reduce": [4 << 2 * i for i in range(8)], "broadcast": [4 << 2 * i for i in range(8)],
         "all_gather": SMALL_PARTS, "reduce_scatter": SMALL_PARTS}
LARGER = (Case([256 * KIB, MIB], 20, 300), Case([4 * MIB, 16 * MIB, 64 * MIB], 10, 20))


def against_mpi(ranks, size):
    """The least time of Open MPI, whose ranks spin, over ours."""
    if ranks == 2:
        return 0.5 if size < 4 * KIB else 1.0
    return 1.0 if size < 16 * KIB else 1.5


def copies_alone(tools, ranks, name):
    """Return {bytes: seconds} that the copies and sums alone of larger collectives take."""
    if name == "all_reduce":
        return {size: tools.pieces_s(ranks, size, case.iterations)
                for case in LARGER for size in case.sizes if size >= 4 * MIB}
    return {size: time for case in LARGER for size, time in times(run(tools.copies(ranks, case, name))).items()}


def row_17(tools, pairs):
    """All sizes of a collective in a pair, so that starting processes takes little of the time."""
    for ranks in (2, 4, 8):
        for name in (*SIZES, "barrier"):
            cases = [Case(SIZES.get(name, [0]), 200, 3000), *(LARGER if name in SIZES else ())]
            tools.mpi(ranks, cases[0], name)

            def all_of(command, ranks=ranks, name=name, cases=cases):
                return {size: time for case in cases
                        for size, time in times(run(command(ranks, case, collective=name))).items()}

            sides = {"shoal": lambda all_of=all_of: all_of(tools.shoal),
                     "open_mpi": lambda all_of=all_of: all_of(tools.mpi)}
            if name in ("all_reduce", "broadcast", "all_gather"):
                sides["alone"] = lambda ranks=ranks, name=name: copies_alone(tools, ranks, name)
            label = f"one host, {name}, private buffers, {ranks} ranks"
            measured = by_turns(pairs, label, **sides)
            alone = measured.pop("alone", [{}])
            for size in measured["shoal"][0]:
                seconds = {side: [pair[size] for pair in values] for side, values in measured.items()}
                yield Result("17", f"{label}, {size} B", "time of Open MPI / ours", against_mpi(ranks, size), True,
                             divided(seconds["open_mpi"], seconds["shoal"]), seconds=seconds)
                if size in alone[0]:
                    least = [pair[size] for pair in alone]
                    yield Result("17", f"{label}, {size} B", "time of Open MPI / copies and sums alone", None, True,
                                 divided(seconds["open_mpi"], least), seconds={"alone": least})


# --- several nodes ----------------------------------------------------------------------------------


def bound_links(nodes, cpu_nodes, size, rate):
    """Bytes that the busiest link carries at least, over its rate (BytePS, OSDI'20): n nodes with ranks
    and k servers without, shares chosen best; k = 0 is the ring's."""
    n, k = nodes, cpu_nodes
    if k >= n:
        return size / rate
    return 2 * n * (n - 1) * size / ((n * n + k * n - 2 * k) * rate)


# Our buffers: in place, as Gloo's are and fusion buffers, and from the caller's memory into other.
BUFFERS = {"shoal_in_place": ("arena, in place", ("--arena", "--in-place")),
           "shoal_private": ("private buffers", ())}


def links(tools, pairs, row, shape, sizes, time_most, gloo_least, per_node=1):
    """Our time over the bound, with the raw streams' rate of the same pair, and Gloo's over ours."""
    nodes, cpu_nodes, rate = shape
    servers = f" + {cpu_nodes} CPU servers" if cpu_nodes else ""
    with Cluster(tools, nodes, cpu_nodes, rate) as cluster:
        for size in sizes:
            case = Case([size], 1, 5 if size > 16 * MIB else 20)
            label = (f"{nodes} nodes{servers}, {per_node} ranks each, {rate} links, "
                     f"{size // MIB} MiB f32")
            sides = {side: lambda case=case, size=size, options=options:
                     cluster.shoal(case, per_node, options)[size]
                     for side, (_, options) in BUFFERS.items()}
            sides["stream_Bps"] = cluster.stream_Bps
            if gloo_least:
                sides["gloo"] = lambda case=case, size=size: cluster.gloo(case, per_node)[size]
            seconds = by_turns(pairs, label, **sides)
            bounds = [bound_links(nodes, cpu_nodes, size, rate_Bps)
                      for rate_Bps in seconds["stream_Bps"]]
            for side, (name, _) in BUFFERS.items():
                yield Result(row, f"{label}, {name}", "our time / the links' bound", time_most, False,
                             divided(seconds[side], bounds),
                             seconds={key: seconds[key] for key in seconds if key not in BUFFERS or key == side})
                if gloo_least:
                    yield Result(row, f"{label}, {name}", "time of Gloo / ours", gloo_least, True,
                                 divided(seconds["gloo"], seconds[side]))


def row_5(tools, pairs):
    yield from links(tools, pairs, "5", (4, 0, "1gbit"), (4 * MIB, 64 * MIB), 1.03, 1.0)


def row_6(tools, pairs):
    yield from links(tools, pairs, "6", (4, 0, "1gbit"), (64 * MIB,), 1.05, 1.12, per_node=2)


def row_7(tools, pairs):
    yield from links(tools, pairs, "7", (4, 4, "1gbit"), (64 * MIB,), 1.05, 1.5)


def row_8(tools, pairs):
    yield from links(tools, pairs, "8", (8, 8, "500mbit"), (64 * MIB,), 1.08, 1.6)


def row_9(tools, pairs):
    yield from links(tools, pairs, "9", (4, 2, "1gbit"), (64 * MIB,), 1.06, None)


def row_10(tools, pairs):
    size, nodes = 64 * MIB, 4
    case = Case([size], 1, 5)
    with Cluster(tools, nodes, 0, "1gbit") as cluster:
        for name in ("all_gather", "reduce_scatter"):
            label = f"{nodes} nodes, 1gbit links, {name}, 64 MiB"
            seconds = by_turns(pairs, label, stream_Bps=cluster.stream_Bps,
                               shoal=lambda name=name: cluster.shoal(case, collective=name)[size])
            bounds = [(nodes - 1) * size / (nodes * rate) for rate in seconds["stream_Bps"]]
            yield Result("10", label, "our time / the links' bound", 1.04, False,
                         divided(seconds["shoal"], bounds), seconds=seconds)


SCALE_STEPS = ("join", "all_reduce", "barrier", "leave")


def scale_n_log_n(small, large):
    """For each step, mean processor time of a daemon with more nodes over that with fewer, over how
    n log n grows."""
    n, more = small["nodes"], large["nodes"]
    expected = more * math.log(more) / (n * math.log(n))
    return {step: large[step]["mean_us"] / small[step]["mean_us"] / expected for step in SCALE_STEPS}


def growth(runs, size, value):
    """Return how much `value` grows for one more `size`, from the first run to the second and from that to the
    third."""
    return [(value(b) - value(a)) / (b[size] - a[size]) for a, b in zip(runs, runs[1:])]


def row_13(tools, pairs):
    """Nodes and ranks of a cluster in one process; descriptors of real daemons."""
    by_workers = [tools.scale(100, per_node) for per_node in (2, 6, 10)]
    by_nodes = [tools.scale(nodes, 10) for nodes in (25, 50)] + [by_workers[-1]]
    for runs, size, what in ((by_workers, "ranks", "worker of the job, 200 to 1000 on 100 nodes"),
                             (by_nodes, "nodes", "node with 10 workers, 25 to 100 nodes")):
        first, second = growth(runs, size, lambda run: run["worked_bytes"])
        yield Result("13", f"daemon, heap: {second:.0f} bytes for each {what}",
                     "growth of the upper half / the lower", 1.1, False, [second / first],
                     seconds={"runs": runs})
    for shapes, size, what in (([(1, 2), (1, 6), (1, 10)], "ranks", "worker on its node"),
                               ([(2, 2), (4, 2), (8, 2)], "nodes", "peer")):
        runs = [{"nodes": nodes, "ranks": nodes * per_node, "descriptors": tools.descriptors(nodes, per_node)}
                for nodes, per_node in shapes]
        first, second = growth(runs, size, lambda run: run["descriptors"])
        yield Result("13", f"daemon, descriptors: {second:g} for each {what}",
                     "growth of the upper half / the lower", 1.0, False, [second / first],
                     seconds={"runs": runs})
    steps = {step: [] for step in SCALE_STEPS}
    for _ in range(pairs):
        # A daemon's memory grows with its peers, and all daemons share a cache here, unlike on
        # machines of their own: twice as many with half the peers fill about as much of it.
        for step, ratio in scale_n_log_n(tools.scale(50, 10, 4), tools.scale(100, 10)).items():
            steps[step].append(ratio)
    for step, ratios in steps.items():
        yield Result("13", f"daemon, processor time of {step}, 100 nodes and 1000 workers / 50 and 500, 4 such jobs",
                     "growth / that of n log n", 1.0, False, ratios)


def row_14(tools, pairs):
    """Links at their limit: what encryption adds, and hides behind."""
    size, nodes, results = 64 * MIB, 4, []
    case = Case([size], 1, 5)
    with Cluster(tools, nodes, 0, "1gbit") as clear, Cluster(tools, nodes, 0, "1gbit", "encrypt") as sealed:
        for name, options in BUFFERS.values():
            label = f"{nodes} nodes, 1gbit links, 64 MiB f32, {name}, encrypted"
            seconds = by_turns(pairs, label,
                               sealed=lambda options=options: sealed.shoal(case, 1, options)[size],
                               clear=lambda options=options: clear.shoal(case, 1, options)[size])
            results.append(Result("14", label, "our time / that in the clear", 1.02, False,
                                  divided(seconds["sealed"], seconds["clear"]), seconds=seconds))
    return results


def bound_cipher(clear_s, size, nodes, seal_GBps, open_GBps, cores):
    """The time in the clear, and that in which all cores seal and open what all nodes send."""
    sent = nodes * 2 * size * (nodes - 1) / nodes
    return clear_s + (sent / seal_GBps + sent / open_GBps) / (cores * 1e9)


def row_15(tools, pairs):
    """No link to hide behind: the processors do all of it."""
    size, nodes, cores = 64 * MIB, 2, len(os.sched_getaffinity(0))
    case = Case([size], 2, 10)
    label = f"{nodes} nodes over loopback, {cores} cores, 64 MiB f32, arena, in place, encrypted"
    options = BUFFERS["shoal_in_place"][1]
    sides = by_turns(pairs, label,
                     sealed=lambda: tools.shoal_nodes(nodes, case, "encrypt", options)[size],
                     clear=lambda: tools.shoal_nodes(nodes, case, "none", options)[size],
                     cipher_ms=lambda: 1e3 * bound_cipher(0, size, nodes, *tools.seal_GBps(), cores))
    bounds = [clear + cipher_ms / 1e3 for clear, cipher_ms in zip(sides["clear"], sides["cipher_ms"])]
    yield Result("15", label, "our time / in the clear and the cipher alone", 1.15, False,
                 divided(sides["sealed"], bounds), seconds=sides)


def row_16(tools, pairs):
    """Bytes that an all-reduce of two nodes sends each way, through stunnel, over our all-reduce."""
    size, nodes = 64 * MIB, 2
    case = Case([size], 2, 10)
    with Cluster(tools, nodes, 0, None, "encrypt") as cluster:
        label = f"{nodes} nodes, links without a limit, 64 MiB f32, arena, in place, encrypted"
        options = BUFFERS["shoal_in_place"][1]
        seconds = by_turns(pairs, label, shoal=lambda: cluster.shoal(case, 1, options)[size],
                           stunnel=lambda: size / cluster.tls_Bps())
    yield Result("16", label, "time of stunnel for the bytes sent / ours", 2.0, True,
                 divided(seconds["stunnel"], seconds["shoal"]), seconds=seconds)


def row_18(tools, pairs):
    """A large roster: what a daemon promises for what its peers send, and how long a large job joins."""
    counted = {it["peers"]: it for it in tools.peers((8, 64, 256, 1000))}
    most = max(it["receive_bytes"] for it in counted.values())
    yield Result("18", "daemon, receives of a job on all nodes, the most of 8, 64, 256 and 1000 peers",
                 "bytes / 64 MiB", 1.0, False, [most / (64 * MIB)], seconds={"runs": list(counted.values())})
    flat = [counted[peers]["receive_bytes"] for peers in (64, 256, 1000)]
    yield Result("18", "daemon, the same, the most / the least of 64, 256 and 1000 peers", "bytes / bytes", 1.1, False,
                 [max(flat) / min(flat)])
    job = tools.join(1000, 8)
    yield Result("18", "1000 nodes, 8000 ranks, virtual time: join until all have joined", "time / 10 s", 1.0, False,
                 [job["join"]["virtual_us"] / 10e6], seconds={"runs": [job]})
    yield Result("18", "1000 nodes, 8000 ranks: heap of the home", "bytes / 64 MiB", 1.0, False,
                 [job["home_bytes"] / (64 * MIB)])


def row_19(tools, pairs):
    """The links of a job of 1000 nodes, played; the same figures on every machine, so one run is enough."""
    nodes, per_node, mebibytes, late_ms = 1000, 8, 32, 50
    label = f"{nodes} nodes, {nodes * per_node} ranks, links of 100 Gbit/s and 10 us, virtual time, {mebibytes} MiB"
    prompt = tools.links(nodes, per_node, mebibytes)
    yield Result("19", label, "our time / the links' bound", 1.05, False,
                 [prompt["virtual_us"] / prompt["bound_us"]], seconds={"runs": [prompt]})
    late = tools.links(nodes, per_node, mebibytes, late_ms)
    yield Result("19", f"{label}, one node {late_ms} ms late", "what the time grows by / its lateness", 1.0, False,
                 [(late["virtual_us"] - prompt["virtual_us"]) / (1e3 * late_ms)], seconds={"runs": [late]})


def row_20(tools, pairs):
    """Measure as many daemons as this machine bears."""
    nodes, per_node = 128, 2
    resident, time_s = tools.many_daemons(nodes, per_node)
    label = f"{nodes} daemons, {nodes * per_node} ranks over loopback"
    yield Result("20", f"{label}: from starting them to the first result", "time / 30 s", 1.0, False,
                 [time_s / 30], seconds={"runs": [time_s]})
    yield Result("20", f"{label}: resident memory of a daemon, the most", "bytes / 16 MiB", 1.0, False,
                 [resident / (16 * MIB)], seconds={"runs": [resident]})


def row_21(tools, pairs):
    """All send to one: its link is the bound, and its queue is short."""
    nodes, size = 32, 4 * MIB
    case = Case([size], 1, 5)
    with Cluster(tools, nodes, 1, "1gbit", weights="0,1") as cluster:
        label = f"{nodes} nodes to one CPU server, 1gbit links, queues of 10 ms, {size // MIB} MiB f32, arena, in place"
        before = cluster.drops()
        seconds = by_turns(pairs, label, stream_Bps=cluster.stream_Bps,
                           shoal=lambda: cluster.shoal(case, 1, ("--arena", "--in-place"))[size])
        drops = (cluster.drops() - before) / pairs
    goodput = [nodes * size / rate / time_s for rate, time_s in zip(seconds["stream_Bps"], seconds["shoal"])]
    yield Result("21", f"{label}; a run's packets dropped: {drops:.0f}", "bytes a second at the server / the streams'",
                 0.95, True, goodput, seconds=seconds)


def row_22(tools, pairs):
    """Where a collective is so short that its beginning counts."""
    nodes = 4
    with Cluster(tools, nodes, 0, "1gbit") as cluster:
        for size in (64 * KIB, MIB):
            label = f"{nodes} nodes, 1gbit links, all_gather, {size // KIB} KiB"
            seconds = by_turns(pairs, label, stream_Bps=cluster.stream_Bps, delay_s=cluster.delay_s,
                               shoal=lambda size=size: cluster.shoal(Case([size], 20, 200),
                                                                     collective="all_gather")[size])
            bounds = [(nodes - 1) * size / (nodes * rate) + delay_s
                      for rate, delay_s in zip(seconds["stream_Bps"], seconds["delay_s"])]
            yield Result("22", label, "our time / the links' bound and one delay", 1.10, False,
                         divided(seconds["shoal"], bounds), seconds=seconds)


ROWS = {"1": row_1, "2": row_2, "2b": row_2b, "3": row_3, "4": row_4, "5": row_5, "6": row_6, "7": row_7,
        "8": row_8, "9": row_9, "10": row_10, "11": row_11, "12": row_12, "13": row_13, "14": row_14, "15": row_15,
        "16": row_16, "17": row_17, "18": row_18, "19": row_19, "20": row_20, "21": row_21, "22": row_22}
