"""What the tests of the Python package share: running ranks, counting, skipping.

A test program is test_<noun>.py, run by scripts/run-tests.sh like the C programs and counted in the
same words. Its cases are unittest's. What runs inside ranks is in ranks_<noun>.py.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("TEST_BUILD_DIR") or TREE / "build").resolve()
EXAMPLES = TREE / "worker" / "python" / "examples"
# The backstop of a command; never reached when all is well.
LIMIT_S = 120


def reason_to_skip():
    """Why no test of the package can run here; None: they can."""
    if re.search(r"asan|tsan", BUILD.name):
        return "a sanitized library cannot be loaded into an interpreter that is not sanitized"
    probe = [sys.executable, "-c", "import numpy, torch.distributed as d; assert d.is_available()"]
    if subprocess.run(probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        return f"{sys.executable} has no torch with torch.distributed (package python3-torch)"
    return None


def environment(**more):
    """For a rank: this tree's package and library, and nothing of a launcher or a daemon."""
    launchers = re.compile(r"SHOAL_|SLURM_|MASTER_|(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE)$")
    own = {name: value for name, value in os.environ.items() if not launchers.match(name)}
    own["PYTHONPATH"] = str(TREE / "worker" / "python")
    own["SHOAL_LIBRARY"] = str(BUILD / "lib" / "libshoal.so")
    own.update(OMP_NUM_THREADS="1", USE_LIBUV="0", PYTHONWARNINGS="ignore", GLOO_SOCKET_IFNAME="lo")
    own.update(more)
    return own


def run(command, **more):
    """Run to the end; returns the finished process with its text."""
    return subprocess.run(
        [str(word) for word in command],
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )


def shoalrun(ranks, script, *arguments, nodes=None, **more):
    """A script as so many ranks (of each of so many nodes) under shoalrun."""
    command = [BUILD / "bin" / "shoalrun", "--timeout", LIMIT_S - 20]
    if nodes:
        command += ["--nodes", nodes]
    return run([*command, "-n", ranks, "--", sys.executable, script, *arguments], **more)


class Ranks:
    """Ranks without a launcher: processes with RANK and WORLD_SIZE, and a file as the store. more:
    their environment; each[rank] is added to it."""

    def __init__(self, size, script, *arguments, each=None, **more):
        self.folder = tempfile.TemporaryDirectory(prefix="shoal-ranks-")
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(script), *arguments],
                env=environment(
                    RANK=str(rank),
                    WORLD_SIZE=str(size),
                    LOCAL_RANK=str(rank),
                    TEST_STORE=f"{self.folder.name}/store",
                    **more,
                    **(each[rank] if each else {}),
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]

    def wait(self):
        """[(exit code, text)] of all ranks."""
        return [
            (process.wait(), text)
            for process, text in [(p, p.communicate(timeout=LIMIT_S)[0]) for p in self.processes]
        ]

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        self.folder.cleanup()


def losses(finished):
    """The losses that an example has printed."""
    lines = [line for line in finished.stdout.splitlines() if line.startswith('{"backend"')]
    if finished.returncode != 0 or len(lines) != 1:
        raise AssertionError(f"exit code {finished.returncode}:\n{finished.stdout}")
    return json.loads(lines[0])["losses"]


class RanksCase(unittest.TestCase):
    """Cases that ran inside ranks: their results, as {name: text, "" when well}."""

    @classmethod
    def add(cls, names):
        for name in names:
            setattr(cls, name, lambda self, name=name: self.check(name))

    def check(self, name):
        self.assertIn(name, self.results, f"the ranks did not get to it:\n{self.output[-6000:]}")
        if self.results[name].startswith("SKIP ") and "\n" not in self.results[name]:
            self.skipTest(self.results[name][5:])
        self.assertEqual(self.results[name], "")

    @classmethod
    def collect(cls, finished):
        cls.output = finished.stdout
        lines = [line[7:] for line in finished.stdout.splitlines() if line.startswith("RESULT ")]
        cls.results = dict(json.loads(line) for line in lines)


def names_of(script):
    """The cases of a ranks_<noun>.py, without importing it (and torch)."""
    return re.findall(r"^def (test_\w+)", (HERE / script).read_text(), re.MULTILINE)


def main():
    reason = reason_to_skip()
    name = pathlib.Path(sys.argv[0]).stem
    if reason:
        print(f"SKIP {name}: {reason}")
        return 0
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    for case, why in result.skipped:
        print(f"SKIP {case.id().split('.', 1)[-1]}: {why}")
    bad = (len(result.failures), len(result.errors))
    good = result.testsRun - sum(bad)
    share = 100 * good // max(1, result.testsRun)
    print(f"{share}%: Checks: {result.testsRun}, Failures: {bad[0]}, Errors: {bad[1]}")
    return 0 if result.wasSuccessful() else 1
