"""Parts that the tests of code that nobody here wrote share: where it is, and how it is run.

SHOAL_SMDDP_SCRIPTS names the folder. Its site goes on PYTHONPATH, and its lib on LD_LIBRARY_PATH:
what that code imports and this machine has not. doc/smddp.md says how to fill it.
"""

import os
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

FOLDER = os.environ.get("SHOAL_SMDDP_SCRIPTS")
NO_FOLDER = "SHOAL_SMDDP_SCRIPTS names no folder with it"


def find(pattern):
    """The paths below the folder, in order."""
    return sorted(pathlib.Path(FOLDER).rglob(pattern)) if FOLDER else []


class ScriptsCase(unittest.TestCase):
    RANKS = 2

    def start(self, *command, paths=(), **more):
        """Return what the command prints as RANKS ranks of mpirun's, under the runner of
        shoal.smddp."""
        paths = [suite.TREE / "worker" / "python", *paths, pathlib.Path(FOLDER) / "site"]
        runner = [sys.executable, "-m", "shoal.smddp"]
        finished = suite.run(
            [sys.executable, suite.LAUNCH / "mpirun.py", self.RANKS, *runner, *command],
            limit_s=280,
            PYTHONPATH=":".join(map(str, paths)),
            LD_LIBRARY_PATH=str(pathlib.Path(FOLDER) / "lib"),
            **more,
        )
        self.assertEqual(finished.returncode, 0, finished.stdout[-6000:])
        return finished.stdout

    def folder(self):
        """One of the test's own."""
        folder = tempfile.TemporaryDirectory(prefix="shoal-scripts-")
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name)

    def write(self, text):
        """A script of these lines."""
        path = self.folder() / "script.py"
        path.write_text(text)
        return path

    def losses(self, output):
        """Return the losses of each rank, as it has printed them."""
        return [
            [float(loss) for loss in re.findall(rf"loss of rank {rank}: (\S+)", output)]
            for rank in range(self.RANKS)
        ]

    def check_losses(self, output, expected, count, most):
        """Returns how far they are apart, relatively."""
        ours, theirs = self.losses(output), self.losses(expected)
        for losses in (ours, theirs):
            self.assertEqual([len(own) for own in losses], [count] * self.RANKS)
        pairs = [pair for both in zip(ours, theirs) for pair in zip(*both)]
        apart = max(abs(one - other) / other for one, other in pairs)
        self.assertLessEqual(apart, most)
        return apart
