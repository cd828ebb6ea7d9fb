"""Runs what is measured, ours, peers and floors, and reads their figures. Times are in seconds."""
import concurrent.futures
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid

TIMEOUT_S = 600
UNDO_S = 60  # for what is told to end: a cluster's daemons and namespaces
PYTHON = sys.executable  # runs Gloo's ranks
HERE = os.path.dirname(os.path.abspath(__file__))


class Failed(Exception):
    """Something that was run failed; the text says what it said."""


class Missing(Exception):
    """Something that would be run is not on this machine; the text says what."""


class HeldSignals:
    """Signals that would end this thread come later: what is being started could not be ended."""

    def __init__(self):
        self.came, self.handlers = [], {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self.handlers[number] = signal.signal(number, lambda number, _: self.came.append(number))

    def release(self):
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.handlers = {}
        for number in self.came:
            signal.raise_signal(number)


def call(argv):
    """Exit code, output and errors. In a process group of its own, which is ended with this."""
    signals = HeldSignals()
    try:
        started = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True)
    except BaseException:
        signals.release()
        raise
    with started as process:
        try:
            signals.release()
            output, errors = process.communicate(timeout=TIMEOUT_S)
        except BaseException as error:  # also Ctrl-C
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.communicate(timeout=UNDO_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"{' '.join(argv)}: nothing after {TIMEOUT_S} s") from None
            raise
    return process.returncode, output, errors


def run(argv):
    """Its lines of JSON."""
    code, output, errors = call(argv)
    if code != 0:
        said = "\n".join((errors or output).strip().splitlines()[-5:])
        raise Failed(f"{' '.join(argv)}: exit code {code}: {said}")
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def run_cpu(argv):
    """Processor seconds of the command and of all that it started and waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(argv)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def times(rows):
    """{bytes: seconds} of rows as shoalperf, gloo_ranks.py and bench_mpi print them."""
    for row in rows:
        if row.get("wrong"):
            raise Failed(f"{row['wrong']} wrong elements at {row['bytes']} bytes")
    return {row["bytes"]: row["time_us"] / 1e6 for row in rows}


def daemons_of(launcher):
    """Pids of the daemons that a launcher has started."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                command, rest = file.read().rsplit(")", 1)
        except OSError:  # it has ended
            continue
        if command.endswith("(shoald") and int(rest.split()[1]) == launcher:
            pids.append(int(name))
    return pids


def descriptors_of(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def resident_bytes(pid):
    """With the pages of files that all daemons share."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


class Case:
    """A case to measure: the sizes in bytes, and how often each is reduced."""

    def __init__(self, sizes, warmup, iterations):
        self.sizes, self.warmup, self.iterations = sizes, warmup, iterations

    def numbers(self):
        return [str(number) for number in (self.warmup, self.iterations, *self.sizes)]


class Tools:
    """The commands, with the paths of a build."""

    def __init__(self, build):
        self.build = os.path.abspath(build)

    def program(self, name):
        return os.path.join(self.build, name)

    def perf(self, case, options=(), collective="all_reduce"):
        # Sizes, each four times the one before, or one.
        return [self.program("bin/shoalperf"), collective, "-b", str(case.sizes[0]), "-e",
                str(case.sizes[-1]), "-f", "4", "-w", str(case.warmup), "-n", str(case.iterations),
                "--json", *options]

    def shoal(self, ranks, case, options=(), collective="all_reduce"):
        return ["env", "-u", "SHOAL_SOCKET", self.program("bin/shoalrun"), "--nodes", "1", "-n",
                str(ranks), "--", *self.perf(case, options, collective)]

    @staticmethod
    def gloo(ranks, case):
        Tools.need_torch()
        return [PYTHON, os.path.join(HERE, "gloo_ranks.py"), "--ranks", str(ranks),
                *case.numbers()]

    def torch(self, ranks, case):
        """shoal as Gloo is measured: through torch."""
        if subprocess.run([PYTHON, "-c", "import torch; assert tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 6)"],
                          stderr=subprocess.DEVNULL, check=False).returncode:
            raise Missing("torch for " + PYTHON + " is older than 2.6")
        tree = os.path.dirname(os.path.dirname(HERE))
        return ["env", "-u", "SHOAL_SOCKET", "PYTHONPATH=" + os.path.join(tree, "worker/python"),
                "SHOAL_LIBRARY=" + self.program("lib/libshoal.so"), *self.gloo(ranks, case), "--shoal"]

    def mpi(self, ranks, case, collective="all_reduce"):
        program = self.program("bench/bench_mpi")
        if not shutil.which("mpirun") or not os.path.exists(program):
            raise Missing("Open MPI is not installed")
        return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
                str(ranks), program, collective, *case.numbers()]

    @staticmethod
    def need_torch():
        if not os.path.exists(PYTHON) or subprocess.run(
                [PYTHON, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"],
                check=False).returncode:
            raise Missing("torch is not installed for " + PYTHON)

    def reduce_figures(self, pairs):
        return run([self.program("bench/bench_reduce"), "--pairs", str(pairs)])

    def scale(self, nodes, per_node, clusters=1):
        """A cluster in one process: what bench_scale says of its daemons."""
        return run([self.program("bench/bench_scale"), str(nodes), str(per_node),
                    str(clusters)])[0]

    def join(self, nodes, per_node):
        """Run bench_scale with a job that only opens and closes."""
        return run([self.program("bench/bench_scale"), str(nodes), str(per_node), "1", "join"])[0]

    def peers(self, counts):
        """Return what a daemon needs for each of these counts of peers, as bench_peers counts it."""
        return run([self.program("bench/bench_peers"), *map(str, counts)])

    def links(self, nodes, per_node, mebibytes, late_ms=0):
        """An all-reduce of a large job over played links, in virtual time, as bench_links says."""
        return run([self.program("bench/bench_links"), str(nodes), str(per_node), str(mebibytes), str(late_ms)])[0]

    def daemons_most(self, nodes, per_node, collective, figure_of, pause_s):
        """The most of a figure that a daemon of a job has while it runs; and the seconds until its first result."""
        argv = ["env", "-u", "SHOAL_SOCKET", self.program("bin/shoalrun"), "--nodes", str(nodes),
                "-n", str(per_node), "--", self.program("bin/shoalperf"), *collective]
        most, start_s = {}, time.monotonic()
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True) as process, concurrent.futures.ThreadPoolExecutor(1) as reader:
            first = reader.submit(lambda: process.stdout.readline() and time.monotonic())
            while process.poll() is None:
                for daemon in daemons_of(process.pid):
                    most[daemon] = max(most.get(daemon, 0), figure_of(daemon))
                time.sleep(pause_s)
        if process.returncode or len(most) != nodes or not first.result():
            raise Failed(f"{' '.join(argv)}: exit code {process.returncode}, {len(most)} daemons")
        return max(most.values()), first.result() - start_s

    def descriptors(self, nodes, per_node):
        """The most that a daemon of a job has open while it runs; all daemons have as many."""
        return self.daemons_most(nodes, per_node, ("barrier", "-w", "0", "-n", "1500", "--json"), descriptors_of, 0.01)[0]

    def many_daemons(self, nodes, per_node):
        """Resident bytes, at the most, of one of so many daemons, and seconds from starting them until all ranks have
        summed something and checked it. Looking at each takes time that they need, so it is done seldom. The sum is of
        1 KiB: each rank computes what all of them give."""
        collective = ("all_reduce", "-b", "1K", "-e", "1K", "-w", "0", "-n", "1", "--json")
        return self.daemons_most(nodes, per_node, collective, resident_bytes, 4)

    def seal_GBps(self):
        """Return the rates at which the cipher alone seals and opens messages as large as chunks, on each core while
        all do."""
        cores = len(os.sched_getaffinity(0))
        with concurrent.futures.ThreadPoolExecutor(cores) as pool:
            figures = list(pool.map(lambda _: run([self.program("bench/bench_seal")])[0], range(cores)))
        return tuple(statistics.mean(figure[way] for figure in figures) for way in ("seal_GBps", "open_GBps"))

    def shoal_nodes(self, nodes, case, protect, options=()):
        """A rank on each of some nodes over loopback, whose daemons have a secret."""
        with tempfile.TemporaryDirectory() as folder:
            secret, config = os.path.join(folder, "secret"), os.path.join(folder, "config.json")
            with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
                file.write(os.urandom(32).hex() + "\n")
            with open(config, "w", encoding="ascii") as file:
                json.dump({"secret_file": secret, "protect": protect}, file)
            return times(run(["env", "-u", "SHOAL_SOCKET", self.program("bin/shoalrun"), "--nodes", str(nodes),
                              "-n", "1", "--config", config, "--", *self.perf(case, options)]))

    def copy_GBps(self):
        return run([self.program("bench/bench_copy")])[0]["copy_GBps"]

    def pieces_s(self, ranks, size, rounds=10):
        """Return the seconds that the copies and sums alone of an all-reduce between private buffers take, as
        bench_pieces says."""
        return run([self.program("bench/bench_pieces"), str(ranks), str(size >> 20),
                    str(rounds)])[0]["time_us"] / 1e6

    def copies(self, ranks, case, collective):
        """Return the command of bench_copies, which says what the copies alone of a broadcast or an all_gather take."""
        return [self.program("bench/bench_copies"), collective, str(ranks), str(case.iterations),
                *map(str, case.sizes)]


class Cluster:
    """Nodes in network namespaces, for a `with`."""

    def __init__(self, tools, nodes, cpu_nodes, rate=None, protect="none", weights=None):
        self.tools, self.name = tools, "bench-" + uuid.uuid4().hex[:8]
        self.script = os.path.join(os.path.dirname(HERE), "cluster.sh")
        self.options = ["--nodes", str(nodes), "--cpu-nodes", str(cpu_nodes), "--set", f'protect="{protect}"',
                        "--build", tools.build, *(["--rate", rate] if rate else []),
                        *(["--weights", weights] if weights else [])]

    def __enter__(self):
        if os.geteuid() != 0:
            raise Missing("needs root, for network namespaces")
        code, output, errors = call([self.script, "up", "--name", self.name, *self.options])
        if code != 0:
            if "are network namespaces" in output + errors:
                raise Missing((output + errors).strip())
            raise Failed(output + errors)
        return self

    def __exit__(self, *error):
        subprocess.run([self.script, "down", "--name", self.name], check=False)

    def ranks(self, command, per_node=1):
        return [self.script, "run", "--name", self.name, "-n", str(per_node), "--", *command]

    def shoal(self, case, per_node=1, options=(), collective="all_reduce"):
        return times(run(self.ranks(self.tools.perf(case, options, collective), per_node)))

    def gloo(self, case, per_node=1):
        Tools.need_torch()
        command = [PYTHON, os.path.join(HERE, "gloo_ranks.py"), *case.numbers()]
        return times(run(self.ranks(command, per_node)))

    def overlap(self, table, dtype, rate_Bps, steps, threshold_MiB):
        """Return the row that bench_overlap prints about a backward pass."""
        path = os.path.join(os.path.dirname(os.path.dirname(HERE)), "tests/bench/models", table + ".csv")
        rows = run(self.ranks([self.tools.program("bench/bench_overlap"), path, dtype, str(rate_Bps),
                               str(steps), str(threshold_MiB)]))
        if rows[0]["wrong"]:
            raise Failed(f"{rows[0]['wrong']} wrong gradients of {table}")
        return rows[0]

    def drops(self):
        """Packets that the switch has dropped since the cluster is up."""
        code, output, errors = call(["tc", "-n", f"shoal-{self.name}-bridge", "-s", "-j", "qdisc", "show"])
        if code != 0:
            raise Failed(output + errors)
        return sum(queue.get("drops", 0) for queue in json.loads(output))

    def stream_Bps(self):
        """Return the rate of raw TCP on a link, both ways at once: bytes per second, the mean of the nodes."""
        rows = run(self.ranks([self.tools.program("bench/bench_stream"), "64"]))
        return statistics.mean(row["stream_GBps"] for row in rows) * 1e9

    def delay_s(self):
        """From a process of a node to one of the next, while nothing else is on the links."""
        rows = run(self.ranks([self.tools.program("bench/bench_stream"), "1"]))
        return statistics.mean(row["delay_us"] for row in rows) / 1e6

    def tls_Bps(self):
        """Return the rate of TCP between two nodes through stunnel: bytes per second, the mean of the nodes."""
        if not shutil.which("stunnel"):
            raise Missing("stunnel is not installed")
        rows = run(self.ranks([PYTHON, os.path.join(HERE, "tls_stream.py"),
                               self.tools.program("bench/bench_stream"), "64"]))
        return statistics.mean(row["stream_GBps"] for row in rows) * 1e9


def _draws():
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def progress(text):
    """Show what is measured now, where errors go to a terminal: a line that the next one, or say(), takes away. Text
    that others write begins where the line does; the line's last column stays free, so that it goes on in no other
    line."""
    if not _draws():
        return
    columns = shutil.get_terminal_size().columns
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or columns
    except OSError:
        pass
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    print(f"\r{shown[:columns - 1]}\033[K", end="\r", file=sys.stderr, flush=True)


def say(text):
    erase = "\r\033[K" if _draws() else ""
    print(erase + text, file=sys.stderr, flush=True)
