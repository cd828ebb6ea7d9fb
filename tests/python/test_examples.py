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

    def test_a_device_that_an_example_does_not_train_on(self):
        """It says so, and does not train elsewhere."""
        finished = suite.run([sys.executable, suite.EXAMPLES / "digits_ddp.py", "--device", "cuda"])
        self.assertEqual(finished.returncode, 2, finished.stdout)
        self.assertIn("argument --device: invalid choice: 'cuda'", finished.stdout)


del ExamplesCase  # not a case by itself

if __name__ == "__main__":
    sys.exit(suite.main())
