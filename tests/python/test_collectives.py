#!/usr/bin/python3
"""Collectives of the backend in Python on one node (test_native.py has them on the native one), and of the one
in use on two nodes."""

import sys

import suite


class OnOneNode(suite.ForkedRanksCase, script="ranks_collectives.py", ranks=4, SHOAL_NATIVE="0"):
    pass


class OnTwoNodes(suite.RanksCase, script="ranks_collectives.py", ranks=2, nodes=2):
    pass


if __name__ == "__main__":
    sys.exit(suite.main())
