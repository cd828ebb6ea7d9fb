#!/usr/bin/python3
"""Groups of some ranks, and what fails inside one of them."""

import sys

import suite

SCRIPT = "ranks_groups.py"


class Groups(suite.RanksCase):
    @classmethod
    def setUpClass(cls):
        cls.collect(suite.shoalrun(4, suite.HERE / SCRIPT))


Groups.add(suite.names_of(SCRIPT))

if __name__ == "__main__":
    sys.exit(suite.main())
