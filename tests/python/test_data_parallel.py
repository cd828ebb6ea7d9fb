#!/usr/bin/python3
"""Data-parallel training with shoal's wrapper and hook."""

import sys

import suite

SCRIPT = "ranks_data_parallel.py"


class DataParallel(suite.RanksCase):
    @classmethod
    def setUpClass(cls):
        cls.collect(suite.shoalrun(4, suite.HERE / SCRIPT))


DataParallel.add(suite.names_of(SCRIPT))

if __name__ == "__main__":
    sys.exit(suite.main())
