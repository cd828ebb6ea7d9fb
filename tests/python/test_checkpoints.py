#!/usr/bin/python3
"""The example of checkpoints: killed while it saves, and gone on with, it ends with the bits of a run that
nobody has disturbed."""

import json
import re
import sys
import tempfile
import unittest

import suite

IMPORTS = "torch.distributed.fsdp,torch.distributed.checkpoint.state_dict"


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory(prefix="shoal-checkpoint-") as folder:
            script = suite.RANKS / "ranks_checkpoint.py"
            ranks = suite.ForkedRanks(2, script, TEST_IMPORTS=IMPORTS, TEST_FOLDER=folder)
            try:
                cls.finished = ranks.wait()
            finally:
                ranks.close()
        cls.said = cls.finished[0][1]

    def lines(self, pattern):
        return re.findall(pattern, self.said, re.MULTILINE)

    def test_all_ranks_end_well(self):
        for code, text in self.finished:
            self.assertEqual(code, 0, text[-6000:])

    def test_the_one_that_is_killed(self):
        """The files that it has written last are all there, and are no checkpoint."""
        left = "latest latest.new step-10 step-5"
        self.assertEqual(self.lines(r"^KILLED (.*)"), [f"-9 step-5 {left}"], self.said[-6000:])
        self.assertIn("rank lost: rank 0 ", self.finished[1][1])

    def test_the_one_that_goes_on(self):
        kind = "shards"
        self.assertEqual(self.lines(rf"^{kind}, from step (\d+) "), ["0", "5", "0"], self.said[-6000:])
        self.assertEqual(self.lines(r"^saved step (\d+)"), ["5", "10", "5", "10"])

    def test_the_same_bits(self):
        digests = self.lines(r'"digest": "(\w{64})"')
        self.assertEqual(len(digests), 2, self.said[-6000:])
        losses = [json.loads(line)["losses"] for line in self.lines('^.*"losses".*')]
        self.assertEqual(losses[0], losses[1][5:])
        self.assertEqual(*digests)

    def test_who_writes(self):
        """Shards are each rank's; of a whole there is one."""
        written = ["step-10/.metadata", "step-10/__0_0.distcp", "step-10/__1_0.distcp"]
        kept = ["latest", "step-10", *written]
        self.assertEqual(self.lines("^KEPT (.*)"), [" ".join(kept)], self.said[-6000:])


if __name__ == "__main__":
    sys.exit(suite.main())
