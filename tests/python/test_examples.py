#!/usr/bin/python3
"""The examples train as they do on gloo: the same loss in every step."""

import subprocess
import sys
import unittest

import suite

ALLOWED = 1e-6  # relative, of a step's loss in f32
_losses_of_gloo = {}


def torch_version():
    command = [sys.executable, "-c", "import torch; print(torch.__version__)"]
    return tuple(int(part) for part in subprocess.check_output(command, text=True).split(".")[:2])


class Examples(unittest.TestCase):
    def losses(self, backend, script, *arguments, **more):
        path = suite.EXAMPLES / script
        return suite.losses(suite.shoalrun(4, path, *arguments, "--backend", backend, **more))

    def check(self, script, *arguments, like=None, **more):
        key = like or (script, *arguments)
        if key not in _losses_of_gloo:
            _losses_of_gloo[key] = self.losses("gloo", *key)
        expected, got = _losses_of_gloo[key], self.losses("shoal", script, *arguments, **more)
        self.assertEqual(len(got), len(expected))
        self.assertLess(min(got), got[0] * 0.95, "it does not learn")
        for step, (ours, theirs) in enumerate(zip(got, expected)):
            self.assertLessEqual(abs(ours - theirs) / abs(theirs), ALLOWED, f"step {step}")

    def test_digits(self):
        self.check("digits_ddp.py")

    def test_transformer(self):
        self.check("transformer_ddp.py")

    def test_transformer_zero_copy(self):
        self.check("transformer_ddp.py", "--zero-copy", like=("transformer_ddp.py",))

    def test_transformer_hook(self):
        self.check("transformer_ddp.py", "--hook", like=("transformer_ddp.py",))

    def test_transformer_zero(self):
        self.check("transformer_zero.py")

    def test_two_groups(self):
        self.check("two_groups.py")

    def test_tensor_parallel(self):
        self.check("tensor_parallel.py")

    def check_fsdp(self, *arguments):
        if torch_version() < (2, 0):
            self.skipTest("torch.distributed.fsdp of 1.13 does not import on Python 3.11")
        self.check("transformer_fsdp.py", *arguments)

    def test_transformer_fsdp(self):
        self.check_fsdp()

    def test_transformer_hybrid_shard(self):
        self.check_fsdp("--hybrid")


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
