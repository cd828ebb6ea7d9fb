#!/usr/bin/python3
"""The examples that shard parameters, gradients or the optimizer train as they do on gloo."""

import sys

import suite
from examples_case import ExamplesCase


class Sharded(ExamplesCase):
    @classmethod
    def commands(cls):
        every = [("transformer_zero.py",), ("two_groups.py",), ("tensor_parallel.py",)]
        return [*every, ("transformer_fsdp.py",), ("transformer_fsdp.py", "--hybrid")]

    def test_transformer_zero(self):
        self.check("transformer_zero.py")

    def test_two_groups(self):
        self.check("two_groups.py")

    def test_tensor_parallel(self):
        self.check("tensor_parallel.py")

    def test_transformer_fsdp(self):
        self.check("transformer_fsdp.py")

    def test_transformer_hybrid_shard(self):
        self.check("transformer_fsdp.py", "--hybrid")


del ExamplesCase  # not a case by itself

if __name__ == "__main__":
    sys.exit(suite.main())
