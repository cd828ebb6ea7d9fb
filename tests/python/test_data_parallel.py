#!/usr/bin/python3
"""Data-parallel training with shoal's wrapper and hook."""

import sys

import suite


class DataParallel(suite.RanksCase, script="ranks_data_parallel.py", ranks=4):
    pass


if __name__ == "__main__":
    sys.exit(suite.main())
