"""Parts that the tests of frameworks share: a framework's program on Gloo and on shoal, and what holds for each run."""

import concurrent.futures
import contextlib
import importlib
import os
import sys
import tempfile
import unittest

import running
import suite
import table

# FRAMEWORKS: the names of those to run, without it all; FRAMEWORKS_PART=short: what takes some minutes.
WANTED = os.environ.get("FRAMEWORKS", "").split()
SHORT = os.environ.get("FRAMEWORKS_PART", "") == "short"
BACKENDS = ("gloo", "shoal")
# The ways to run a program: on each backend, and on shoal once more, for which the program asks by name.
WAYS = (*BACKENDS, "shoal by name")


def wanted(framework, name):
    if WANTED and not any(framework.name == word or framework.name.startswith(f"{word}-") for word in WANTED):
        return False
    return name in framework.in_short or not SHORT


class FrameworksCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """The entry points that `make install` makes, in a folder."""
        folder = tempfile.TemporaryDirectory(prefix="shoal-info-")
        cls.addClassCleanup(folder.cleanup)
        sys.path.insert(0, str(suite.TREE / "worker" / "python"))
        importlib.import_module("wheel_builder").write_info(folder.name)
        cls.path = folder.name

    @classmethod
    def add(cls, framework, name, test, reason=None):
        """A test of this framework, if it is wanted; skipped with the reason, or where it is not installed."""
        if not wanted(framework, name):
            return
        reason = framework.reason_to_skip() or reason
        name = f"test_{framework.name}_{name}".replace("-", "_")
        setattr(cls, name, unittest.skipIf(reason, reason)(lambda self: test(self, framework)))

    def run_on_all(self, framework, commands, size, each=None, act=None, ways=BACKENDS, **more):
        """{way: how its run has ended}, of all at once. commands: of a run, given a port of its own. size: ranks on a
        node. act: what is done with a run while it is going on."""

        def run(on):
            with suite.reserved_port() as port:
                place = {"TEST_PORT": str(port), **({"MASTER_PORT": str(port)} if each else {})}
                own = {"TEST_RANKS": str(size), **framework.environment, **place, **more}
                with contextlib.closing(running.Running(commands(port), on, self.path, each, **own)) as begun:
                    if act:
                        act(begun)
                    return begun.wait()

        with concurrent.futures.ThreadPoolExecutor(1 if framework.in_turn else len(ways)) as threads:
            return dict(zip(ways, threads.map(run, ways)))

    def check_groups(self, framework, on, finished, ranks, nodes=1):
        """Each rank's groups are what they are to be, and have the name that was asked for: no run passes on Gloo in
        silence. On shoal each node has a daemon."""
        groups = [one for one in finished.told if "backend" in one]
        self.assertEqual({one["rank"] for one in groups}, set(range(ranks)), finished.end())
        expected = 0 if on == "gloo" else nodes
        for one in groups:
            self.assertEqual(one["called"], "shoal" if on == "shoal by name" else "gloo", one)
            self.assertIn("gloo" if on == "gloo" else "shoal", one["backend"], one)
            self.assertEqual(one.get("daemons", expected), expected, one)
        said = running.LINE in finished.text
        self.assertEqual(said, on == "shoal" and not framework.by_name, finished.end())

    def check_ended(self, finished, codes):
        self.assertFalse(finished.late, finished.end())
        self.assertEqual(finished.left, [], finished.end())
        self.assertEqual(finished.codes, codes, finished.end())
