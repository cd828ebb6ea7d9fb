#!/usr/bin/python3
"""Groups of some ranks, what fails inside one of them, and the calls of libraries that shard."""

import sys

import suite


class Groups(suite.RanksCase, script="ranks_groups.py", ranks=4):
    pass


if __name__ == "__main__":
    sys.exit(suite.main())
