#!/usr/bin/python3
"""Jobs without a launcher: the daemon that a rank starts, ranks that die."""

import glob
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import suite
from launch import with_daemon

SCRIPT = suite.RANKS / "ranks_job.py"


def start(test, size, *arguments, kind=suite.Ranks, **more):
    ranks = kind(size, SCRIPT, *arguments, **more)
    test.addCleanup(ranks.close)
    return ranks


def start_forked(test, size, *arguments):
    """Where it matters neither how an interpreter starts nor how it ends."""
    return start(test, size, *arguments, kind=suite.ForkedRanks)


def found(pattern, text):
    return re.findall(pattern, text, re.MULTILINE)


# A shoalrun that is none, and what is said of it.
STRANGE_PROGRAMS = {
    "exit 3": "DisconnectedError cannot start a daemon: {program} --serve has ended, with exit status 3",
    "echo usage: shoalrun": "ProtocolError cannot start a daemon: {program} --serve says 'usage: shoalrun' and no port",
    "sleep 1000 2>/dev/null & echo $! >$0.pid": "TimeoutError cannot start a daemon: {program} has said nothing for 1 s",
    "head -c 9000 /dev/zero | tr '\\0' 7": "ProtocolError cannot start a daemon: {program} --serve says '777",
    "echo error -8 no more of them": "RefusedError cannot start a daemon: no more of them",
}
START_STRANGE = """
import sys
from shoal.torch import _daemon
_daemon.LINE_S = 1
for program in sys.argv[1:]:
    _daemon.find_program = lambda: program
    try:
        _daemon.EmbeddedDaemon(["node"], 0)
    except Exception as error:
        print(type(error).__name__, error)
"""


class Programs(unittest.TestCase):
    def test_a_shoalrun_that_is_none(self):
        with tempfile.TemporaryDirectory(prefix="shoal-strange-") as folder:
            programs = []
            for number, text in enumerate(STRANGE_PROGRAMS):
                programs.append(pathlib.Path(folder, f"shoalrun{number}"))
                programs[-1].write_text(f"#!/bin/sh\n{text}\n")
                programs[-1].chmod(0o755)
            said = suite.run([sys.executable, "-c", START_STRANGE, *programs]).stdout.splitlines()
            for path in pathlib.Path(folder).glob("*.pid"):
                os.kill(int(path.read_text()), signal.SIGKILL)
        self.assertEqual(len(said), len(programs), said)
        for line, program, expected in zip(said, programs, STRANGE_PROGRAMS.values()):
            self.assertIn(expected.format(program=program), line)


class OfMultiprocessing(unittest.TestCase):
    """Whoever has started processes takes the first one that has ended for the cause: so the others hear of one that
    fails when it has ended, and of one that ends well when it leaves."""

    ENDS = {"raises": (1, False), "exits": (3, False), "returns": (0, True)}  # exit status, whether it leaves

    def check(self, method, *hows):
        with tempfile.TemporaryDirectory(prefix="shoal-failing-") as folder:
            said = suite.run([sys.executable, suite.RANKS / "ranks_failing.py", method, folder, *hows]).stdout
        for how in hows:
            code, leaves = self.ENDS[how]
            self.assertIn(f"ENDED {how} [0, {code}]", said)
            (heard,) = found(f"^HEARD {how}: (.*)", said)
            self.assertIn("rank lost: rank 1", heard)
            self.assertEqual("has left" in heard, leaves, heard)

    def test_spawn(self):
        self.check("spawn", "raises")

    def test_fork(self):
        self.check("fork", *self.ENDS)


class EmbeddedDaemon(unittest.TestCase):
    def check_join(self, finished, nodes):
        sockets = set()
        for code, text in finished:
            self.assertEqual(code, 0, text)
            sockets.update(found(r"^SOCKET (.*)", text))
            self.assertEqual(len(found(r"^SOCKET", text)), 3, text)
        self.assertEqual(len(sockets), 3 * nodes)  # a daemon of its own for each job and node
        folders = [os.path.dirname(path) for path in sockets]
        suite.wait_for_daemons(folders)
        for folder in folders:
            self.assertEqual(glob.glob(folder), [], "the daemon's folder is left")

    def test_one_node(self):
        finished = start(self, 4, "join").wait()
        self.check_join(finished, 1)
        self.assertEqual(found(r"^NODES (.*)", finished[3][1]), ["1 3 4"] * 3)

    def test_two_nodes(self):
        """Ranks with different SHOAL_NODE are on different nodes, whose daemons share a secret."""
        nodes = [{"SHOAL_NODE": name} for name in "abab"]
        finished = start(self, 4, "join", each=nodes, SHOAL_INTERFACE="lo").wait()
        self.check_join(finished, 2)
        self.assertEqual(found(r"^NODES (.*)", finished[2][1]), ["2 1 2"] * 3)

    def test_no_daemon_to_start(self):
        """Every rank hears of it, and not only when its time is over."""
        nodes = [{"SHOAL_NODE": "a"}, {"SHOAL_NODE": "b"}, {"SHOAL_NODE": "a"}, {"SHOAL_NODE": "b"}]
        nodes[1].update(SHOAL_LIBRARY=self.lonely_library(), PATH="/bin")
        ranks = start(self, 4, "fail_to_join", each=nodes, SHOAL_INTERFACE="lo")
        for rank, (code, text) in enumerate(ranks.wait()):
            self.assertEqual(code, 0, text)
            (said,) = found(r"^ERROR DisconnectedError (.*)", text)
            self.assertIn("there is no shoalrun to start one", said)
            self.assertEqual("on rank 1: " in said, rank != 1, said)
            self.assertEqual(len(found(r"^FOLDER", text)), 1 if rank == 0 else 0)
            suite.wait_for_daemons(found(r"^FOLDER (.*)", text))
            for folder in found(r"^FOLDER (.*)", text):
                self.assertFalse(os.path.exists(folder), "the folder of the daemon is left")

    def test_a_rank_that_does_not_come(self):
        """timeout= of init_process_group; who is missing is named."""
        code, text = start_forked(self, 3, "stay_away").wait()[0]
        self.assertEqual(code, 0, text)
        (said,) = found(r"^ERROR TimeoutError (.*)", text)
        self.assertIn("rank 2 has not joined within 2 s", said)

    def test_a_job_that_cannot_be_opened(self):
        """Its daemon ends, though the process that has started it goes on."""
        rank = start(self, 1, "fail_to_open").processes[0]
        lines = [rank.stdout.readline() for _ in range(2)]
        self.assertEqual(found(r"^ERROR (\w+)", lines[1]), ["RefusedError"], lines)
        (folder,) = found(r"^FOLDER (.*)", lines[0])
        suite.wait_for_daemons([folder])
        self.assertFalse(os.path.exists(folder), "the daemon's folder is left")
        self.assertIsNone(rank.poll())

    def test_who_reads_a_ranks_output_is_not_held(self):
        """When the rank that has started the daemon ends, so does what it says; the daemon goes on."""
        ranks = start(self, 2, "stay")
        text = ranks.processes[0].communicate(timeout=suite.LIMIT_S / 2)[0]
        self.assertEqual(ranks.processes[0].returncode, 0, text)
        self.assertIsNone(ranks.processes[1].poll())
        folders = [os.path.dirname(path) for path in found(r"^SOCKET (.*)", text)]
        self.assertTrue(os.path.exists(folders[0]))
        ranks.processes[1].kill()
        suite.wait_for_daemons(folders)

    def lonely_library(self):
        folder = tempfile.TemporaryDirectory(prefix="shoal-lonely-")
        self.addCleanup(folder.cleanup)
        return shutil.copy(suite.BUILD / "lib" / "libshoal.so", folder.name)


BEGIN = """
import os, signal, sys, torch, torch.distributed as dist, shoal.torch
dist.init_process_group("shoal")
dist.barrier()
os.write(1, b"BEGUN\\n")
if sys.argv[1:] == ["killed"]:
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
dist.destroy_process_group()"""


class NamesOfRuns(unittest.TestCase):
    """A run of shoalrun has nothing of an earlier one of its name, and no name is a path."""

    def run_named(self, name, how):
        command = [suite.BUILD / "bin" / "shoalrun", "--timeout", 100, "--job", name, "-n", 2]
        command += ["--socket", self.socket, "--", sys.executable, "-c", BEGIN, how]
        return suite.run(command, TMPDIR=self.folder)

    def test_names(self):
        folder = tempfile.TemporaryDirectory(prefix="shoal-names-")
        self.addCleanup(folder.cleanup)
        self.folder, self.socket = folder.name, f"{folder.name}/shoald.sock"
        configuration = pathlib.Path(folder.name) / "shoald.json"
        configuration.write_text(json.dumps({"socket": {"path": self.socket}}))
        with with_daemon.readiness(pathlib.Path(folder.name)) as notify:
            program = suite.BUILD / "bin" / "shoald"
            daemon = subprocess.Popen([program, "--config", configuration], env={**os.environ, "NOTIFY_SOCKET": notify})
        try:
            for name in ("train", "../a/b"):
                self.run_named(name, "killed")
                finished = self.run_named(name, "whole")
                self.assertEqual(finished.returncode, 0, finished.stdout)
                self.assertEqual(finished.stdout.count("BEGUN"), 2, finished.stdout)
                self.assertEqual(sorted(os.listdir(self.folder)), ["notify", "shoald.json", "shoald.sock"])
        finally:
            daemon.terminate()
            self.assertEqual(daemon.wait(), 0)


class Failure(unittest.TestCase):
    def check_lost(self, finished, lost, count, name="RankLostError"):
        for rank, (code, text) in enumerate(finished):
            if rank == lost:
                continue
            errors = found(r"^ERROR (\w+) (.*)", text)
            self.assertEqual(len(errors), count, text)
            for kind, words in errors:
                self.assertEqual(kind, name)
                self.assertIn(f"rank {lost}", words)
            self.assertEqual(code, 0, text)

    def test_a_killed_rank_raises_on_all_others(self):
        finished = start_forked(self, 4, "death").wait()
        self.assertEqual(finished[3][0], -signal.SIGKILL)
        self.check_lost(finished, 3, 2)

    def test_an_exception_is_why_a_rank_is_gone(self):
        """The others hear it in one line."""
        cases = {
            "at length": "ValueError: a bad sample!!!",
            "interrupted": "KeyboardInterrupt",
        }
        for how, words in cases.items():
            with self.subTest(how):
                finished = start(self, 3, "err", how).wait()
                for code, text in finished[:2]:
                    self.assertEqual(code, 0, text)
                    self.assertRegex(text, rf"rank 2 on node \S+ is gone: its process \d+ ended: {words}")

    def test_a_node_has_its_hosts_name(self):
        """In errors; with SHOAL_NODE behind it where that makes nodes of one machine."""
        for nodes in ("", "ab"):
            each = [{"SHOAL_NODE": node} for node in nodes[:1] * 2 + nodes[1:]] or None
            name = "-".join([re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()), *nodes[1:]])
            with self.subTest(name):
                finished = start(self, 3, "err", "at length", each=each, SHOAL_INTERFACE="lo").wait()
                for code, text in finished[:2]:
                    self.assertEqual(code, 0, text)
                    self.assertIn(f"rank 2 on node {name} is gone", text)

    def test_an_exception_that_was_handled_is_no_reason(self):
        """Its rank leaves as any other does."""
        for code, text in start(self, 3, "err", "handled").wait()[:2]:
            self.assertEqual(code, 0, text)
            self.assertRegex(text, r"^ERROR RankLostError .*rank 2 .*left")
            self.assertNotIn("of use", text)

    def test_a_killed_rank_in_the_backward_pass(self):
        finished = start_forked(self, 3, "death_in_backward").wait()
        for code, text in finished[:2]:
            self.assertEqual(code, 0, text)
            self.assertIn("rank lost: rank 2", text)

    def test_ctrl_c_while_an_error_is_made(self):
        """It is what the backward pass raises, and does not end the process."""
        code, text = start(self, 2, "interrupted_in_backward").wait()[0]
        self.assertEqual(code, 0, text)
        self.assertEqual(found(r"^INTERRUPTED", text), ["INTERRUPTED"], text)

    def test_the_thread_that_completes_operations_ends(self):
        """Whoever waits in C++, without a timeout, hears of it; so does the next call. The thread is of the
        backend in Python."""
        finished = start(self, 2, "lose_the_thread", SHOAL_NATIVE="0").wait()
        self.assertEqual([code for code, _ in finished], [0, 0], finished)
        said = found(r"^ERROR (.*)", finished[0][1])
        self.assertEqual(len(said), 2, finished[0][1])
        for text in said:
            self.assertIn("the thread shoal-completions has ended: SystemCallError('no more')", text)

    def test_a_forked_child_has_nothing_of_the_job(self):
        """It is told so, ends, and does not keep its parent's rank alive."""
        finished = start(self, 2, "fork").wait()
        self.assertEqual(finished[1][0], -signal.SIGKILL, finished[1][1])
        for _, text in finished:
            self.assertEqual(found(r"^CHILD (.*)", text), ["0"], text)
            self.assertEqual(found(r"^GRADIENTS (.*)", text), ["3.0 3.0"], text)
            self.assertEqual(found(r"^OWN (.*)", text), ["2.0 2.0"], text)
            said = found(r"^ERROR StateError (.*)", text)
            self.assertEqual(len(said), 3, text)
            for words in said:
                self.assertRegex(words, r"process \d+ was forked from \d+, whose .* it cannot use")
        self.assertEqual(finished[0][0], 0, finished[0][1])
        (lost,) = found(r"^ERROR RankLostError (.*)", finished[0][1])
        self.assertIn("rank 1", lost)

    def test_a_child_forked_after_the_job_keeps_its_own_descriptors(self):
        finished = start(self, 2, "fork_afterwards").wait()
        for code, text in finished:
            self.assertEqual((code, found(r"^CHILD (.*)", text)), (0, ["0 True"]), text)

    def test_a_group_outlives_the_modules(self):
        for code, text in start(self, 2, "outlive_the_modules").wait():
            self.assertEqual((code, text), (0, "GONE\n"))

    def test_the_first_rank_ends_first(self):
        self.check_lost(start(self, 3, "leave_early", "politely").wait(), 0, 1)
        self.check_lost(start(self, 3, "leave_early", "abruptly").wait(), 0, 1)


class Names(unittest.TestCase):
    """A job is called what its launcher calls it."""

    def check(self, expected, **more):
        for code, text in start(self, 2, "name_the_job", **more).wait():
            self.assertEqual(code, 0, text)
            self.assertRegex("".join(f"JOB {name}\n" for name in found("^JOB (.*)", text)), expected)

    def test_of_the_launcher(self):
        """The job that comes after it has another name, since ranks may not have left the first one yet."""
        self.check("^JOB train 1\nJOB torch-[0-9a-f]{16}\nJOB own\n$", SHOAL_JOB="train 1")

    def test_of_nobody(self):
        self.check("^JOB torch-[0-9a-f]{16}\nJOB torch-[0-9a-f]{16}\nJOB own\n$", SHOAL_JOB="")

    def test_bytes_that_are_no_text(self):
        for code, text in start(self, 2, "name_the_job_badly", SHOAL_JOB="a\udcff").wait():
            self.assertEqual(code, 0, text)
            (said,) = found("^ERROR InvalidError (.*)", text)
            self.assertIn("the job's name is not UTF-8", said)

    def test_two_names_are_refused_on_all_ranks(self):
        for code, text in start_forked(self, 4, "name_the_job_differently").wait():
            self.assertEqual(code, 0, text)
            self.assertEqual(
                found("^ERROR (.*)", text),
                ["MismatchError SHOAL_JOB is 'train-0' on rank 0, and 'train-1' on rank 2: set the same on all"],
            )

    def test_under_shoalrun(self):
        command = [suite.BUILD / "bin" / "shoalrun", "--job", "train", "--nodes", "2", "-n", "1"]
        done = suite.run([*command, "--", sys.executable, SCRIPT, "name_the_job_under_shoalrun"])
        self.assertEqual(done.stdout, "JOB train\nJOB train\n")


if __name__ == "__main__":
    sys.exit(suite.main())
