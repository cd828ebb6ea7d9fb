#!/usr/bin/env python3
"""Seeded faults on a cluster of network namespaces, while a job sums and checks each result: how long does
each fault cost it, is a result ever wrong, does anything hang? By hand, as root, after `make tests`:

    scripts/chaos.py --faults 100 --seed 1 [--nodes 4] [--cpu-nodes 2] [--largest BYTES] [--rate RATE]
                     [--recovery] [--kinds rank,node,cpu,pause] [--set KEY=JSON] [--json FILE]
                     [--build DIR]

    rank    a rank is killed; it comes again as a newcomer
    node    a node is lost: its daemon and its ranks are killed; both are started again
    cpu     the daemon of a CPU node is killed, and started again
    pause   a rank is stopped for 300 ms, which are not counted
    reset   with --recovery: all connections of a node are reset
    cable   with --recovery: a node's link is down for 1 s, which is not counted

A line for each fault. What it cost is the time from the fault until every rank that is left has the
result of a step that began after it; starting processes again is not counted. Exit status 1: a result
was wrong, something hung, or the job ended."""

import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

TREE = pathlib.Path(__file__).resolve().parents[1]
CLUSTER = TREE / "scripts" / "cluster.sh"
STATE = pathlib.Path("/run/shoal-cluster")
KINDS = ("rank", "node", "cpu", "pause")
LINK_KINDS = ("reset", "cable")  # a job without recovery ends its generation by them
HANG_S = 60.0
PAUSE_S = 0.3
CABLE_S = 1.0
QUIET_S = (0.3, 1.5)  # between faults


class Wrong(Exception):
    """What must not happen."""


def run(*words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def now_ms():
    return time.clock_gettime(time.CLOCK_MONOTONIC) * 1000


class Rank:
    """A process of the job, and what it has said last."""

    def __init__(self, chaos, node, newcomer):
        options = chaos.options
        environment = {**os.environ, "SHOAL_SOCKET": str(chaos.state / f"{node}.sock"), "SHOAL_JOB": chaos.job}
        if newcomer:
            environment["CHAOS_NEWCOMER"] = "1"
        else:
            environment["WORLD_SIZE"] = str(options.nodes)
        program = options.build / "tests" / "chaos_rank"
        words = [program, options.nodes, options.largest, options.seed, chaos.stop]
        self.node, self.step_ms, self.size, self.lines = node, 0, 0, []
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
                    self.step_ms = int(words[0])
                    chaos.steps += 1
                elif words[1:2] == ["generation"]:
                    self.size = int(words[4])
                elif words[1:2] != ["lost"]:
                    chaos.troubles.append(f"{self.node}: {line.rstrip()}")
                chaos.said.notify_all()

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        try:
            status = self.process.wait(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            raise Wrong(f"{self.node}: does not end: {self.lines[-3:]}") from None
        self.thread.join()
        return status


class Chaos:
    def __init__(self, options, folder):
        self.options, self.stop = options, pathlib.Path(folder) / "stop"
        self.name = f"chaos{os.getpid()}"
        self.job, self.state = f"chaos-{os.getpid()}", STATE / self.name
        self.random = random.Random(options.seed)
        self.said = threading.Condition()
        self.troubles, self.steps, self.ranks, self.daemons = [], 0, [], {}

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
        for i in range(options.nodes):
            self.ranks.append(Rank(self, f"node{i}", False))
        self.wait_for_all()

    def check(self):
        if self.troubles:
            raise Wrong("; ".join(self.troubles))
        for rank in self.ranks:
            if rank.process.poll() not in (None, -signal.SIGKILL):
                raise Wrong(f"{rank.node}: ended with {rank.process.returncode}: {rank.lines[-3:]}")

    def wait(self, condition, what):
        """Until the condition holds, of what the ranks say."""
        end = time.monotonic() + HANG_S
        with self.said:
            while not condition():
                self.check()
                if time.monotonic() > end:
                    raise Wrong(f"{what}: hangs; " + "; ".join(f"{it.node}: {it.lines[-2:]}" for it in self.ranks))
                self.said.wait(0.2)

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

    def newcomer(self, node):
        self.ranks.append(Rank(self, node, True))

    def take(self, node):
        rank = next(it for it in self.ranks if it.node == node)
        self.ranks.remove(rank)
        rank.kill()

    def daemon_kill(self, node):
        """The one of `cluster.sh up`, or ours; its namespace has one."""
        for pid in run("ip", "netns", "pids", self.namespace(node)).split():
            try:
                if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "shoald":
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass  # it has just ended
        if node in self.daemons:
            self.daemons.pop(node).wait()

    def daemon_start(self, node):
        with open(self.state / f"{node}.log", "a", encoding="utf-8") as log:
            program = self.options.build / "bin" / "shoald"
            words = ["ip", "netns", "exec", self.namespace(node), program, "--config", self.state / f"{node}.json"]
            self.daemons[node] = subprocess.Popen(words, stdout=log, stderr=log)
        shoalctl = self.options.build / "bin" / "shoalctl"
        end = time.monotonic() + HANG_S
        while True:
            done = subprocess.run(
                [shoalctl, "--socket", self.state / f"{node}.sock", "status", "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                check=False,
            )
            wanted = self.options.nodes + self.options.cpu_nodes - 1
            if done.returncode == 0 and done.stdout.count(b'"fabric": "up"') == wanted:
                return
            if time.monotonic() > end:
                raise Wrong(f"the daemon of {node} does not join the others")
            with self.said:
                self.said.wait(0.1)

    # --- faults; each returns what it cost in ms

    def rank_fault(self):
        node = self.random.choice(self.ranks).node
        began_ms = now_ms()
        self.take(node)
        cost_ms = self.wait_for_steps(began_ms, f"rank of {node} killed")
        self.newcomer(node)
        return node, cost_ms

    def node_fault(self):
        node = self.random.choice(self.ranks).node
        began_ms = now_ms()
        self.take(node)  # first, or it would say that its daemon is gone
        self.daemon_kill(node)
        cost_ms = self.wait_for_steps(began_ms, f"{node} lost")
        self.daemon_start(node)
        self.newcomer(node)
        return node, cost_ms

    def cpu_fault(self):
        node = f"cpu{self.random.randrange(self.options.cpu_nodes)}"
        began_ms = now_ms()
        self.daemon_kill(node)
        cost_ms = self.wait_for_steps(began_ms, f"{node} lost")
        self.daemon_start(node)
        return node, cost_ms

    def pause_fault(self):
        rank = self.random.choice(self.ranks)
        began_ms = now_ms()
        rank.process.send_signal(signal.SIGSTOP)
        with self.said:
            self.said.wait_for(lambda: False, PAUSE_S)
        rank.process.send_signal(signal.SIGCONT)
        return rank.node, self.wait_for_steps(began_ms, f"{rank.node} stopped") - 1000 * PAUSE_S

    def nodes(self):
        return [rank.node for rank in self.ranks] + [f"cpu{i}" for i in range(self.options.cpu_nodes)]

    def reset_fault(self):
        node = self.random.choice(self.nodes())
        began_ms = now_ms()
        run("ip", "netns", "exec", self.namespace(node), "ss", "-K", "-t", "state", "established")
        return node, self.wait_for_steps(began_ms, f"connections of {node} reset")

    def cable_fault(self):
        node = self.random.choice(self.nodes())
        began_ms = now_ms()
        run("ip", "-n", self.namespace("bridge"), "link", "set", node, "down")
        with self.said:
            self.said.wait_for(lambda: False, CABLE_S)
        run("ip", "-n", self.namespace("bridge"), "link", "set", node, "up")
        return node, self.wait_for_steps(began_ms, f"cable of {node} out") - 1000 * CABLE_S

    def one(self, number, kind):
        with self.said:
            self.said.wait_for(lambda: False, self.random.uniform(*QUIET_S))
        node, cost_ms = getattr(self, f"{kind}_fault")()
        print(f"{number:5d} {kind:6} {node:8} {cost_ms:8.0f} ms", flush=True)
        self.wait_for_all()
        return {"kind": kind, "node": node, "cost_ms": round(cost_ms, 1)}

    def end(self):
        self.stop.touch()
        statuses = [rank.end() for rank in self.ranks]
        self.ranks = []
        if any(statuses):
            raise Wrong(f"exit codes {statuses}")

    def clear(self):
        for rank in self.ranks:
            rank.process.kill()
            rank.end()
        if self.state.exists():
            run(CLUSTER, "down", "--name", self.name)
        for daemon in self.daemons.values():
            daemon.wait()


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def report(faults, steps):
    print(f"\n{'kind':6} {'faults':>6} {'median':>9} {'99 %':>9} {'most':>9}")
    for kind in [*KINDS, *LINK_KINDS, "all"]:
        costs = [it["cost_ms"] for it in faults if kind in (it["kind"], "all")]
        if costs:
            figures = (statistics.median(costs), quantile(costs, 0.99), max(costs))
            print(f"{kind:6} {len(costs):6d} " + " ".join(f"{figure:6.0f} ms" for figure in figures))
    print(f"{steps} results of steps, each checked")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpu-nodes", type=int, default=2)
    parser.add_argument("--largest", type=int, default=4 << 20)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--recovery", action="store_true")
    parser.add_argument("--kinds")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=TREE / "build")
    options = parser.parse_args()
    options.build = options.build.resolve()
    known = KINDS + LINK_KINDS if options.recovery else KINDS
    kinds = options.kinds.split(",") if options.kinds else known
    unknown = set(kinds) - set(known)
    if unknown or options.nodes < 2 or (options.cpu_nodes < 1 and "cpu" in kinds):
        parser.error(f"unknown kinds: {', '.join(unknown)}" if unknown else "too few nodes")
    if os.geteuid() != 0:
        parser.error("needs root: network namespaces are made and entered")
    faults, status = [], 0
    with tempfile.TemporaryDirectory(prefix="shoal-chaos-") as folder:
        chaos = Chaos(options, folder)
        try:
            chaos.begin()
            for number in range(1, options.faults + 1):
                faults.append(chaos.one(number, chaos.random.choice(kinds)))
            chaos.end()
        except (Wrong, RuntimeError) as error:
            print(f"chaos: fault {len(faults) + 1}: {error}", file=sys.stderr)
            status = 1
        finally:
            chaos.clear()
    if options.json:
        result = {"seed": options.seed, "status": status, "steps": chaos.steps, "faults": faults}
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    report(faults, chaos.steps)
    return status


if __name__ == "__main__":
    sys.exit(main())
