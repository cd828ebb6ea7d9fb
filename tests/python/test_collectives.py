#!/usr/bin/python3
"""Collectives of the backend: four ranks on one node, and on two nodes."""

import sys

import suite


class OnOneNode(suite.RanksCase, script="ranks_collectives.py", ranks=4):
    pass


class OnTwoNodes(suite.RanksCase, script="ranks_collectives.py", ranks=2, nodes=2):
    pass


if __name__ == "__main__":
    sys.exit(suite.main())
