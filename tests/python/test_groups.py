#!/usr/bin/python3
"""Groups of some ranks, what fails inside one of them, and the calls of libraries that shard: on both backends."""

import sys

import suite


class InPython(suite.ForkedRanksCase, script="ranks_groups.py", ranks=4, SHOAL_NATIVE="0"):
    pass


class Native(suite.ForkedRanksCase, script="ranks_groups.py", ranks=4, SHOAL_NATIVE="1"):
    pass


if __name__ == "__main__":
    sys.exit(suite.main())
