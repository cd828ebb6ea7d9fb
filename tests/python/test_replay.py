#!/usr/bin/python3
"""A rank that is killed and started again gets the sums that it has missed (shoal.torch.replay)."""

import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import suite
from launch import with_daemon

RANKS, DIES, DEATH = 3, 1, 13  # the checkpoint before it has step 10
CONFIGURATION = {"recovery": True, "replay": {"keep_steps": 8, "keep_bytes": 10000000}}


class Replay(unittest.TestCase):
    def setUp(self):
        reason = suite.reason_to_skip()
        if reason:
            self.skipTest(reason)
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.socket = str(self.folder / "socket")
        reserved = contextlib.ExitStack()
        self.addCleanup(reserved.close)
        listen = {"port": reserved.enter_context(suite.reserved_port())}
        configuration = self.folder / "shoald.json"
        configuration.write_text(json.dumps({**CONFIGURATION, "socket": {"path": self.socket}, "listen": listen}))
        with with_daemon.readiness(self.folder) as notify:
            self.start([suite.BUILD / "bin" / "shoald", "--config", configuration], NOTIFY_SOCKET=notify)

    def start(self, command, **variables):
        process = subprocess.Popen(
            command, env=suite.environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def rank(self, folder, rank, *more):
        command = [sys.executable, suite.RANKS / "ranks_replay.py", folder, str(rank), *more]
        return self.start(command, SHOAL_SOCKET=self.socket)

    def train(self, name, death=None):
        """Train, and return what the ranks said; the rank that dies is started again."""
        folder = self.folder / name
        folder.mkdir()
        more = {DIES: [str(death)]} if death else {}
        ranks = [self.rank(folder, rank, *more.get(rank, [])) for rank in range(RANKS)]
        if death:
            self.assertEqual(ranks[DIES].wait(suite.LIMIT_S), -9)
            ranks[DIES] = self.rank(folder, DIES, "back")
        said = [process.communicate(timeout=suite.LIMIT_S)[0] for process in ranks]
        self.assertEqual([process.returncode for process in ranks], [0] * RANKS, "\n".join(said))
        return said

    def test_it_ends_with_the_bits_of_an_undisturbed_run(self):
        undisturbed = self.train("undisturbed")
        said = self.train("killed", DEATH)
        bits = {re.search(r"(?m)^bits (-?\d+)$", text).group(1) for text in undisturbed + said}
        self.assertEqual(len(bits), 1, said)
        self.assertRegex(said[DIES], r"(?m)^generation \d+: missed [34]$")
        self.assertRegex(said[0], r"(?m)^lost$")


if __name__ == "__main__":
    suite.main()
