#!/usr/bin/python3
"""The interfaces of SMDDP: the backend, which does what the backend shoal does, and the functions and
the wrapper of the first versions."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402


class Backend(suite.ForkedRanksCase, script="ranks_smddp.py", ranks=4):
    imports = suite.imports_of_data_parallel()


class FirstVersions(suite.RanksCase, script="ranks_smdataparallel.py", ranks=2, nodes=2):
    pass


class LocalRank(unittest.TestCase):
    def test_by_the_nodes_of_the_group(self):
        """Where the launcher does not tell it."""
        nodes = [{"SHOAL_NODE": name} for name in ("a", "b", "a", "b")]
        ranks = suite.Ranks(4, suite.RANKS / "ranks_smdataparallel.py", "local rank", each=nodes)
        self.addCleanup(ranks.close)
        expected = [(0, f"local rank {number}\n") for number in (0, 0, 1, 1)]
        self.assertEqual(ranks.wait(), expected)


class Alone(unittest.TestCase):
    """A process that nobody has started as one of a job."""

    def says(self, program, expected):
        imports = "from shoal.smddp import install; install(); import os, torch.distributed as torchs\n"
        imports += "import smdistributed.dataparallel.torch.distributed as dist\n"
        finished = suite.run([sys.executable, "-c", imports + program])
        self.assertIn(expected, finished.stdout)

    def test_it_is_not_one_of_a_job(self):
        self.says("print(dist.is_available(), dist.is_initialized())", "False False")

    def test_the_local_rank_is_not_known(self):
        self.says("dist.get_local_rank()", "LOCAL_RANK is not set: init_process_group() first")

    def test_a_group_of_another_backend(self):
        program = "torchs.init_process_group('gloo', store=torchs.HashStore(), rank=0, world_size=1)\n"
        program += "dist.init_process_group()"
        self.says(program, "the process group is there already, and is of gloo: smddp cannot be it")

    def test_an_argument_that_there_is_not(self):
        self.says("dist.init_process_group(backend='smddp', ranks=3)", "'ranks'")


if __name__ == "__main__":
    sys.exit(suite.main())
