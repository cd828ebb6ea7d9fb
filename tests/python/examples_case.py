"""Running an example on gloo and on shoal, and comparing the loss of every step."""

import subprocess
import sys
import unittest

import suite

ALLOWED = 1e-6  # relative, of a step's loss in f32
_losses_of_gloo = {}


def torch_version():
    command = [sys.executable, "-c", "import torch; print(torch.__version__)"]
    return tuple(int(part) for part in subprocess.check_output(command, text=True).split(".")[:2])


class ExamplesCase(unittest.TestCase):
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
