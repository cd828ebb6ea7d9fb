#!/usr/bin/env python3
"""Seeded faults on four nodes, network namespaces: does `shoalctl why` name the node and the kind within
5 s, and is its figure the step that is measured with the fault taken away? By hand, as root, on a
machine that does nothing else:

    scripts/bench/why_faults.py --faults 100 --seed 1 [--until HH:MM] [--build DIR]

One line for each fault, then a count for each kind. A rank that begins late does so from the job's
first step, and the step without it is that of a job before. Left out are a busy loop beside one
server, which on a machine of few cores is one beside all of them, and what the kernel cannot do."""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import threading
import time

TREE = pathlib.Path(__file__).resolve().parents[2]
CLUSTER = TREE / "scripts" / "cluster.sh"
NODES, FLOATS, RATE = 4, 100000, "1gbit"
NAMED_S = 5.0  # after which a fault must be named
WINDOW_S = 4.5  # what an account looks back to, and a little more
START_S = 60.0
ACCEPTED = {
    "rank": {"rank late"},
    "rate": {"link slow"},
    "delay": {"link slow"},
    "inward": {"receiver slow"},
    "stopped rank": {"rank late", "rank drains slowly"},
    "stopped server": {"server slow"},
}


def run(*words, check=True):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def pids(namespace, program):
    """Those of the program in the namespace."""
    found = []
    for pid in run("ip", "netns", "pids", namespace).split():
        try:
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == program:
                found.append(int(pid))
        except OSError:
            pass
    return found


class Bursts:
    """SIGSTOP for 60 ms of each 120."""

    def __init__(self, processes):
        self.processes, self.over = processes, threading.Event()
        self.thread = threading.Thread(target=self.go)
        self.thread.start()

    def send(self, number):
        for pid in self.processes:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def go(self):
        while not self.over.is_set():
            self.send(signal.SIGSTOP)
            self.over.wait(0.06)
            self.send(signal.SIGCONT)
            self.over.wait(0.06)
        self.send(signal.SIGCONT)

    def end(self):
        self.over.set()
        self.thread.join()


class Job:
    def __init__(self, options, folder, late=-1):
        self.options, self.folder = options, pathlib.Path(folder)
        self.stop, self.told = self.folder / "stop", self.folder / "job"
        for path in (self.stop, self.told):
            path.unlink(missing_ok=True)
        helper = options.build / "tests" / "helper_worker"
        words = f"[ $RANK != 0 ] || echo $SHOAL_JOB > {self.told}; exec {helper} lag {self.stop} {FLOATS} {late} 20"
        self.process = subprocess.Popen(
            [CLUSTER, "run", "-n", "1", "--name", options.name, "--", "sh", "-c", words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self.wait(lambda: self.told.exists() and self.told.read_text().strip())
            self.job = self.told.read_text().strip()
            self.wait(lambda: self.why().get("collectives", 0) >= 20)
        except BaseException:
            self.end()
            raise

    def wait(self, condition):
        end = time.monotonic() + START_S
        while not condition():
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError("the job does not run")
            time.sleep(0.1)

    def why(self, node=0):
        shoalctl = self.options.build / "bin" / "shoalctl"
        words = [CLUSTER, "exec", f"node{node}", "--name", self.options.name, "--"]
        text = run(*words, shoalctl, "why", self.job, "--json", check=False)
        return json.loads(text) if text.strip() else {}

    def end(self):
        self.stop.touch()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()


class Fault:
    """On one node. `begin` and `end` of a job that runs; `late`: the rank that begins late all along."""

    def __init__(self, kind, node, chance, name):
        self.kind, self.node, self.name = kind, node, name
        self.rate = f"{chance.choice((30, 50, 80, 120))}mbit"
        self.delay = f"{chance.choice((10, 20, 30))}ms"
        self.late = node if kind == "rank" else -1
        self.bursts, self.undo = None, None

    def shape(self, namespace, device, words, undo):
        run("tc", "-n", f"shoal-{self.name}-{namespace}", "qdisc", "replace", "dev", device, "root", *words.split())
        self.undo = (namespace, device, undo)

    def begin(self):
        own, node = "tbf rate {} burst 131072 limit 16777216", f"node{self.node}"
        if self.kind == "rate":
            self.shape(node, "eth0", own.format(self.rate), own.format(RATE))
        elif self.kind == "delay":
            self.shape(node, "eth0", f"netem delay {self.delay} limit 100000", own.format(RATE))
        elif self.kind == "inward":
            self.shape("bridge", node, own.format(self.rate), own.format(RATE))
        elif self.kind.startswith("stopped"):
            program = "helper_worker" if self.kind == "stopped rank" else "shoald"
            self.bursts = Bursts(pids(f"shoal-{self.name}-{node}", program))

    def end(self):
        if self.bursts:
            self.bursts.end()
        if self.undo:
            self.shape(*self.undo[:2], self.undo[2], None)
        self.bursts = self.undo = None

    def is_named(self, why):
        return why.get("kind") in ACCEPTED[self.kind] and why.get("of_node") == f"node{self.node}"


def measure_fault(options, folder, fault, clean_ms):
    """How long until it was named, or None; the last verdict; the step with the fault taken away."""
    job = Job(options, folder, fault.late)
    try:
        fault.begin()
        began, after_s = time.monotonic(), None
        while after_s is None and time.monotonic() - began < NAMED_S:
            why = job.why(options.chance.randrange(NODES))
            if fault.is_named(why):
                after_s = time.monotonic() - began
            time.sleep(0.1)
        # Its figure is of a window that the fault fills.
        time.sleep(max(0.0, WINDOW_S - (time.monotonic() - began)))
        why = job.why()
        fault.end()
        if fault.kind == "rank":
            return after_s, why, clean_ms
        time.sleep(WINDOW_S)
        return after_s, why, job.why().get("step_ms", 0)
    finally:
        try:
            fault.end()
        finally:
            job.end()


def kinds_here(options):
    """Not every kernel has netem."""
    probe = Fault("delay", 0, options.chance, options.name)
    try:
        probe.begin()
        probe.end()
        return sorted(ACCEPTED)
    except RuntimeError as error:
        print(f"no delays: {error}", flush=True)
        return sorted(set(ACCEPTED) - {"delay"})


def clean_step_ms(options, folder):
    job = Job(options, folder)
    try:
        time.sleep(WINDOW_S)
        why = job.why()
        print(f"no fault: a step of {why['step_ms']:.1f} ms, said: {why['kind']} {why['of_node'] or ''}", flush=True)
        return why["step_ms"]
    finally:
        job.end()


def report(number, fault, result):
    after_s, why, step_ms = result
    off = why.get("without_ms", 0) / step_ms - 1 if step_ms else float("nan")
    named = f"named after {after_s:.1f} s" if after_s is not None else "NOT NAMED"
    who = f"{why.get('kind')} {why.get('of_node')}" + (f" to {why['to_node']}" if why.get("to_node") else "")
    without = f"{'' if why.get('sure') else 'about '}{why.get('without_ms', 0):.1f}"
    print(
        f"{number:3} {fault.kind:14} node{fault.node}: {named}; at last {who}, a step {why.get('step_ms', 0):.1f} ms, "
        f"without {without} (taken away: {step_ms:.1f}, {100 * off:+.0f} %)",
        flush=True,
    )
    return fault.kind, after_s is not None, abs(off) <= 0.05


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--until", help="no fault begins after this time of the day, HH:MM")
    parser.add_argument("--build", type=pathlib.Path, default=TREE / "build")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.name = f"faults-{os.getpid()}"
    options.chance = random.Random(options.seed)
    results = []
    with tempfile.TemporaryDirectory(prefix="shoal-faults-") as folder:
        try:
            run(CLUSTER, "up", "--nodes", NODES, "--rate", RATE, "--name", options.name, "--build", options.build)
            kinds = kinds_here(options)
            clean_ms = clean_step_ms(options, folder)
            for number in range(1, options.faults + 1):
                if options.until and time.strftime("%H:%M") >= options.until:
                    break
                kind, node = options.chance.choice(kinds), options.chance.randrange(NODES)
                fault = Fault(kind, node, options.chance, options.name)
                try:
                    results.append(report(number, fault, measure_fault(options, folder, fault, clean_ms)))
                except RuntimeError as error:
                    print(f"{number:3} {kind:14} node{node}: {error}", flush=True)
        finally:
            run(CLUSTER, "down", "--name", options.name, check=False)
    for kind in [*sorted({kind for kind, _, _ in results}), "all"]:
        mine = [it for it in results if kind in (it[0], "all")]
        named, exact = sum(it[1] for it in mine), sum(it[2] for it in mine)
        print(f"{kind}: {named} of {len(mine)} named, figure within 5 % in {exact}")


if __name__ == "__main__":
    main()
