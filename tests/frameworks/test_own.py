#!/usr/bin/python3
"""Tests that a framework brings itself: a test that passes on Gloo passes on shoal. The tests of DeepSpeed are in no
wheel: they are run from the checkout that DEEPSPEED_CHECKOUT names."""

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

# Scripts of accelerate.test_utils.scripts that need no GPU and no hub, and on how many ranks they run.
ACCELERATE = {"test_script": (2,), "test_ops": (2, 4), "test_sync": (2, 4)}
# One whose ranks call different collectives where there is no GPU: on Gloo they wait until somebody ends them.
DISAGREE = "test_distributed_data_loop"
CHECKOUT = os.environ.get("DEEPSPEED_CHECKOUT", "")
# pytest cannot even collect these without packages for GPUs.
WANTING = [f"--ignore-glob=*/{name}" for name in ("onebit", "test_fp8.py")]


@dataclasses.dataclass(frozen=True)
class Brought:
    """Tests of a framework's own, run by pytest. words: pytest's arguments. on_shoal: further ones for the run on
    shoal. environment: of both runs. copied: a folder whose copy, of the same name, is where pytest runs."""

    framework: str
    name: str
    words: tuple
    on_shoal: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)
    copied: pathlib.Path | None = None
    reason_to_skip: str | None = None


def of_deepspeed(name, *paths):
    """Each function once, with its first parameters: there are thousands. LOCAL_SIZE: the ranks that DeepSpeed
    believes this machine can have. Its tests are copied, so that nothing else of the checkout is taken for the
    DeepSpeed that is installed."""
    tests = pathlib.Path(CHECKOUT).resolve() / "tests"
    missing = [path for path in paths if not CHECKOUT or not (tests / "unit" / path).exists()]
    reason = f"DEEPSPEED_CHECKOUT names no folder that has DeepSpeed's tests/unit/{missing[0]}" if missing else None
    words = ("-p", "deepspeed_quick", *WANTING, *(f"tests/unit/{path}" for path in paths))
    environment = {"LOCAL_SIZE": "4", "DS_UNITTEST_TIMEOUT": "240", **table.OPERATORS}
    return Brought("deepspeed", name, words, environment=environment, copied=tests, reason_to_skip=reason)


def of_torchft(name, *words):
    """The names of its tests have numbers, which come from the order of a set."""
    words = ("--pyargs", f"torchft.{name}", *words)
    return Brought("torchft", name, words, ("-p", "torchft_on_shoal"), {"PYTHONHASHSEED": "0"})


BROUGHT = (
    Brought(
        "accelerate",
        "notebook",
        ("-p", "own_port", "--pyargs", "accelerate.test_utils.scripts.test_notebook"),
        environment={"ACCELERATE_USE_CPU": "true", "ACCELERATE_NUM_PROCESSES": "2"},
    ),
    # Its "Baby" groups are Gloo's, in a process that torchft starts.
    of_torchft("process_group_test", "-k", "not baby"),
    of_torchft("manager_integ_test"),
    of_deepspeed("comm", "comm"),
    of_deepspeed("pipe", "pipe", "runtime/pipe"),
    of_deepspeed(
        "zero_contexts", *(f"runtime/zero/test_zero_context{what}.py" for what in ("", "_ancestry", "_return"))
    ),
    of_deepspeed("moe", "v1/moe/test_moe.py", "v1/moe/test_moe_tp.py"),
    of_deepspeed("zero", "v1/zero"),
    of_deepspeed("half_precision", "v1/half_precision", "runtime/half_precision"),
    of_deepspeed("checkpoint", "checkpoint"),
    of_deepspeed("sequence_parallelism", "sequence_parallelism"),
)


class Own(frameworks_case.FrameworksCase):
    def run_on(self, on, framework, module, size):
        with suite.reserved_port() as port:
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
        with suite.reserved_port() as port:
            own = {**brought.environment, "TEST_PORT": str(port)}
            run = running.Running([words], on, self.path, copied=brought.copied, **own)
            with contextlib.closing(run):
                finished = run.wait()
                said = pathlib.Path(run.folder.name) / "passed.xml"
                cases = list(xml.etree.ElementTree.parse(said).iter("testcase")) if said.exists() else []
        passed = [one for one in cases if not {"failure", "error", "skipped"} & {part.tag for part in one}]
        return {f"{one.get('classname')}::{one.get('name')}" for one in passed}, finished

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
