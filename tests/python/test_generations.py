#!/usr/bin/python3
"""Jobs that go on after a loss, and take newcomers in: through shoal.library, and as process groups."""

import re
import sys
import unittest

import suite

sys.path.insert(0, str(suite.TREE / "worker" / "python"))


def load():
    import shoal
    from shoal import errors

    return shoal, errors


class Generations(unittest.TestCase):
    def test_three_two_three(self):
        done = suite.shoalrun(1, suite.RANKS / "ranks_generations.py")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("CODES 0 0 0", done.stdout)


class ElasticInPython(suite.RanksCase, script="ranks_elastic.py", ranks=1, SHOAL_NATIVE="0"):
    pass


class ElasticNative(suite.RanksCase, script="ranks_elastic.py", ranks=1, SHOAL_NATIVE="1"):
    @classmethod
    def setUpClass(cls):
        reason = suite.reason_without_native()
        if reason:
            raise unittest.SkipTest(reason)
        super().setUpClass()


class ReconfiguredInPython(suite.RanksCase, script="ranks_reconfigure.py", ranks=1, SHOAL_NATIVE="0"):
    pass


class ReconfiguredNative(suite.RanksCase, script="ranks_reconfigure.py", ranks=1, SHOAL_NATIVE="1"):
    @classmethod
    def setUpClass(cls):
        reason = suite.reason_without_native()
        if reason:
            raise unittest.SkipTest(reason)
        super().setUpClass()


class Example(unittest.TestCase):
    def test_one_is_killed_and_another_comes(self):
        reason = suite.reason_to_skip()
        if reason:
            self.skipTest(reason)
        said = suite.shoalrun(1, suite.RANKS / "ranks_elastic_example.py").stdout
        self.assertIn("CODES 0 -9 0 0", said)
        self.assertRegex(said, r"(?m)^step \d+: .*rank lost: rank 1 ")
        self.assertRegex(said, r"(?m)^step \d+ of 2 ranks: ")
        ends = re.findall(r"(?m)^rank (\d) of 3: 200 steps, (\S+)$", said)
        self.assertEqual(sorted(rank for rank, _ in ends), ["0", "1", "2"], said)
        self.assertEqual(len({mean for _, mean in ends}), 1, said)


class Errors(unittest.TestCase):
    def test_what_can_be_gone_on_from(self):
        shoal, _ = load()
        for name in ("RankLostError", "RefusedError"):
            self.assertTrue(issubclass(getattr(shoal, name), shoal.RecoverableError), name)
        for name in ("MismatchError", "StateError", "DisconnectedError", "TimeoutError"):
            self.assertFalse(issubclass(getattr(shoal, name), shoal.RecoverableError), name)

    def test_each_code_has_its_class(self):
        shoal, errors = load()
        for code in range(-11, 0):
            self.assertEqual(type(errors.make_error(code, "words")).code, code)
        self.assertIs(type(errors.make_error(-99, "words")), shoal.ShoalError)


if __name__ == "__main__":
    suite.main()
