#!/usr/bin/python3
"""Memory over many steps: of a rank and of its daemon."""

import re
import sys
import unittest

import suite


class Memory(unittest.TestCase):
    # Bytes by which an allocator may grow in 500 steps; a leak of 50 bytes a step is more. Memory that grows a few
    # times is no leak, which grows each time.
    ALLOWED = 20 << 10

    def start(self, kind):
        ranks = suite.Ranks(2, suite.RANKS / "ranks_job.py", "many_steps", kind, SHOAL_ARENA_BYTES=str(64 << 20))
        self.addCleanup(ranks.close)
        return ranks

    def check(self, kind):
        for code, text in self.start(kind).wait():
            self.assertEqual(code, 0, text)
            lines = re.findall(r"^MEMORY \d+ (\d+) (\d+)", text, re.MULTILINE)
            self.assertEqual(len(lines), 5, text)
            for resident in zip(*[[int(number) for number in line] for line in lines]):
                growth = min(after - before for before, after in zip(resident, resident[1:]))
                self.assertLessEqual(growth, self.ALLOWED, text)

    def test_two_thousand_steps_of_torchs_wrapper(self):
        self.check("torch")

    def test_two_thousand_steps_of_shoals_wrapper(self):
        self.check("shoal")

    def test_two_thousand_times_every_call(self):
        self.check("calls")


if __name__ == "__main__":
    sys.exit(suite.main())
