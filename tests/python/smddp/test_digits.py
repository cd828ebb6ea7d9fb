#!/usr/bin/python3
"""The examples for SMDDP, one for each of its interfaces, train as digits_ddp.py does on gloo."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402
from examples_case import ALLOWED  # noqa: E402


class Digits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        command = json.dumps([["digits_ddp.py", "--backend", "gloo"]])
        cls.expected = cls.losses_of(suite.RANKS / "ranks_examples.py", command)

    @staticmethod
    def losses_of(*command):
        finished = suite.shoalrun(4, *command)
        lines = [line for line in finished.stdout.splitlines() if line.startswith('{"backend"')]
        assert finished.returncode == 0 and len(lines) == 1, finished.stdout[-6000:]
        return json.loads(lines[0])["losses"]

    def check(self, example):
        got = self.losses_of("-m", "shoal.smddp", suite.EXAMPLES / example)
        self.assertEqual(len(got), len(self.expected))
        self.assertLess(min(got), got[0] * 0.95, "it does not learn")
        for step, (ours, theirs) in enumerate(zip(got, self.expected)):
            self.assertLessEqual(abs(ours - theirs) / abs(theirs), ALLOWED, f"step {step}")

    def test_the_backend(self):
        self.check("digits_smddp.py")

    def test_its_own_functions_and_wrapper(self):
        self.check("digits_smdataparallel.py")

    def test_under_torchrun(self):
        """It starts a module, ours, which runs the script."""
        options = ["--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:0", "-m", "shoal.smddp"]
        script = suite.EXAMPLES / "digits_smddp.py"
        finished = suite.run([*suite.torchrun(*options), script, "--steps", "8"])
        self.assertEqual(finished.returncode, 0, finished.stdout)
        (line,) = [line for line in finished.stdout.splitlines() if '{"backend"' in line]
        losses = json.loads(line[line.index("{") :])["losses"]
        self.assertEqual(len(losses), 8)
        self.assertLess(losses[-1], losses[0] * 0.95)


if __name__ == "__main__":
    sys.exit(suite.main())
