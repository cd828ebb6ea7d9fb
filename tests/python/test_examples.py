#!/usr/bin/python3
"""The data-parallel examples train as they do on gloo; torchrun starts one."""

import sys
import unittest

import suite
from examples_case import ExamplesCase, torch_version


class DataParallel(ExamplesCase):
    def test_digits(self):
        self.check("digits_ddp.py")

    def test_transformer(self):
        self.check("transformer_ddp.py")

    def test_transformer_zero_copy(self):
        self.check("transformer_ddp.py", "--zero-copy", like=("transformer_ddp.py",))

    def test_transformer_hook(self):
        self.check("transformer_ddp.py", "--hook", like=("transformer_ddp.py",))


class Launchers(unittest.TestCase):
    def test_torchrun_without_a_daemon(self):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=4"]
        if torch_version() < (2, 0):
            command += ["-r", "1", "-t", "1"]  # 1.13 cannot do without on Python 3.11
        command += ["--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:0", "--max_restarts=0"]
        finished = suite.run([*command, suite.EXAMPLES / "digits_ddp.py"])
        if "PyTorch was build without libuv" in finished.stdout:
            self.skipTest("torchrun of this torch wants libuv, which it has been built without")
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertIn('{"backend": "shoal", "losses"', finished.stdout)


if __name__ == "__main__":
    sys.exit(suite.main())
