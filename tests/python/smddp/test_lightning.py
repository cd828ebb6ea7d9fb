#!/usr/bin/python3
"""PyTorch Lightning with the backend smddp.

    SHOAL_SMDDP_SCRIPTS=FOLDER python3 test_lightning.py

In FOLDER/site are lightning (2.5), torchmetrics and lightning_utilities from their repositories.
"""

import pathlib
import sys
import unittest

from scripts_case import NO_FOLDER, ScriptsCase, find
import suite


def reason_to_skip():
    if not find("lightning/pytorch/trainer/trainer.py"):
        return NO_FOLDER
    return None


@unittest.skipIf(reason_to_skip(), reason_to_skip())
class Lightning(ScriptsCase):
    def test_it_trains_as_on_gloo(self):
        script = pathlib.Path(__file__).with_name("lightning_script.py")
        output = self.start(script, "smddp")
        first, last = self.losses(output)[0][0], self.losses(output)[0][-1]
        self.assertLess(last, first / 100, "it does not learn")
        self.assertNotIn("Exception ignored", output)
        apart = self.check_losses(output, self.start(script, "gloo"), 32, 1e-4)
        print(f"\nlightning: losses {first} to {last}, from gloo's at most {apart:.1e} apart")


if __name__ == "__main__":
    sys.exit(suite.main())
