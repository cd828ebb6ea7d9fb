#!/usr/bin/python3
"""torch.sagemaker.state on 8 ranks, and init() where nothing has been set up before it."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

SCRIPT = pathlib.Path(__file__).with_name("ranks_state.py")


class State(suite.ForkedRanksCase, script=SCRIPT, ranks=8):
    imports = "shoal.smddp.smp"


class BeforeInit(unittest.TestCase):
    def test_init_makes_the_process_group(self):
        environment = {"SM_HP_MP_PARAMETERS": '{"hybrid_shard_degree": 2}'}
        finished = suite.shoalrun(2, SCRIPT, "alone", **environment)
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertEqual(finished.stdout.count("sharded over 2\n"), 2, finished.stdout)


NAMES = """
import logging, torch.sagemaker as tsm
from torch.sagemaker import init, is_initialized, state
from torch.sagemaker.logger import get_logger
from torch.sagemaker.moe.moe_config import MoEConfig
from torch.sagemaker.moe.moe_layer import MoELayer
from torch.sagemaker.state_handler import state as other_state
from torch.sagemaker.utils import utils as tsm_utils
from torch.sagemaker.utils.process_group_utils import get_global_ranks
from shoal.smddp import smp

assert state is other_state is tsm.state is smp.state and not tsm.is_initialized()
assert isinstance(MoELayer(4, lambda: __import__("torch").nn.Identity(), 2).router.config, MoEConfig)
assert get_logger() is get_logger() and len(get_logger().handlers) == 1
with tsm_utils.timeit(True, "nothing at all", 0):
    pass
with tsm_utils.timeit(True, "not this rank", 1), tsm_utils.timeit(False, "not at all", 0):
    pass
init()
print(get_global_ranks(state.world_process_group), tsm.state.world_size)
"""


class Names(unittest.TestCase):
    def test_what_scripts_import(self):
        with tempfile.TemporaryDirectory(prefix="shoal-smp-") as folder:
            script = pathlib.Path(folder) / "script.py"
            script.write_text(NAMES)
            command = [suite.BUILD / "bin" / "shoalrun", "-n", 1, "--", sys.executable, "-m", "shoal.smddp", script]
            finished = suite.run(command)
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertIn("[0] 1\n", finished.stdout)
        self.assertRegex(finished.stdout, r"INFO: nothing at all: \d\.\d{3} s\n")
        self.assertNotIn("not ", finished.stdout)


if __name__ == "__main__":
    sys.exit(suite.main())
