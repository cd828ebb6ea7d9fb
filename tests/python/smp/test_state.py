#!/usr/bin/python3
"""torch.sagemaker.state on 8 ranks, and init() where nothing has been set up before it."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

SCRIPT = pathlib.Path(__file__).with_name("ranks_state.py")


class State(suite.RanksCase, script=SCRIPT, ranks=8):
    pass


class BeforeInit(unittest.TestCase):
    def test_init_makes_the_process_group(self):
        environment = {"SM_HP_MP_PARAMETERS": '{"hybrid_shard_degree": 2}'}
        finished = suite.shoalrun(2, SCRIPT, "alone", **environment)
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertEqual(finished.stdout.count("sharded over 2\n"), 2, finished.stdout)


if __name__ == "__main__":
    sys.exit(suite.main())
