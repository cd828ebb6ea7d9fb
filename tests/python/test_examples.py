#!/usr/bin/python3
"""The data-parallel examples train as they do on gloo."""

import os
import subprocess
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

    def test_a_line_of_progress_on_a_terminal(self):
        """Rank 0 alone shows the line; words that are said meanwhile are on a line of their own."""
        code = (
            "import os, sys, common\n"
            "for rank, term in (('0', 'xterm'), ('0', 'dumb'), ('0', ''), ('1', 'xterm')):\n"
            "    os.environ.update(RANK=rank, TERM=term)\n"
            "    for step in common.count_steps(2):\n"
            "        if step == 1: common.say('saved')\n"
        )
        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        try:
            command = [sys.executable, "-c", code]
            path = f"{suite.EXAMPLES}:{suite.environment()['PYTHONPATH']}"
            own = suite.environment(PYTHONPATH=path)
            finished = subprocess.run(command, env=own, stdout=theirs, stderr=theirs, timeout=suite.LIMIT_S)
        finally:
            os.close(theirs)
        self.assertEqual(finished.returncode, 0)
        said = os.read(ours, 4096).decode().replace("\r\n", "\n")
        first = "\rstep 1 of 2\033[K\r\rstep 2 of 2\033[K\r\r\033[Ksaved\n\r\033[K"
        self.assertEqual(said, first + "saved\n" * 3)

    def refused(self, script):
        """Return what the script says of a GPU where there is none; it does not train elsewhere."""
        command = [sys.executable, suite.EXAMPLES / script, "--device", "cuda"]
        finished = suite.run(command, CUDA_VISIBLE_DEVICES="")
        self.assertEqual(finished.returncode, 2, finished.stdout)
        return finished.stdout

    def test_a_device_that_an_example_does_not_train_on(self):
        said = self.refused("tensor_parallel.py")
        self.assertIn("argument --device: invalid choice: 'cuda'", said)

    def test_no_device(self):
        for command in self.commands():
            said = self.refused(*command)
            self.assertRegex(said, "--device cuda: (torch finds no GPU|this torch is built without CUDA)")


del ExamplesCase  # not a case by itself

if __name__ == "__main__":
    sys.exit(suite.main())
