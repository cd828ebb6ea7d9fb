#!/usr/bin/python3
"""The example of a mixture of experts trains as it does on gloo."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402
from examples_case import ExamplesCase  # noqa: E402


class Digits(ExamplesCase):
    @classmethod
    def commands(cls):
        return [("digits_experts.py",)]

    def test_experts(self):
        self.check("digits_experts.py")


del ExamplesCase  # not a case by itself

if __name__ == "__main__":
    sys.exit(suite.main())
