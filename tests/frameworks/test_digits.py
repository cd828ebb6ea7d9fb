#!/usr/bin/python3
"""Each framework's program gets the same digits on shoal as on Gloo, of losses and of weights, and so it does when its
ranks are on two nodes. On four ranks sums have more than one order: there they are near each other."""

import sys

import frameworks_case
from frameworks_case import BACKENDS, WAYS
import suite
import table

NEAR = 1e-4  # relatively, after some dozen steps


class Digits(frameworks_case.FrameworksCase):
    def check(self, framework, size):
        ways = WAYS if framework.named and size == framework.sizes[0] else BACKENDS
        self.compare(framework, size, lambda port: [framework.launch(size, port)], ways=ways)

    def check_nodes(self, framework):
        each = [
            {"SHOAL_NODE": f"node{node}", "NODE_RANK": str(node), "TEST_NODES": "2", "MASTER_ADDR": "127.0.0.1"}
            for node in range(2)
        ]
        ranks = framework.sizes[0]
        commands = lambda port: [framework.nodes(node, port, ranks // 2) for node in range(2)]  # noqa: E731
        self.compare(framework, ranks, commands, each)

    def compare(self, framework, ranks, commands, each=None, ways=BACKENDS):
        ends = self.run_on_all(framework, commands, ranks // len(each or [1]), each, ways=ways)
        for on, finished in ends.items():
            self.check_ended(finished, [0] * len(finished.codes))
            self.check_groups(framework, on, finished, ranks, len(each or [1]))
        told = {on: [one for one in finished.told if "backend" not in one] for on, finished in ends.items()}
        self.assertGreaterEqual(len(told["gloo"]), ranks, ends["gloo"].end())
        for on in ways[1:]:
            self.assertEqual(len(told["gloo"]), len(told[on]), ends[on].end())
            for gloo, shoal in zip(told["gloo"], told[on]):
                if ranks == 2:
                    self.assertEqual(shoal, gloo, on)
                else:
                    self.check_near(shoal, gloo, (on, shoal["what"], shoal["rank"]))
        seconds = ", ".join(f"{on} {finished.seconds:.0f} s" for on, finished in ends.items())
        print(f"\n{framework.name}, {ranks} ranks: {len(told['gloo'])} lines alike; {seconds}")

    def check_near(self, one, other, where):
        if isinstance(one, dict):
            self.assertEqual(one.keys(), other.keys(), where)
            for name in one.keys() - {"bits"}:
                self.check_near(one[name], other[name], (*where, name))
        elif isinstance(one, list):
            self.assertEqual(len(one), len(other), where)
            for mine, its in zip(one, other):
                self.check_near(mine, its, where)
        elif isinstance(one, float):
            self.assertLessEqual(abs(one - other), NEAR * max(1, abs(other)), where)
        else:
            self.assertEqual(one, other, where)


for one in table.FRAMEWORKS:
    for ranks in one.sizes:
        check = lambda self, framework, ranks=ranks: self.check(framework, ranks)  # noqa: E731
        Digits.add(one, f"{ranks}_ranks", check)
    if one.nodes:
        Digits.add(one, "two_nodes", Digits.check_nodes)

if __name__ == "__main__":
    sys.exit(suite.main())
