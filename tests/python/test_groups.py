#!/usr/bin/python3
"""Groups of some ranks, what fails inside one of them, and the calls of libraries that shard."""

import sys

import suite


class Groups(suite.RanksCase):
    @classmethod
    def setUpClass(cls):
        cls.collect(suite.shoalrun(4, suite.HERE / "ranks_groups.py"))


Groups.add(suite.names_of("ranks_groups.py") + suite.names_of("ranks_sharding.py"))

if __name__ == "__main__":
    sys.exit(suite.main())
