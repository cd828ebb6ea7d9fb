#!/usr/bin/python3
"""Tests that a framework brings itself: what passes on Gloo passes on shoal. Those of DeepSpeed are in no wheel: they
are run from the checkout that DEEPSPEED_CHECKOUT names."""

import contextlib
import dataclasses
import os
import pathlib
import sys
import xml.etree.ElementTree

import frameworks_case
import running
import suite
import table

# Of accelerate.test_utils.scripts: what needs no GPU and no hub, and on how many ranks.
ACCELERATE = {"test_script": (2,), "test_ops": (2, 4), "test_sync": (2, 4)}
# One whose ranks call different collectives where there is no GPU: on Gloo they wait until somebody ends them.
DISAGREE = "test_distributed_data_loop"
CHECKOUT = os.environ.get("DEEPSPEED_CHECKOUT", "")


@dataclasses.dataclass(frozen=True)
class Brought:
    """What pytest runs of a framework's tests. words: pytest's own. on_shoal: further ones. environment: of both."""

    framework: str
    name: str
    words: tuple
    on_shoal: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)
    reason_to_skip: str | None = None


def of_deepspeed(file):
    """Each function of it once, with its first parameters: there are thousands. LOCAL_SIZE: the ranks that DeepSpeed
    believes this machine can have. Its tests take 600 s for hanging."""
    words = ("-p", "first_of_each", pathlib.Path(CHECKOUT).resolve() / "tests" / "unit" / file)
    there = bool(CHECKOUT) and words[-1].exists()
    reason = None if there else f"DEEPSPEED_CHECKOUT names no folder that has DeepSpeed's tests/unit/{file}"
    name = file.removesuffix(".py").replace("/", "_")
    environment = {"LOCAL_SIZE": "4", "DS_UNITTEST_TIMEOUT": "240", **table.OPERATORS}
    return Brought("deepspeed", name, words, environment=environment, reason_to_skip=reason)


def of_torchft(name, *words):
    """The names of its tests have numbers, which come from the order of a set."""
    words = ("--pyargs", f"torchft.{name}", *words)
    return Brought("torchft", name, words, ("-p", "torchft_on_shoal"), {"PYTHONHASHSEED": "0"})


BROUGHT = (
    # Its "Baby" groups are Gloo's, in a process that torchft starts.
    of_torchft("process_group_test", "-k", "not baby"),
    of_torchft("manager_integ_test"),
    of_deepspeed("comm/test_dist.py"),
)


class Own(frameworks_case.FrameworksCase):
    def run_on(self, on, framework, module, size):
        with table.reserved_port() as port:
            command = [*table.ACCELERATE, f"--num_processes={size}", f"--main_process_port={port}", "-m"]
            module = f"accelerate.test_utils.scripts.{module}"
            run = running.Running([[*command, module]], on, self.path, **framework.environment)
            with contextlib.closing(run):
                return run.wait()

    def check(self, framework, module, size):
        for on in frameworks_case.BACKENDS:
            finished = self.run_on(on, framework, module, size)
            self.check_ended(finished, [0])
            self.assertEqual(running.LINE in finished.text, on == "shoal", finished.end())

    def check_disagree(self, framework):
        ours = self.run_on("shoal", framework, DISAGREE, 2)
        self.check_ended(ours, [1])
        self.assertIn("differs between ranks", ours.text, ours.end())

    def passed_on(self, on, framework, brought):
        """The names of those that pass, and how the run has ended."""
        pytest = [table.PYTHON, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--junitxml=passed.xml"]
        words = [*pytest, *brought.words, *(brought.on_shoal if on == "shoal" else ())]
        run = running.Running([words], on, self.path, **brought.environment)
        with contextlib.closing(run):
            finished = run.wait()
            said = pathlib.Path(run.folder.name) / "passed.xml"
            cases = xml.etree.ElementTree.parse(said).iter("testcase") if said.exists() else ()
            bad = {"failure", "error", "skipped"}
            passed = {f"{it.get('classname')}::{it.get('name')}" for it in cases if not bad & {part.tag for part in it}}
        return passed, finished

    def check_brought(self, framework, brought):
        (gloos, on_gloo), (ours, on_shoal) = (
            self.passed_on(on, framework, brought) for on in frameworks_case.BACKENDS
        )
        print(f"\n{framework.name}, {brought.name}: {len(gloos)} pass on Gloo, {len(ours)} on shoal")
        self.assertTrue(gloos, on_gloo.end())
        self.assertFalse(on_shoal.late, on_shoal.end())
        self.assertEqual(gloos - ours, set(), on_shoal.end())
        self.assertTrue(framework.by_name or running.LINE in on_shoal.text, on_shoal.end())


by_name = {one.name: one for one in table.FRAMEWORKS}
for script, sizes in ACCELERATE.items():
    for ranks in sizes:
        check = lambda self, framework, words=(script, ranks): self.check(framework, *words)  # noqa: E731
        Own.add(by_name["accelerate"], f"{script}_{ranks}_ranks", check)
Own.add(by_name["accelerate"], DISAGREE, Own.check_disagree)
for one in BROUGHT:
    check = lambda self, framework, one=one: self.check_brought(framework, one)  # noqa: E731
    Own.add(by_name[one.framework], f"own_{one.name}", check, one.reason_to_skip)

if __name__ == "__main__":
    sys.exit(suite.main())
