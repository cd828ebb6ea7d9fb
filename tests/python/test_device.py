#!/usr/bin/python3
"""CUDA tensors, on the stand-in for CUDA's driver: what the tests of tensors in memory check, and the
order of streams."""

import sys

import suite

STAND_IN = suite.BUILD / "tests" / "lib" / "libcuda.so.1"
DRIVER = {"SHOAL_CUDA_LIBRARY": str(STAND_IN)}


class OnOneNode(suite.RanksCase, script="ranks_device.py", ranks=4, **DRIVER):
    pass


class DataParallel(
    suite.RanksCase, script="ranks_device_data_parallel.py", ranks=2, nodes=2, **DRIVER
):
    pass


if __name__ == "__main__":
    sys.exit(suite.main())
