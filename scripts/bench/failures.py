#!/usr/bin/env python3
"""Measure what a killed replica costs a job that goes on, in the manner of shoal and of others. Network namespaces, one
replica in each; by hand, as root, after `make`, on a machine that does nothing else:

    scripts/bench/failures.py [--minutes 10] [--every 15] [--replicas 4] [--step-ms 50] [--floats 1000000]
                              [--rate 1gbit] [--seed 1] [--manners torchft,gloo,shoal] [--json FILE] [--build DIR]

    shoal      the job goes on as its next generation
    gloo       an error, a new process group of Gloo, and the step once more; who is left is told in the
               moment of the kill, which nobody could know in truth
    torchft    the same, but told 5 s after it: torchft's lighthouse takes a replica for alive until it
               has missed its heartbeats for that time (--heartbeat_timeout_ms, by default)

Every EVERY seconds one replica is killed, and started again; the new one comes when it has loaded torch,
behind the others (nice), and gets the parameters by a broadcast. The manners share the minutes, in two
turns each.

    stall      from the kill to the next step of all that are left, less a step
    taken in   the same, when the new one comes
    lost       all the time that is not steps, for each kill
    kept       steps that were made, of those that would have been made without a kill"""

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

TREE = pathlib.Path(__file__).resolve().parents[2]
CLUSTER = TREE / "scripts" / "cluster.sh"
STATE = pathlib.Path("/run/shoal-cluster")
TURNS = 2  # of each manner
MANNERS = {"torchft": ("gloo", 5.0), "gloo": ("gloo", 0.0), "shoal": ("shoal", 0.0)}  # told after s
CALM_S = 10.0  # at the beginning of each turn: what a step takes
HANG_S = 60.0
AGAIN_S = 3.0  # a newcomer that is not taken in by then was not seen


def run(*words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


def now_ms():
    return time.clock_gettime(time.CLOCK_MONOTONIC) * 1000


class Replica:
    """A process of the job, and when it has said what."""

    def __init__(self, job, node, identity):
        self.node, self.identity = node, identity
        self.ready, self.steps, self.lines = False, [], []
        options = job.options
        environment = {
            **os.environ,
            "SHOAL_SOCKET": str(STATE / options.name / f"{node}.sock"),
            "SHOAL_JOB": job.name,
            "SHOAL_LIBRARY": str(options.build / "lib" / "libshoal.so.0"),
            "PYTHONPATH": str(TREE / "worker" / "python"),
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        words = ["ip", "netns", "exec", f"shoal-{options.name}-{node}", "nice", "-n", "5" if job.began else "0"]
        words += [sys.executable, "-B", TREE / "scripts" / "bench" / "failure_ranks.py", job.library, identity]
        words += [job.folder, options.step_ms, options.floats]
        self.process = subprocess.Popen(
            [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.thread = threading.Thread(target=self.read, args=(job,))
        self.thread.start()

    def read(self, job):
        for line in self.process.stdout:
            words = line.split()
            with job.said:
                self.lines = [*self.lines[-20:], line.rstrip()]
                self.ready = self.ready or words[1:2] == ["ready"]
                if words[1:2] == ["step"]:
                    self.steps.append((int(words[0]), int(words[2])))
                    job.times[int(words[2])] = int(words[0])
                job.said.notify_all()

    def end(self):
        self.process.wait(timeout=HANG_S)
        self.thread.join()
        return self.process.returncode


class Job:
    """One turn of a manner."""

    def __init__(self, options, manner, turn, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.library, self.told_s = MANNERS[manner]
        self.name = f"failures-{os.getpid()}-{manner}-{turn}"
        self.random = random.Random(options.seed + turn)
        self.said, self.times, self.began, self.number = threading.Condition(), {}, False, 0
        self.replicas = [Replica(self, f"node{i}", i) for i in range(options.replicas)]
        self.identities = options.replicas
        self.stalls, self.taken_in = [], []

    def wait(self, condition, what, limit_s=HANG_S):
        end = time.monotonic() + limit_s
        with self.said:
            while not condition():
                for it in self.replicas:
                    if it.process.poll() is not None:
                        raise RuntimeError(f"{what}: {it.node} ended: {it.lines[-3:]}")
                if time.monotonic() > end:
                    if limit_s < HANG_S:
                        return False
                    raise RuntimeError(f"{what}: {[it.lines[-2:] for it in self.replicas]}")
                self.said.wait(0.1)
        return True

    def tell(self):
        self.number += 1
        path = self.folder / "membership.new"
        path.write_text(json.dumps([self.number, [it.identity for it in self.replicas]]), encoding="utf-8")
        path.rename(self.folder / "membership")

    def step_of_all(self, since_ms, what, limit_s=HANG_S):
        """The end of the first step that all make after that."""

        def made():
            return all(it.steps and it.steps[-1][0] > since_ms for it in self.replicas)

        if not self.wait(made, what, limit_s):
            return None
        with self.said:
            return max(min(ms for ms, _ in it.steps if ms > since_ms) for it in self.replicas)

    def calm(self):
        """ms that a step takes while nobody is killed."""
        self.wait(lambda: all(it.ready for it in self.replicas), "loading torch")
        self.tell()
        self.step_of_all(now_ms(), "the first step")
        self.began = True
        began_ms = now_ms()
        with self.said:
            self.said.wait_for(lambda: False, CALM_S)
            times = sorted(ms for ms in self.times.values() if ms > began_ms)
        return (times[-1] - times[0]) / (len(times) - 1)

    def kill(self, step_ms):
        victim = self.random.choice(self.replicas)
        self.replicas.remove(victim)
        killed_ms = now_ms()
        victim.process.kill()
        with self.said:
            self.said.wait_for(lambda: False, self.told_s)
        self.tell()
        self.stalls.append(self.step_of_all(killed_ms, "after the kill") - killed_ms - step_ms)
        if victim.end() != -signal.SIGKILL:
            raise RuntimeError(f"{victim.node} had ended: {victim.lines[-3:]}")
        newcomer = Replica(self, victim.node, self.identities)
        self.identities += 1
        self.replicas.append(newcomer)
        self.wait(lambda: newcomer.ready, "a newcomer")
        told_ms = now_ms()
        self.tell()
        while self.step_of_all(told_ms, "the newcomer's step", AGAIN_S) is None:
            if now_ms() > told_ms + HANG_S * 1000:
                raise RuntimeError(f"{newcomer.node}: is not taken in: {newcomer.lines[-3:]}")
            self.tell()
        with self.said:
            first_ms, first = newcomer.steps[0]
            last_ms = max(ms for ms, step in self.replicas[0].steps if step < first)
        self.taken_in.append(first_ms - last_ms - step_ms)

    def measure(self):
        """The turn's figures."""
        step_ms = self.calm()
        began_ms, kills, first = now_ms(), 0, max(self.times)
        until_ms = began_ms + self.options.minutes * 60000 / TURNS / len(self.options.manners)
        while now_ms() + self.options.every * 1000 <= until_ms:
            kills += 1
            with self.said:
                due_s = (began_ms - now_ms()) / 1000 + kills * self.options.every
                self.said.wait_for(lambda: False, max(0.0, due_s))
            self.kill(step_ms)
        self.step_of_all(now_ms(), "the last step")
        made, took_ms = max(self.times) - first, now_ms() - began_ms
        (self.folder / "end").touch()
        codes = [it.end() for it in self.replicas]
        if any(codes):
            raise RuntimeError(f"exit codes {codes}")
        return {
            "step_ms": step_ms,
            "kills": kills,
            "stalls_ms": self.stalls,
            "taken_in_ms": self.taken_in,
            "lost_ms": (took_ms - made * step_ms) / max(1, kills),
            "kept": made * step_ms / took_ms,
        }

    def clear(self):
        for it in self.replicas:
            it.process.kill()
            it.end()


def report(figures):
    print(f"\n{'manner':8} {'kills':>5} {'step':>9} {'stall':>9} {'taken in':>9} {'lost':>9} {'kept':>7}")
    for manner, turns in figures.items():
        stalls = statistics.median(ms for it in turns for ms in it["stalls_ms"])
        taken_in = statistics.median(ms for it in turns for ms in it["taken_in_ms"])
        step, lost, kept = (statistics.mean(it[key] for it in turns) for key in ("step_ms", "lost_ms", "kept"))
        kills = sum(it["kills"] for it in turns)
        print(f"{manner:8} {kills:5d} {step:6.1f} ms {stalls:6.0f} ms {taken_in:6.0f} ms {lost:6.0f} ms {kept:7.2%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=15.0)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--step-ms", type=int, default=50)
    parser.add_argument("--floats", type=int, default=1000000)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--manners", type=lambda text: text.split(","), default=list(MANNERS))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=TREE / "build")
    options = parser.parse_args()
    options.build, options.name = options.build.resolve(), f"failures{os.getpid()}"
    if set(options.manners) - set(MANNERS) or options.replicas < 2:
        parser.error(f"manners are {', '.join(MANNERS)}; at least two replicas")
    if os.geteuid() != 0:
        parser.error("needs root: network namespaces are made and entered")
    words = ["--name", options.name, "--nodes", options.replicas, "--rate", options.rate, "--build", options.build]
    run(CLUSTER, "up", *words)
    figures = {manner: [] for manner in options.manners}
    try:
        for turn in range(TURNS):
            for manner in options.manners:
                with tempfile.TemporaryDirectory(prefix="shoal-failures-") as folder:
                    job = Job(options, manner, turn, folder)
                    try:
                        figures[manner].append(job.measure())
                    finally:
                        job.clear()
                print(f"turn {turn + 1}, {manner}: kept {figures[manner][-1]['kept']:.2%}", flush=True)
    finally:
        run(CLUSTER, "down", "--name", options.name)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    report(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
