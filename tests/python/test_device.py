#!/usr/bin/python3
"""CUDA tensors, on the stand-in for CUDA's driver: what the tests of tensors in memory check, and the
order of streams."""

import sys

import suite

STAND_IN = suite.BUILD / "tests" / "lib" / "libcuda.so.1"
NOT_ON_A_DEVICE = {
    "test_a_wait_with_a_timeout",
    "test_gradients_lie_in_the_arena",
}


def run(ranks, script, **more):
    if not STAND_IN.exists():
        raise suite.unittest.SkipTest("built without CUDA's headers")
    return suite.shoalrun(ranks, suite.HERE / script, SHOAL_CUDA_LIBRARY=str(STAND_IN), **more)


class OnOneNode(suite.RanksCase):
    @classmethod
    def setUpClass(cls):
        cls.collect(run(4, "ranks_device.py"))


class DataParallel(suite.RanksCase):
    @classmethod
    def setUpClass(cls):
        cls.collect(run(2, "ranks_device_data_parallel.py", nodes=2))



def names_of(script):
    return [name for name in suite.names_of(script) if name not in NOT_ON_A_DEVICE]


OnOneNode.add(names_of("ranks_device.py") + names_of("ranks_collectives.py"))
DataParallel.add(names_of("ranks_data_parallel.py"))

if __name__ == "__main__":
    sys.exit(suite.main())
