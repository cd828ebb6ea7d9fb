#!/usr/bin/python3
"""Runs that end before their time end on shoal as they do on Gloo: a rank is killed, a rank raises, the user presses
Ctrl-C. Nothing waits for its limit, nothing is left, and what the user wrote stands in the output."""

import sys

import frameworks_case
import suite
import table

ERROR = "the user's own error"  # as programs/told.py has it


class Endings(frameworks_case.FrameworksCase):
    def check(self, framework, kind):
        ranks = framework.sizes[0]

        def press(run):
            self.assertTrue(run.read_until(ranks, "waiting"), run.text[-6000:])
            run.interrupt()

        act = press if kind == "interrupt" else None
        ends = self.run_on_all(framework, lambda port: [framework.launch(ranks, port)], ranks, act=act, TEST_FAIL=kind)
        for on, finished in ends.items():
            self.check_groups(framework, on, finished, ranks)
            if on == "shoal":
                self.assertFalse(finished.late, finished.end())
                self.assertEqual(finished.left, [], finished.end())
            if kind == "raise":
                self.assertIn(f"ValueError: {ERROR}", finished.text, finished.end())
            if kind != "interrupt":
                self.assertNotEqual(finished.codes, [0], finished.end())
        said = [f"on {on} after {finished.ending_s:.1f} s, status {finished.codes[0]}" for on, finished in ends.items()]
        print(f"\n{framework.name}, {kind}: it has ended {', '.join(said)}")


for one in table.FRAMEWORKS:
    for way in one.endings:
        check = lambda self, framework, way=way: self.check(framework, way)  # noqa: E731
        Endings.add(one, way, check)

if __name__ == "__main__":
    sys.exit(suite.main())
