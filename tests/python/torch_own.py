#!/usr/bin/python3
"""Torch's own tests of a process group (torch.testing._internal.distributed.distributed_test), run
on gloo and on shoal; `make check-torch` calls it.

    torch_own.py            on shoal; what it does not pass on gloo, too; then what differs
    torch_own.py BACKEND [NAME...]   one of them; prints a JSON line for each test

What is skipped only because the backend's name is not "gloo" runs on shoal too. Ranks are forked,
not spawned, so that each need not load torch; ranks of shoal use one daemon, of shoalrun.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import suite  # noqa: E402

LIMIT_S = 3600  # of all tests on one backend; never reached when all is well


def load(backend):
    """torch's module, for this backend, with ranks that are forked."""
    import importlib.util
    import types

    try:
        import expecttest  # noqa: F401
    except ImportError:  # not every machine has it; these tests take its TestCase for a base
        sys.modules["expecttest"] = types.SimpleNamespace(
            TestCase=unittest.TestCase, ACCEPT=False
        )
    import torch
    from torch.testing._internal import common_distributed

    import shoal.torch  # noqa: F401

    common_distributed.skip_if_small_worldsize = lambda test: test  # four are enough, 2.6 wants eight
    features = common_distributed.DistTestCases.backend_feature
    for known in features.values():
        if "gloo" in known:
            known.add(backend)
    if backend != "gloo":
        features["plugin"].add(backend)
    name = "torch.testing._internal.distributed.distributed_test"
    spec = importlib.util.find_spec(name)
    source = pathlib.Path(spec.origin).read_text()
    source = source.replace('BACKEND != "gloo"', f'BACKEND not in ("gloo", "{backend}")')
    source = source.replace('({"gloo"})', f'({{"gloo", "{backend}"}})')
    source = source.replace('== "mpi" or BACKEND == "gloo"', f'in ("mpi", "gloo", "{backend}")')
    if backend != "gloo":  # whose all-to-all is younger than these tests
        source = source.replace('BACKEND != "mpi", "Only', f'BACKEND not in ("mpi", "{backend}"), "Only')
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    fork = torch.multiprocessing.get_context("fork").Process

    class TestBackend(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(fork)

    return module, TestBackend


class Results(unittest.TextTestResult):
    def say(self, test, result, text=""):
        print(json.dumps([test.id().split(".")[-1], result, text]), flush=True)

    def addSuccess(self, test):
        self.say(test, "passed")

    def addSkip(self, test, reason):
        self.say(test, "skipped", reason)

    def addFailure(self, test, error):
        self.say(test, "failed", self._exc_info_to_string(error, test))

    addError = addFailure


def run_one(backend, wanted):
    os.environ["BACKEND"] = backend
    with tempfile.TemporaryDirectory(prefix="shoal-torch-own-") as folder:
        os.environ.update(TEMP_DIR=folder, WORLD_SIZE="4", INIT_METHOD=f"file://{folder}/shared_init_file")
        for name in ("barrier", "test_dir", "init_dir"):
            os.makedirs(os.path.join(folder, name))
        _, case = load(backend)
        names = wanted or unittest.TestLoader().getTestCaseNames(case)
        tests = unittest.TestSuite(case(name) for name in names)
        with open(os.devnull, "w") as nowhere:
            unittest.TextTestRunner(stream=nowhere, resultclass=Results).run(tests)


def collect(backend, wanted=()):
    """{test: (result, text)} of those wanted or all, from a process of its own under shoalrun."""
    command = [suite.BUILD / "bin" / "shoalrun", "--timeout", LIMIT_S, "-n", "1"]
    results = {}
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            [str(word) for word in (*command, "--", sys.executable, __file__, backend, *wanted)],
            env=suite.environment(GLOO_SOCKET_IFNAME="lo"),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        for line in process.stdout:
            if line.startswith('["test_'):
                name, result, text = json.loads(line)
                results[name] = (result, text)
                print(f"{backend:6} {result:8} {name}", flush=True)
        if process.wait() != 0 or not results:
            errors.seek(0)
            said = errors.read()[-6000:]
            raise SystemExit(f"{said}\nthe tests on {backend} ended with {process.returncode}")
    return results


def report(backend, results):
    counts = collections.Counter(result for result, _ in results.values())
    print(
        f"\n{backend}: {len(results)} tests: {counts['passed']} passed,"
        f" {counts['failed']} failed, {counts['skipped']} skipped"
    )
    reasons = collections.Counter(
        text.splitlines()[0] for result, text in results.values() if result == "skipped"
    )
    for reason, count in reasons.most_common():
        print(f"  {count:4} skipped: {reason}")


def compare(ours, theirs):
    """How many tests do worse on shoal than on gloo; says which. {test: (result, text)} of both."""
    bad = 0
    for name in sorted({**ours, **theirs}):
        result, text = ours.get(name, ("missing", ""))
        on_gloo = theirs.get(name, ("missing", ""))[0]
        if result == "passed":
            continue
        if result != on_gloo:
            bad += 1
            print(f"\n{name}: {result}; on gloo {on_gloo}\n{text[-3000:]}")
        elif result == "failed":
            lines = [line for line in text.splitlines() if re.match(r"\w*(Error|Exception)", line)]
            print(f"\n{name}: failed, as on gloo: {(lines or [''])[-1][:150]}")
    return bad


def main():
    reason = suite.reason_to_skip()
    if reason:
        print(f"SKIP torch_own: {reason}")
        return 0
    ours = collect("shoal")
    theirs = collect("gloo", [name for name, (result, _) in ours.items() if result != "passed"])
    report("shoal", ours)
    bad = compare(ours, theirs)
    passed = sum(result == "passed" for result, _ in ours.values())
    print(f"\non shoal {passed} passed; {bad} that gloo passes did not")
    return 1 if bad else 0


if __name__ == "__main__":
    if sys.argv[1:]:
        run_one(sys.argv[1], sys.argv[2:])
    else:
        sys.exit(main())
