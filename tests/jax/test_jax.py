#!/usr/bin/python3
"""JAX's collectives on CPUs by shoal: programs as a user writes them, which know nothing of shoal."""

import collections
import json
import pathlib
import re
import subprocess
import sys
import unittest

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
sys.path.insert(0, str(PROGRAMS.parents[1] / "python"))
import suite  # noqa: E402
from launch.mpirun import free_port  # noqa: E402

LIMIT_S = 600  # the backstop of a run
LATE_S = 35  # beyond the 30 s after which Gloo gives up
F16 = "float16"
COMPLEX = ("complex64", "complex128")
# XLA refuses these before it asks a library: an order of complex numbers, and f16.
ORDERS = {(name, dtype) for name in ("pmax", "pmin") for dtype in COMPLEX}
REFUSED = ORDERS | {(name, F16) for name in ("psum", "pmax", "pmin", "all_gather", "psum_scatter", "prod")}
CASES = 8 * 15 - 2  # collectives and types; without sums of truth values


def reason_to_skip():
    if re.search(r"asan|tsan", suite.BUILD.name):
        return "a sanitized library cannot be loaded into an interpreter that is not sanitized"
    probe = subprocess.run([sys.executable, "-c", "import jax"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return "no JAX: scripts/jax-env.sh makes an environment with it (make check-jax)" if probe.returncode else None


def run(ranks, program, *options, how=("--as", "jax"), **more):
    """Run a program as so many ranks (of each node). options and how: shoalrun's."""
    command = [suite.BUILD / "bin" / "shoalrun", "--timeout", LIMIT_S - 20, *how, *options, "-n", ranks]
    more = {"PYTHONPATH": str(PROGRAMS), "TEST_PORT": str(free_port()), "JAX_PLATFORMS": "cpu", **more}
    more["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # most of the time is the compiler's
    return suite.run([*command, "--", sys.executable, "-B", PROGRAMS / program], limit_s=LIMIT_S, **more)


class Collectives(unittest.TestCase):
    def check(self, finished, ranks):
        self.assertEqual(finished.returncode, 0, finished.stdout[-6000:])
        said = collections.defaultdict(list)
        for name, dtype, outcome in re.findall(r"^CASE (\w+) (\w+) (.*)", finished.stdout, re.M):
            said[name, dtype].append(outcome)
        self.assertEqual(len(said), CASES, finished.stdout[-6000:])
        for case, outcomes in said.items():
            self.assertEqual(len(outcomes), ranks, case)
            for outcome in outcomes:
                self.assertEqual(outcome.split(":")[0], "refused" if case in REFUSED else "well", (case, outcome))

    def test_by_variables(self):
        """A user may set by hand what --as sets."""
        path = suite.run([suite.BUILD / "bin" / "shoalrun", "--print", "jax"]).stdout.strip()
        variables = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi", "MPITRAMPOLINE_LIB": path}
        self.check(run(2, "collectives.py", how=(), **variables), 2)

    def test_on_two_nodes(self):
        self.check(run(2, "collectives.py", "--nodes", 2), 4)


class Transformer(unittest.TestCase):
    """Losses are those of one process, which asks no library."""

    def losses(self, ranks, *options):
        finished = run(ranks, "transformer.py", *options)
        self.assertEqual(finished.returncode, 0, finished.stdout[-6000:])
        return [json.loads(one) for one in re.findall(r"^LOSSES (.*)", finished.stdout, re.M)]

    def test_losses(self):
        alone = self.losses(1)[0]["losses"]
        self.assertLess(alone[-1], alone[0])
        for options, ranks, ways in (((), 2, 3), (("--nodes", 2), 4, 2)):
            with self.subTest(ranks=ranks):
                said = self.losses(2, *options)
                self.assertEqual(len(said), ways * ranks)
                for one in said:
                    self.assertIn("all-reduce", one["collectives"], one)
                    for got, wanted in zip(one["losses"], alone, strict=True):
                        self.assertAlmostEqual(got, wanted, delta=1e-12, msg=one)
                sharded = [one for one in said if one["way"] != "data"]
                self.assertTrue(all("all-gather" in one["collectives"] for one in sharded), sharded)


class Steady(unittest.TestCase):
    def bits(self, late_s):
        finished = run(4, "steady.py", TEST_LATE_S=str(late_s))
        self.assertEqual(finished.returncode, 0, finished.stdout[-6000:])
        said = re.findall(r"^BITS (\w+)", finished.stdout, re.M)
        self.assertEqual(len(said), 4, finished.stdout[-6000:])
        return set(said)

    def test_a_late_process(self):
        """It fails nothing, and the bits are those of a run in which all are in time."""
        said = self.bits(0) | self.bits(LATE_S)
        self.assertEqual(len(said), 1, said)


# JAX's coordinator is in rank 0. JAX aborts the others when that has ended.
ENDED = r"(ended with exit code 1|was killed by signal 6)"


class Endings(unittest.TestCase):
    def check(self, end, others):
        """See that the others end by themselves, before shoalrun ends them; others: how. Return what they have said."""
        finished = run(3, "ending.py", "--grace", LIMIT_S, TEST_END=end)
        self.assertNotEqual(finished.returncode, 0, finished.stdout[-6000:])
        self.assertNotIn("ENDED", finished.stdout)
        for rank in {0, 1, 2} - {int(end[0])}:
            self.assertRegex(finished.stdout, rf"shoalrun: rank {rank} \S+ pid \d+\) {others}", finished.stdout[-6000:])
        return finished.stdout

    def assert_heard(self, pattern, said):
        """Each process has said so that JAX has not aborted before."""
        aborted = said.count("was killed by signal 6")
        self.assertGreaterEqual(len(re.findall(pattern, said)) + aborted, 2, said[-6000:])

    def test_a_killed_process(self):
        said = self.check("1 killed", ENDED)
        self.assert_heard(r"JaxRuntimeError: .*MPI error: rank 1 on node \S+ is gone", said)

    def test_a_killed_coordinator(self):
        said = self.check("0 killed", ENDED)
        self.assert_heard(r"libshoal-mpitrampoline: rank 0 on node \S+ is gone", said)

    def test_an_exception(self):
        """All end as they would without shoal: the one that has raised waits for the others."""
        said = self.check("1 raises", "ended with exit code 1")
        self.assertIn("ValueError: an error of its own", said)
        self.assertEqual(len(re.findall(r"Error: .*MPI error: rank 1 has left job", said)), 2, said[-6000:])

    def test_an_end_in_peace(self):
        finished = run(3, "ending.py")
        self.assertEqual(finished.returncode, 0, finished.stdout[-6000:])
        self.assertEqual(finished.stdout.count("ENDED"), 3)
        self.assertNotIn("libshoal-mpitrampoline", finished.stdout)

    def test_several_devices(self):
        """XLA's path of MPI has one for each process; more are refused with a text, and give no wrong sum."""
        finished = run(2, "ending.py", "--grace", LIMIT_S, JAX_NUM_CPU_DEVICES="2")
        self.assertNotEqual(finished.returncode, 0, finished.stdout[-6000:])
        self.assertIn("every process must have one CPU device", finished.stdout)
        self.assertNotIn("STEP", finished.stdout)


if __name__ == "__main__":
    sys.exit(suite.main(reason_to_skip))
