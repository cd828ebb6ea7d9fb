#!/usr/bin/env python3
"""Seeded faults on four nodes, network namespaces: does `shoalctl why` name the node and the kind within
5 s, and is its figure the step that is measured with the fault taken away? By hand, as root, on a
machine that does nothing else; a fault takes about 10 s:

    scripts/bench/why_faults.py --faults 100 --seed 1 [--kinds rank,rate] [--until HH:MM] [--build DIR]

One job runs all along. A fault is put on it and taken away; the step without it is the mean of what is
measured just before and just after, by rank 0's own clock. One line for each fault, one for each time
in which a job without a fault is blamed on somebody, then a table of the kinds.

    rank            its step takes 20 ms more
    rate, inward    the link from a node, or the one to it (a slow reader), has a tenth of its rate
    delay           the link from a node takes longer, where the kernel has netem
    stopped rank, stopped server   SIGSTOP for 60 ms of each 120
    busy            a loop runs for 12 of each 18 ms on the one processor that a server has; all else has the rest.
                    It is of the real-time class, as what a kernel does for a device: beside a loop of the usual
                    class a server loses next to nothing, since the kernel lets who sleeps a lot go first"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

TREE = pathlib.Path(__file__).resolve().parents[2]
CLUSTER = TREE / "scripts" / "cluster.sh"
STATE = pathlib.Path("/run/shoal-cluster")  # of cluster.sh
NODES, FLOATS, RATE = 4, 100000, "1gbit"
COMPUTE_MS, LATE_MS = 30, 20
NAMED_S = 5.0  # after which a fault must be named
WINDOW_S = 4.3  # what an account looks back to, and a little more
FAILURES_MAX = 3  # of jobs, one after the other
CLEAN_S = 3.0  # in which a step without a fault is measured
SETTLE_S = 0.7
START_S = 60.0
ACCEPTED = {
    "rank": {"rank late"},
    "rate": {"link slow"},
    "delay": {"link slow"},
    "inward": {"receiver slow"},
    "stopped rank": {"rank late", "rank drains slowly"},
    "stopped server": {"server slow"},
    "busy": {"server slow"},
}


def run(*words, check=True):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def pids(namespace, program=None):
    """Return the pids of the processes in the namespace, only those of the program if one is named."""
    found = []
    for pid in run("ip", "netns", "pids", namespace).split():
        try:
            if program in (None, pathlib.Path(f"/proc/{pid}/comm").read_text().strip()):
                found.append(int(pid))
        except OSError:
            pass
    return found


def pin(processes, processors):
    """All threads of the processes."""
    for pid in processes:
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), processors)


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


class Loop:
    """Takes one processor for 12 of each 18 ms, whoever else wants it."""

    PROGRAM = """
import os, time
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
parent = os.getppid()
while os.getppid() == parent:
    end = time.monotonic() + 0.012
    while time.monotonic() < end:
        pass
    time.sleep(0.006)
"""

    def __init__(self, processor):
        self.process = subprocess.Popen([sys.executable, "-c", self.PROGRAM])
        pin([self.process.pid], {processor})

    def end(self):
        self.process.kill()
        self.process.wait()


class Job:
    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.stop, self.told, self.times = (self.folder / name for name in ("stop", "job", "times"))
        for path in self.folder.iterdir():
            path.unlink()
        helper = options.build / "tests" / "helper_worker"
        words = f"{helper} lag {self.stop} {FLOATS} - {LATE_MS} {COMPUTE_MS}"
        words = (
            f"exec 2>&1; [ $RANK = 0 ] || exec {words} > {self.times}.$RANK; "
            f"echo $SHOAL_JOB > {self.told}; exec {words} > {self.times}"
        )
        with open(self.folder / "ranks.log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [CLUSTER, "run", "-n", "1", "--name", options.name, "--", "sh", "-c", words], stdout=log, stderr=log
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
            self.look()
            if time.monotonic() > end:
                raise RuntimeError(f"the job does not run after {START_S:.0f} s")
            time.sleep(0.1)

    def look(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the job has ended with {self.process.returncode}")

    def why(self, node=0):
        shoalctl = self.options.build / "bin" / "shoalctl"
        words = [CLUSTER, "exec", f"node{node}", "--name", self.options.name, "--"]
        text = run(*words, shoalctl, "why", self.job, "--json", check=False)
        return json.loads(text) if text.strip() else {}

    def late(self, rank, is_late):
        path = pathlib.Path(f"{self.stop}.{rank}")
        if is_late:
            path.touch()
        else:
            path.unlink(missing_ok=True)

    def step_ms(self, seconds):
        """The mean from now on; that it goes on is looked at, too."""
        time.sleep(SETTLE_S)
        begin = time.monotonic() * 1e6
        time.sleep(seconds)
        lines = self.times.read_text().split("\n")[:-1]
        ends = [int(it) for it in lines if it.isdigit() and int(it) >= begin]
        self.look()
        if len(ends) < 2:
            raise RuntimeError(f"in {seconds:.1f} s the job has ended {len(ends)} collectives")
        return (ends[-1] - ends[0]) / 1000 / (len(ends) - 1)

    def end(self):
        self.stop.touch()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()


class Fault:
    """On one node. `begin` and `end` of a job that runs; `prepare` and `leave` around what is measured without it."""

    def __init__(self, kind, node, chance, name):
        self.kind, self.node, self.name = kind, node, name
        self.rate = f"{chance.choice((20, 30, 50, 80))}mbit"
        self.delay = f"{chance.choice((10, 20, 30))}ms"
        self.running, self.undo = None, None

    def shape(self, namespace, device, words, undo):
        run("tc", "-n", f"shoal-{self.name}-{namespace}", "qdisc", "replace", "dev", device, "root", *words.split())
        self.undo = (namespace, device, undo)

    def servers(self):
        """The one server, and all else that the cluster runs."""
        all_pids = [it for node in range(NODES) for it in pids(f"shoal-{self.name}-node{node}")]
        mine = pids(f"shoal-{self.name}-node{self.node}", "shoald")
        return mine, [it for it in all_pids if it not in mine]

    def prepare(self):
        if self.kind == "busy":
            processors = os.sched_getaffinity(0)
            mine, others = self.servers()
            pin(mine, {max(processors)})
            pin(others, processors - {max(processors)})

    def leave(self):
        if self.kind == "busy":
            mine, others = self.servers()
            pin(mine + others, os.sched_getaffinity(0))

    def begin(self, job):
        own, node = "tbf rate {} burst 65536 limit 16777216", f"node{self.node}"
        if self.kind == "rank":
            job.late(self.node, True)
        elif self.kind == "rate":
            self.shape(node, "eth0", own.format(self.rate), own.format(RATE))
        elif self.kind == "delay":
            self.shape(node, "eth0", f"netem delay {self.delay} limit 100000", own.format(RATE))
        elif self.kind == "inward":
            self.shape("bridge", node, own.format(self.rate), own.format(RATE))
        elif self.kind == "busy":
            self.running = Loop(max(os.sched_getaffinity(0)))
        else:
            program = "helper_worker" if self.kind == "stopped rank" else "shoald"
            self.running = Bursts(pids(f"shoal-{self.name}-{node}", program))

    def end(self, job):
        if job and self.kind == "rank":
            job.late(self.node, False)
        if self.running:
            self.running.end()
        if self.undo:
            self.shape(*self.undo[:2], self.undo[2], None)
        self.running = self.undo = None

    def is_named(self, why):
        return why.get("kind") in ACCEPTED[self.kind] and why.get("of_node") == f"node{self.node}"


def said(why):
    return f"{why.get('kind')} {why.get('of_node') or ''}" + (f" to {why['to_node']}" if why.get("to_node") else "")


def look_clean(number, job, known_ms):
    """The step, and who is blamed for nothing. Known is what was measured since the last fault."""
    time.sleep(max(0.0, WINDOW_S - CLEAN_S - SETTLE_S))
    step_ms = known_ms or job.step_ms(CLEAN_S)
    why = job.why()
    blamed = why.get("of_node") is not None
    if blamed:
        print(f"{number:3} no fault, but: {said(why)}, {why['lost_ms']:.1f} of {why['step_ms']:.1f} ms", flush=True)
    return step_ms, blamed


def measure_fault(options, number, job, fault, known_ms):
    """A result: how long until it was named, the last verdict, the step during it, before and after it."""
    try:
        fault.prepare()
        before_ms, blamed = look_clean(number, job, known_ms)
        fault.begin(job)
        began, after_s = time.monotonic(), None
        while after_s is None and time.monotonic() - began < NAMED_S:
            if fault.is_named(job.why(random.randrange(NODES))):
                after_s = time.monotonic() - began
            time.sleep(0.1)
        # Its figure is of a window that the fault fills, as long as can be.
        time.sleep(max(0.0, WINDOW_S - (time.monotonic() - began)))
        why = job.why()
        fault_ms = job.step_ms(0.1 + why.get("window_s", 0) / 4)
        fault.end(job)
        after_ms = job.step_ms(CLEAN_S)
    finally:
        fault.end(job)
        fault.leave()
    return {
        "kind": fault.kind,
        "node": fault.node,
        "named_s": after_s,
        "why": why,
        "during_ms": fault_ms,
        "clean_ms": (before_ms + after_ms) / 2,
        "after_ms": after_ms,
        "drift": abs(after_ms - before_ms) / ((before_ms + after_ms) / 2),
        "blamed": blamed,
    }


def kinds_here(options):
    """Not every kernel has netem, nor every machine a processor to spare."""
    kinds = set(options.kinds.split(",")) if options.kinds else set(ACCEPTED)
    if unknown := kinds - set(ACCEPTED):
        raise SystemExit(f"--kinds: no such kind: {', '.join(sorted(unknown))} (there are {', '.join(ACCEPTED)})")
    probe = Fault("delay", 0, options.chance, options.name)
    try:
        probe.begin(None)
        probe.end(None)
    except RuntimeError as error:
        print(f"no delays, the kernel has no netem: {error}", flush=True)
        kinds.discard("delay")
    if len(os.sched_getaffinity(0)) < 2:
        print("no busy loops: there is one processor", flush=True)
        kinds.discard("busy")
    return sorted(kinds)


def result_off(result):
    return result["why"].get("without_ms", 0) / result["clean_ms"] - 1


def report(number, result):
    why, after_s = result["why"], result["named_s"]
    named = f"named after {after_s:.1f} s" if after_s is not None else "NOT NAMED"
    without = f"{'' if why.get('sure') else 'about '}{why.get('without_ms', 0):.1f}"
    print(
        f"{number:3} {result['kind']:14} node{result['node']}: {named}; at last {said(why)}, "
        f"a step {why.get('step_ms', 0):.1f} ms ({result['during_ms']:.1f}), without {without} "
        f"(taken away: {result['clean_ms']:.1f} +- {50 * result['drift']:.0f} %, {100 * result_off(result):+.0f} %)",
        flush=True,
    )


def table(results):
    head = "faults  named  after, median  within 5 %  within 10 %  off, median  before and after differ by"
    print(f"\n{'kind':14} {head}")
    for kind in [*sorted({it["kind"] for it in results}), "all"]:
        mine = [it for it in results if kind in (it["kind"], "all")]
        off = [abs(result_off(it)) for it in mine]
        after_s = [it["named_s"] for it in mine if it["named_s"] is not None]
        print(
            f"{kind:14} {len(mine):6} {len(after_s):6} {statistics.median(after_s or [NAMED_S]):11.1f} s "
            f"{sum(it <= 0.05 for it in off):11} {sum(it <= 0.1 for it in off):12} "
            f"{100 * statistics.median(off):10.1f} % {100 * statistics.median(it['drift'] for it in mine):9.1f} %"
        )
    print(f"without a fault somebody was blamed {sum(it['blamed'] for it in results)} of {len(results)} times")


def is_over(options):
    return options.until is not None and time.strftime("%H:%M") >= options.until


def logs_keep(options, folder, number):
    """Keep the logs of daemons and ranks until now, if --logs asks for them; return words that say where."""
    if not options.logs:
        return ""
    kept = options.logs / f"fault-{number}"
    kept.mkdir(parents=True, exist_ok=True)
    for path in [*STATE.joinpath(options.name).glob("*.log"), *pathlib.Path(folder).iterdir()]:
        shutil.copy(path, kept)
    return f"; logs: {kept}"


def faults(options, folder):
    results, job, kinds, number, known_ms, failures = [], None, kinds_here(options), 0, None, 0
    if not kinds:
        raise SystemExit("why_faults: none of these faults can be made here")
    try:
        while number < options.faults and failures < FAILURES_MAX and not is_over(options):
            number += 1
            # Each kind as often as the others, in a seeded order.
            if number % len(kinds) == 1 % len(kinds):
                order = options.chance.sample(kinds, len(kinds))
            fault = Fault(order[number % len(kinds)], options.chance.randrange(NODES), options.chance, options.name)
            try:
                job = job or Job(options, folder)
                # A job that has a processor alone has other steps.
                known_ms = None if fault.kind == "busy" else known_ms
                results.append(measure_fault(options, number, job, fault, known_ms))
                known_ms = None if fault.kind == "busy" else results[-1]["after_ms"]
                report(number, results[-1])
                failures = 0
            except RuntimeError as error:
                kept = logs_keep(options, folder, number)
                print(f"{number:3} {fault.kind:14} node{fault.node}: {error}{kept}", flush=True)
                if job:
                    job.end()
                job = known_ms = None
                failures += 1
    finally:
        if job:
            job.end()
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", help=f"of {', '.join(ACCEPTED)}, with commas between them (default: all)")
    parser.add_argument("--until", help="no fault begins after this time of the day, HH:MM")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="what was measured and said, for programs")
    parser.add_argument("--logs", type=pathlib.Path, metavar="DIR", help="logs of a job that failed come here")
    parser.add_argument("--build", type=pathlib.Path, default=TREE / "build")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.name = f"faults-{os.getpid()}"
    options.chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="shoal-faults-") as folder:
        try:
            run(CLUSTER, "up", "--nodes", NODES, "--rate", RATE, "--name", options.name, "--build", options.build)
            results = faults(options, folder)
        finally:
            run(CLUSTER, "down", "--name", options.name, check=False)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if results:
        table(results)


if __name__ == "__main__":
    main()
