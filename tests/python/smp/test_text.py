#!/usr/bin/python3
"""The example of parts of layers, shards and checkpoints trains as it does on gloo."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402
from examples_case import ExamplesCase  # noqa: E402


class Text(ExamplesCase):
    @classmethod
    def commands(cls):
        return [("transformer_smp.py",)]

    def test_parts_and_shards(self):
        self.check("transformer_smp.py")


del ExamplesCase  # not a case by itself

if __name__ == "__main__":
    sys.exit(suite.main())
