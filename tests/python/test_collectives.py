#!/usr/bin/python3
"""Collectives of the backend: four ranks on one node, and on two nodes."""

import sys

import suite

SCRIPT = "ranks_collectives.py"


class OnOneNode(suite.RanksCase):
    @classmethod
    def setUpClass(cls):
        cls.collect(suite.shoalrun(4, suite.HERE / SCRIPT))


class OnTwoNodes(suite.RanksCase):
    @classmethod
    def setUpClass(cls):
        cls.collect(suite.shoalrun(2, suite.HERE / SCRIPT, nodes=2))


OnOneNode.add(suite.names_of(SCRIPT))
OnTwoNodes.add(suite.names_of(SCRIPT))

if __name__ == "__main__":
    sys.exit(suite.main())
