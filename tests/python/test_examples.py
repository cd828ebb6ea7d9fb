#!/usr/bin/python3
"""The data-parallel examples train as they do on gloo."""

import sys

import suite
from examples_case import ExamplesCase


class DataParallel(ExamplesCase):
    @classmethod
    def commands(cls):
        return [("digits_ddp.py",), ("transformer_ddp.py",)]

    @classmethod
    def of_shoal(cls):
        like = ("transformer_ddp.py",)
        return {(*like, "--zero-copy"): like, (*like, "--hook"): like}

    def test_digits(self):
        self.check("digits_ddp.py")

    def test_transformer(self):
        self.check("transformer_ddp.py")

    def test_transformer_zero_copy(self):
        self.check("transformer_ddp.py", "--zero-copy")

    def test_transformer_hook(self):
        self.check("transformer_ddp.py", "--hook")


del ExamplesCase  # not a case by itself

if __name__ == "__main__":
    sys.exit(suite.main())
