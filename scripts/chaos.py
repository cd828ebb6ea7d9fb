#!/usr/bin/env python3
"""Seeded faults on a cluster of network namespaces, while a job sums or trains and checks each result: how
long does each fault cost it, is a result ever wrong, does anything hang? By hand, as root, after `make tests`:

    scripts/chaos.py --faults 100 --seed 1 [--nodes 4] [--cpu-nodes 2] [--largest BYTES] [--rate RATE]
                     [--program sums|ddp] [--recovery] [--kinds KIND,...] [--quiet LOW,HIGH]
                     [--set KEY=JSON] [--first N] [--json FILE] [--build DIR]

Programs: `sums` are all-reduces in C (tests/e2e/chaos_rank.c), `ddp` is training with PyTorch
(tests/python/ranks/ranks_chaos.py; CHAOS_PYTHON names the interpreter). Both know what each result must be.

A line for each fault, with two times, from the fault on: until every rank that is left has the result of the
step that was under way, and until each has that of a step that began after it. Starting processes again is not
counted, nor is the time for which a fault lasts; the steps themselves are (`--kinds none` has what they take).
Fault N of a seed is the same kind, whatever was before it: --first N begins with it. After
what must not happen (a wrong result, a hang, a job that ended, a loss that was to cost nothing but time) the
cluster is made anew; exit status 1. Kinds (without --kinds all but none, those with * with --recovery only):
"""

import argparse
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import chaos_faults

TREE = pathlib.Path(__file__).resolve().parents[1]
CLUSTER = TREE / "scripts" / "cluster.sh"
STATE = pathlib.Path("/run/shoal-cluster")
HANG_S = 60.0
NOTICE_S = 2.0  # in which a rank says that another is gone, if it says so
TROUBLES = ("wrong", "hang", "ended", "seen")
TROUBLES_MOST = 5  # then the rest is given up
MASTER_PORT = 29500


class Trouble(Exception):
    """Something that must not happen; `kind` is one of TROUBLES."""

    def __init__(self, kind, text):
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def run(*words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def now_ms():
    return time.clock_gettime(time.CLOCK_MONOTONIC) * 1000


class Rank:
    """A process of the job, and what it has said last."""

    def __init__(self, chaos, node, number):
        """number: in the beginning; None: a newcomer."""
        options = chaos.options
        environment = {**os.environ, "SHOAL_SOCKET": str(chaos.state / f"{node}.sock"), "SHOAL_JOB": chaos.job}
        if number is None:
            environment["CHAOS_NEWCOMER"] = "1"
        else:
            environment["WORLD_SIZE"] = str(options.nodes)
        if options.program == "ddp":
            environment["PYTHONPATH"] = str(TREE / "worker" / "python")
            environment["SHOAL_LIBRARY"] = str(options.build / "lib" / "libshoal.so")
            environment["OMP_NUM_THREADS"] = "1"
            environment.update(MASTER_ADDR=chaos.addresses["node0"], MASTER_PORT=str(MASTER_PORT))
            if number is not None:
                environment["RANK"] = str(number)
            python = os.environ.get("CHAOS_PYTHON", "/usr/bin/python3")
            program = [python, "-u", TREE / "tests" / "python" / "ranks" / "ranks_chaos.py"]
        else:
            program = [options.build / "tests" / "chaos_rank"]
        words = [*program, options.nodes, options.largest, options.seed, chaos.stop]
        self.node, self.step, self.step_ms, self.size, self.lines = node, 0, 0, 0, []
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", chaos.namespace(node), *(str(word) for word in words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self.thread = threading.Thread(target=self.read, args=(chaos,))
        self.thread.start()

    def read(self, chaos):
        for line in self.process.stdout:
            words = line.split()
            with chaos.said:
                self.lines = [*self.lines[-20:], line.rstrip()]
                if words[1:2] == ["step"]:
                    self.step_ms, self.step = int(words[0]), int(words[2])
                    if self.step >= chaos.under_way:
                        chaos.results_ms.setdefault(self.node, self.step_ms)
                    chaos.steps += 1
                elif words[1:2] == ["generation"]:
                    self.size = int(words[4])
                elif words[1:2] == ["lost"]:
                    chaos.losses += 1
                    chaos.last_loss = f"{self.node}: {line.rstrip()}"
                elif words[1:2] in (["wrong"], ["failed"]) or chaos.options.program == "sums":
                    kind = "wrong" if words[1:2] == ["wrong"] else "ended"
                    chaos.troubles.append((kind, f"{self.node}: {line.rstrip()}"))
                chaos.said.notify_all()

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        try:
            status = self.process.wait(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Trouble("hang", f"{self.node} does not end: {self.lines[-3:]}") from None
        finally:
            self.thread.join()
        return status


class Chaos:
    """A cluster and its job, from the beginning to the end."""

    def __init__(self, options, folder, life):
        self.options, self.stop = options, pathlib.Path(folder) / f"stop{life}"
        self.name = f"chaos{os.getpid()}"
        self.job, self.state = f"chaos-{os.getpid()}-{life}", STATE / self.name
        self.random, self.addresses = random.Random(options.seed), {}
        self.said = threading.Condition()
        self.troubles, self.steps, self.losses, self.last_loss = [], 0, 0, ""
        self.struck_ms, self.under_way, self.results_ms = None, 0, {}
        self.ranks, self.daemons, self.starting, self.coming = [], {}, [], []

    def namespace(self, node):
        return f"shoal-{self.name}-{node}"

    def begin(self):
        options = self.options
        words = ["up", "--name", self.name, "--nodes", options.nodes, "--cpu-nodes", options.cpu_nodes]
        words += ["--rate", options.rate, "--build", options.build]
        # CPU nodes have no ranks; but a job must outlive them all.
        words += ["--weights", "1,1"]
        for pair in [*options.set, *(["recovery=true"] if options.recovery else [])]:
            words += ["--set", pair]
        run(CLUSTER, *words)
        for line in run(CLUSTER, "status", "--name", self.name).splitlines():
            self.addresses.update([line.split()[:2]] if len(line.split()) > 1 else [])
        self.ranks = [Rank(self, f"node{i}", i) for i in range(options.nodes)]
        self.wait_for_all()

    def check(self):
        if self.troubles:
            kinds = [kind for kind, _ in self.troubles]
            kind = "wrong" if "wrong" in kinds else "ended"
            raise Trouble(kind, "; ".join(text for _, text in self.troubles))
        for rank in self.ranks:
            if rank.process.poll() not in (None, -signal.SIGKILL):
                raise Trouble("ended", f"{rank.node}: exit status {rank.process.returncode}: {rank.lines[-3:]}")

    def wait(self, condition, what):
        """Until the condition holds, of what the ranks say."""
        end = time.monotonic() + HANG_S
        with self.said:
            while not condition():
                self.check()
                if time.monotonic() > end:
                    said = "; ".join(f"{it.node}: {it.lines[-2:]}" for it in self.ranks)
                    raise Trouble("hang", f"{what}; {said}")
                self.said.wait(0.2)

    def pause(self, seconds):
        with self.said:
            self.said.wait_for(lambda: False, seconds)

    def wait_for_steps(self, since_ms, what):
        """Two each, since the first may have begun before. Returns how long that was."""
        done_ms = since_ms
        for _ in range(2):
            self.wait(lambda: all(rank.step_ms > done_ms for rank in self.ranks), what)
            done_ms = max(rank.step_ms for rank in self.ranks)
        return done_ms - since_ms

    def wait_for_all(self):
        size = self.options.nodes
        self.wait(lambda: all(rank.size == size for rank in self.ranks), f"{size} ranks")
        self.wait_for_steps(now_ms(), "a step of all")

    def wait_until_lost(self, losses):
        """Until some rank has noticed more losses than those; a job that goes on by itself says none."""
        with self.said:
            self.said.wait_for(lambda: self.losses > losses, NOTICE_S)

    # --- what faults are made of

    def struck(self):
        """The fault is now, or was."""
        with self.said:
            if self.struck_ms is None:
                self.under_way = max(rank.step for rank in self.ranks) + 1
                self.struck_ms, self.results_ms = now_ms(), {}

    def rank_nodes(self):
        return [rank.node for rank in self.ranks]

    def cpu_nodes(self):
        return [f"cpu{i}" for i in range(self.options.cpu_nodes)]

    def rank_of(self, node):
        return next(it for it in self.ranks if it.node == node)

    def inside(self, node, *words):
        return run("ip", "netns", "exec", self.namespace(node), *words)

    def take(self, node):
        rank = self.rank_of(node)
        self.struck()
        self.ranks.remove(rank)
        rank.kill()

    def newcomer(self, node):
        """It comes when all daemons are there."""
        self.coming.append(node)

    def daemon_signal(self, node, number):
        """The one of `cluster.sh up`, or ours; its namespace has one."""
        pids = list(chaos_faults.daemons_in(run("ip", "netns", "pids", self.namespace(node)).split()))
        self.struck()
        for pid in pids:
            chaos_faults.signal_to(pid, number)

    def daemon_kill(self, node):
        self.daemon_signal(node, signal.SIGKILL)
        if node in self.daemons:
            self.daemons.pop(node).wait()

    def daemon_start(self, node):
        """Returns after how many seconds it was ready for the ranks of its node."""
        program, path = self.options.build / "bin" / "shoald", self.state / f"{node}.notify"
        words = ["ip", "netns", "exec", self.namespace(node), program, "--config", self.state / f"{node}.json"]
        began_s = time.monotonic()
        with (
            open(self.state / f"{node}.log", "a", encoding="utf-8") as log,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified,
        ):
            path.unlink(missing_ok=True)
            notified.bind(str(path))
            notified.settimeout(HANG_S)
            environment = {**os.environ, "NOTIFY_SOCKET": str(path)}
            self.daemons[node] = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
            self.starting.append(node)
            try:
                while b"READY=1" not in notified.recv(4096):
                    pass
            except TimeoutError:
                raise Trouble("hang", f"the daemon of {node} does not start") from None
        return time.monotonic() - began_s

    def daemon_is_joined(self, node):
        done = subprocess.run(
            [self.options.build / "bin" / "shoalctl", "--socket", self.state / f"{node}.sock", "status", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        wanted = self.options.nodes + self.options.cpu_nodes - 1
        return done.returncode == 0 and done.stdout.count(b'"fabric": "up"') == wanted

    def settle(self):
        """Until the daemons that were started have joined the others, and the newcomers are of the job."""
        end = time.monotonic() + HANG_S
        for node in self.starting:
            while not self.daemon_is_joined(node):
                if time.monotonic() > end:
                    raise Trouble("hang", f"the daemon of {node} does not join the others")
                self.pause(0.1)
        self.ranks += [Rank(self, node, None) for node in self.coming]
        self.starting, self.coming = [], []
        self.wait_for_all()

    # --- one fault

    def one(self, number, kinds):
        self.random = random.Random(f"{self.options.seed} {number}")
        self.pause(self.random.uniform(*self.options.quiet))
        kind = self.random.choice(kinds)
        fault = chaos_faults.make(self, kind, [it for it in kinds if it in chaos_faults.KINDS])
        what, losses, self.struck_ms = f"{kind} on {fault.node}", self.losses, None
        fault.strike()
        self.struck()
        if fault.away_s > 0:
            self.pause(fault.away_s)
        fault.heal()
        away_ms = 1000 * fault.away_s
        cost_ms = self.wait_for_steps(self.struck_ms, what) - away_ms
        self.wait(lambda: all(rank.node in self.results_ms for rank in self.ranks), what)
        result_ms = max(0, max(self.results_ms[rank.node] for rank in self.ranks) - self.struck_ms - away_ms)
        if self.losses > losses and not fault.seen:
            raise Trouble("seen", f"{what} was to cost nothing but time: {self.last_loss}")
        fault.mend()
        self.settle()
        print(f"{number:5d} {kind:9} {fault.node:12} {result_ms:8.0f} ms {cost_ms:8.0f} ms", flush=True)
        return {
            "number": number,
            "kind": kind,
            "node": fault.node,
            "result_ms": round(result_ms, 1),
            "cost_ms": round(cost_ms, 1),
        }

    def end(self):
        self.stop.touch()
        statuses = [rank.end() for rank in self.ranks]
        self.ranks = []
        if any(statuses):
            raise Trouble("ended", f"exit codes {statuses}")

    def clear(self):
        for rank in self.ranks:
            rank.process.kill()
            rank.process.wait()
            rank.thread.join()
        if self.state.exists():
            run(CLUSTER, "down", "--name", self.name)
        for daemon in self.daemons.values():
            daemon.wait()


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


class Record:
    """The faults, steps and troubles of all the lives of a run."""

    def __init__(self):
        self.faults, self.steps, self.troubles = [], 0, []

    def report(self):
        """Print for each kind of fault the median, 99 % and the most of both times."""
        print(f"\n{'ms, until there is':16} {'the step under way':>26} {'a step after it':>26}")
        print(f"{'kind':9} {'faults':>6}" + 2 * f"{'median':>9} {'99 %':>8} {'most':>8}")
        for kind in [*sorted({it["kind"] for it in self.faults}), "all"]:
            faults = [it for it in self.faults if kind in (it["kind"], "all")]
            if not faults:
                continue
            print(f"{kind:9} {len(faults):6d}", end="")
            for what in ("result_ms", "cost_ms"):
                costs = [it[what] for it in faults]
                print(f"{statistics.median(costs):9.0f} {quantile(costs, 0.99):8.0f} {max(costs):8.0f}", end="")
            print()
        counts = {kind: sum(it["kind"] == kind for it in self.troubles) for kind in TROUBLES}
        print(
            f"{self.steps} results of steps, each checked: {counts['wrong']} wrong, {counts['hang']} hangs, "
            f"{counts['ended']} jobs that ended, {counts['seen']} losses that were to cost nothing but time"
        )


def live(options, kinds, folder, life, record, numbers):
    """Faults until there are no more, or trouble. `numbers` is an iterator."""
    chaos, number = Chaos(options, folder, life), None
    try:
        chaos.begin()
        for number in numbers:
            record.faults.append(chaos.one(number, kinds))
        chaos.end()
    except (Trouble, RuntimeError) as error:
        where = "before all faults" if number is None else f"fault {number}"
        print(f"chaos: {where}: {error}", file=sys.stderr, flush=True)
        record.troubles.append({"kind": getattr(error, "kind", "ended"), "number": number, "text": str(error)})
    finally:
        record.steps += chaos.steps
        chaos.clear()


def kinds_text():
    return "\n".join(
        f"    {name + ('*' if kind.wants_recovery else ''):10}{(kind.__doc__ or '').strip()}"
        for name, kind in {**chaos_faults.KINDS, **chaos_faults.PAIRS}.items()
    )


def quiet_range(text):
    low, high = (float(part) for part in text.split(","))
    return low, high


def parse_options():
    parser = argparse.ArgumentParser(
        description=__doc__ + kinds_text(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpu-nodes", type=int, default=2)
    parser.add_argument("--largest", type=int, default=4 << 20)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--program", choices=("sums", "ddp"), default="sums")
    parser.add_argument("--recovery", action="store_true")
    parser.add_argument("--kinds")
    parser.add_argument("--quiet", type=quiet_range, default=(0.3, 1.5), help="seconds between faults")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=TREE / "build")
    options = parser.parse_args()
    options.build = options.build.resolve()
    every = {**chaos_faults.KINDS, **chaos_faults.PAIRS}
    known = [name for name, kind in every.items() if options.recovery or not kind.wants_recovery]
    options.kinds = options.kinds.split(",") if options.kinds else [it for it in known if every[it].usual]
    unknown = [kind for kind in options.kinds if kind not in known]
    if unknown:
        parser.error(f"unknown kinds: {', '.join(unknown)}")
    if options.nodes < 3 or options.cpu_nodes < 1:
        parser.error("too few nodes")
    paired = any(kind in chaos_faults.PAIRS for kind in options.kinds)
    if paired and chaos_faults.places(options.kinds, options.nodes, options.cpu_nodes) < 2:
        parser.error("a pair of faults needs kinds to be made of, and two nodes that they can hit")
    if os.geteuid() != 0:
        parser.error("needs root: network namespaces are made and entered")
    return options


def main():
    options, record, life = parse_options(), Record(), 0
    numbers = iter(range(options.first, options.first + options.faults))
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shoal-chaos-") as folder:
        while life == 0 or (len(record.troubles) == life and life < TROUBLES_MOST):
            live(options, options.kinds, folder, life, record, numbers)
            life += 1
    status = 1 if record.troubles else 0
    if options.json:
        result = {
            "seed": options.seed,
            "status": status,
            "seconds": round(time.monotonic() - began_s, 1),
            "steps": record.steps,
            "faults": record.faults,
            "troubles": record.troubles,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    record.report()
    return status


if __name__ == "__main__":
    sys.exit(main())
