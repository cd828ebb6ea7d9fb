#!/usr/bin/python3
"""CUDA tensors, on the stand-in for CUDA's driver: what the tests of tensors in memory check, and the
order of streams; where the host waits, as it does by default, and where streams do."""

import sys

import suite

STAND_IN = suite.BUILD / "tests" / "lib" / "libcuda.so.1"
DRIVER = {"SHOAL_CUDA_LIBRARY": str(STAND_IN)}
STREAMS_WAIT = {**DRIVER, "SHOAL_STREAM_WAITS": "1"}


class OnOneNode(suite.ForkedRanksCase, script="ranks_device.py", ranks=4, **STREAMS_WAIT):
    pass


class HostWaits(suite.ForkedRanksCase, script="ranks_device.py", ranks=4, **DRIVER):
    pass


class DataParallel(
    suite.RanksCase, script="ranks_device_data_parallel.py", ranks=2, nodes=2, **STREAMS_WAIT
):
    pass


class DataParallelHostWaits(suite.ForkedRanksCase, script="ranks_device_data_parallel.py", ranks=2, **DRIVER):
    imports = suite.imports_of_data_parallel()


if __name__ == "__main__":
    sys.exit(suite.main())
