#!/usr/bin/python3
"""Data-parallel training with shoal's wrapper and hook: on both backends."""

import sys

import suite


class InPython(suite.ForkedRanksCase, script="ranks_data_parallel.py", ranks=4, SHOAL_NATIVE="0"):
    imports = suite.imports_of_data_parallel()


class Native(suite.ForkedRanksCase, script="ranks_data_parallel.py", ranks=4, SHOAL_NATIVE="1"):
    imports = suite.imports_of_data_parallel()


class Wrapper(suite.ForkedRanksCase, script="ranks_wrapper.py", ranks=2, SHOAL_NATIVE="1"):
    imports = suite.imports_of_data_parallel()


class WrapperInPython(suite.ForkedRanksCase, script="ranks_wrapper.py", ranks=2, SHOAL_NATIVE="0"):
    imports = suite.imports_of_data_parallel()


if __name__ == "__main__":
    sys.exit(suite.main())
