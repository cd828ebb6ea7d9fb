"""Parts that the tests of the Python package share: running ranks, counting, skipping.

A test program is test_<noun>.py, run by scripts/run-tests.sh like the C programs and counted in the same words. Its
cases are unittest's. The code that runs inside ranks is in ranks/ranks_<noun>.py.
"""

import atexit
import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import unittest

from launch import forks

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
RANKS = HERE / "ranks"  # what runs inside ranks
LAUNCH = HERE / "launch"  # ways to start ranks
BUILD = pathlib.Path(os.environ.get("TEST_BUILD_DIR") or TREE / "build").resolve()
EXAMPLES = TREE / "worker" / "python" / "examples"
# The backstop of a command; never reached when all is well.
LIMIT_S = 120
ENVIRONMENT = os.environ.get("TORCH_ENV") or "/var/tmp/shoal-torch"  # as scripts/torch-env.sh has it


def reason_to_skip(sanitized=False):
    """Why no test of the package can run here; None: they can. sanitized: these load what is made with a sanitizer."""
    if re.search(r"asan|tsan", BUILD.name) and not sanitized:
        return "a sanitized library is loaded into an interpreter that is not sanitized by test_sanitized.py alone"
    if _has_torch():
        return None
    then = f"scripts/torch-env.sh, then make check PYTHON={ENVIRONMENT}/bin/python3"
    return f"{sys.executable} has no torch 2.6 or later with torch.distributed, and numpy: {then}"


def _has_torch():
    """Loading torch takes seconds: of a run of many programs the first that finds it leaves the file
    TEST_TORCH_SEEN."""
    seen = os.environ.get("TEST_TORCH_SEEN")
    if seen and os.path.exists(seen):
        return True
    program = "import numpy, torch, torch.distributed as d; assert d.is_available()\n"
    program += "assert tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 6)"
    probe = [sys.executable, "-c", program]
    has = subprocess.run(probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    if seen and has:  # what one has not seen, another may
        pathlib.Path(seen).touch()
    return has


def environment(**more):
    """For a rank: this tree's package and library, and nothing of a launcher or a daemon. SHOAL_NATIVE, which
    asks for a backend, stays."""
    launchers = re.compile(r"SHOAL_(?!NATIVE)|SLURM_|MASTER_|(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE)$")
    own = {name: value for name, value in os.environ.items() if not launchers.match(name)}
    # With it a line and its end are two writes, between which another rank may write.
    own.pop("PYTHONUNBUFFERED", None)
    own["PYTHONPATH"] = f"{TREE / 'worker' / 'python'}:{RANKS}"  # cases in other folders use ranks.py
    own["SHOAL_LIBRARY"] = str(BUILD / "lib" / "libshoal.so")
    own.update(OMP_NUM_THREADS="1", USE_LIBUV="0", PYTHONWARNINGS="ignore", GLOO_SOCKET_IFNAME="lo")
    own.update(more)
    return own


def say_crash(name, code):
    """A crash is said, for scripts/run-tests.sh forgives no test one; returns the exit code."""
    number = -code if code < 0 else code - 128
    if number in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS):
        print(f"test process: {name} ended by signal {int(number)}", file=sys.stderr)
    return code


def run(command, *, limit_s=LIMIT_S, **more):
    """Run to the end; returns the finished process with its text."""
    finished = subprocess.run(
        [str(word) for word in command],
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
    )
    say_crash(os.path.basename(str(command[0])), finished.returncode)
    return finished


def shoalrun(ranks, script, *arguments, nodes=None, limit_s=LIMIT_S, **more):
    """A script as so many ranks (of each of so many nodes) under shoalrun."""
    command = [BUILD / "bin" / "shoalrun", "--timeout", limit_s - 20]
    if nodes:
        command += ["--nodes", nodes]
    command += ["-n", ranks, "--", sys.executable, script, *arguments]
    return run(command, limit_s=limit_s, **more)


def _torch_version_text():
    """Read, since loading torch takes a second."""
    folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    return re.search(r"__version__ = '([^']+)'", (folder / "version.py").read_text()).group(1)


def reason_without_native():
    """Why nothing can run on the native backend here; None: it has been built for this torch."""
    if importlib.util.find_spec("torch") is None:
        return "no torch"
    headers = re.sub(r"\+(cpu|cu\d+)$", "+pip", _torch_version_text())  # as _native.py, which loads torch, has it
    name = f"shoal_native-torch-{headers}-abi?{sysconfig.get_config_var('EXT_SUFFIX')}"
    if any((BUILD / "lib").glob(name)):
        return None
    return f"no native backend: no {name} (make native)"


@contextlib.contextmanager
def reserved_port():
    """Give a port of the loopback interface: bound and not listening, so that whoever sets SO_REUSEADDR may have it, as
    stores and daemons do, and nobody gets it by chance."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def torchrun(*options):
    """The command that starts two ranks on this node."""
    return [sys.executable, LAUNCH / "torchrun.py", "--nproc_per_node=2", "--monitor_interval=0.2", *options]


@functools.cache
def fork_server():
    """Return what forks the ranks of this program; it has loaded torch, and nothing of shoal."""
    server = forks.Server(["torch"], environment())
    atexit.register(server.close)
    return server


def start_rank(command, env, **how):
    """Start an interpreter with this command, as subprocess.Popen does. It is a fork of one that has loaded torch,
    unless it has variables that torch may read meanwhile: others than those of shoal, of launchers and of tests."""
    own = fork_server().environment
    differs = {name for name in {*env, *own} if env.get(name) != own.get(name)}
    same = all(re.match(r"SHOAL_|MASTER_|TEST_|(RANK|WORLD_SIZE|LOCAL_RANK)$", name) for name in differs)
    if same and fork_server().is_ready:
        return forks.Fork(fork_server(), [sys.executable, *command], env=env, **how)
    return subprocess.Popen([sys.executable, *command], env=env, **how)


class Ranks:
    """Ranks without a launcher: processes with RANK and WORLD_SIZE, and a file as the store. more:
    their environment; each[rank] is added to it."""

    def __init__(self, size, script, *arguments, each=None, **more):
        self.folder = tempfile.TemporaryDirectory(prefix="shoal-ranks-")
        self.processes = [
            start_rank(
                [str(script), *arguments],
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
            (say_crash(f"rank {rank}", process.wait()), text)
            for rank, (process, text) in enumerate(
                [(p, p.communicate(timeout=LIMIT_S)[0]) for p in self.processes]
            )
        ]

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        self.folder.cleanup()


class ForkedRanks:
    """Ranks that are forks of one interpreter; else like Ranks."""

    def __init__(self, size, script, *arguments, **more):
        self.folder = tempfile.TemporaryDirectory(prefix="shoal-ranks-")
        words = [size, self.folder.name, script, *arguments]
        self.process = subprocess.Popen(
            [sys.executable, str(LAUNCH / "forked.py"), *map(str, words)],
            env=environment(TEST_STORE=f"{self.folder.name}/store", **more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait(self):
        codes = json.loads(self.process.communicate(timeout=LIMIT_S)[0])
        folder = pathlib.Path(self.folder.name)
        return [
            (say_crash(f"rank {rank}", code), (folder / str(rank)).read_text())
            for rank, code in enumerate(codes)
        ]

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()


def _holds(pid, folders):
    """Whether a process has something open in one of the folders, as daemons and who serves them have the lock."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue  # it was closed meanwhile
        if any(path.startswith(f"{folder}/lock.") for folder in folders):
            return True
    return False


def wait_for_daemons(folders):
    """Until the daemons with these folders, which ranks have started, are gone with those that serve them."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if not _holds(pid, folders):
                continue
            descriptor = os.pidfd_open(int(pid))
        except OSError:
            continue  # it has ended meanwhile
        try:
            select.select([descriptor], [], [], LIMIT_S)
        finally:
            os.close(descriptor)


class RanksCase(unittest.TestCase):
    """The cases of a ranks_<noun>.py (in ranks/, or by its path) under shoalrun: their results, as
    {name: text, "" when well}."""

    def __init_subclass__(cls, script=None, **how):
        """how: of shoalrun()."""
        if script:
            cls.script, cls.how = RANKS / script, how
            for name in names_of(script):
                setattr(cls, name, lambda self, name=name: self.check(name))

    @classmethod
    def run_ranks(cls):
        """Run the ranks, and return what they print."""
        return shoalrun(script=cls.script, **cls.how).stdout

    @classmethod
    def setUpClass(cls):
        cls.output = cls.run_ranks()
        lines = [line[7:] for line in cls.output.splitlines() if line.startswith("RESULT ")]
        cls.results = dict(json.loads(line) for line in lines)

    def check(self, name):
        self.assertIn(name, self.results, f"the ranks did not get to it:\n{self.output[-6000:]}")
        if self.results[name].startswith("SKIP ") and "\n" not in self.results[name]:
            self.skipTest(self.results[name][5:])
        if self.results[name]:
            self.fail(self.results[name])  # whole, which assertEqual would shorten


class ForkedRanksCase(RanksCase):
    """A RanksCase in forks of one interpreter, which has imported what takes long; names that it is given besides
    `ranks` are their environment. TEST_FOLDER is an empty folder that all ranks see."""

    imports = ""

    @classmethod
    def setUpClass(cls):
        reason = reason_without_native() if cls.how.get("SHOAL_NATIVE") == "1" else None
        if reason:
            raise unittest.SkipTest(reason)
        super().setUpClass()

    @classmethod
    def run_ranks(cls):
        with tempfile.TemporaryDirectory(prefix="shoal-test-") as folder:
            path = f"{environment()['PYTHONPATH']}:{cls.script.parent}"
            more = {name: value for name, value in cls.how.items() if name != "ranks"}
            more.update(PYTHONPATH=path, TEST_IMPORTS=cls.imports, TEST_FOLDER=folder)
            forked = ForkedRanks(cls.how["ranks"], cls.script, **more)
            try:
                said = [text for _, text in forked.wait()]
            finally:
                forked.close()
        return "".join(said)


def imports_of_data_parallel():
    """Return the module that torch's DistributedDataParallel loads, which takes seconds: for
    ForkedRanksCase.imports."""
    return "torch._dynamo" if importlib.util.find_spec("torch") else ""


def names_of(script):
    """The cases that a ranks_<noun>.py runs, without importing it (and torch): its own and those of
    modules that it takes in or runs too."""
    text = (RANKS / script).read_text()
    names = re.findall(r"^def (test_\w+)", text, re.MULTILINE)
    for module in re.findall(r"^(?:from | *ranks\.run\(\")(ranks_\w+)", text, re.MULTILINE):
        names += names_of(f"{module}.py")
    return names


def main(why_not=reason_to_skip):
    """why_not: why nothing can run here, None: it can."""
    reason = why_not()
    name = pathlib.Path(sys.argv[0]).stem
    if reason:
        print(f"SKIP {name}: {reason}")
        return 0
    # A shell that runs this behind others has it ignore Ctrl-C, which those that it starts would take over.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends with what atexit has to do
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    for case, why in result.skipped:
        print(f"SKIP {case.id().split('.', 1)[-1]}: {why}")
    bad = (len(result.failures), len(result.errors))
    good = result.testsRun - sum(bad)
    share = 100 * good // max(1, result.testsRun)
    print(f"{share}%: Checks: {result.testsRun}, Failures: {bad[0]}, Errors: {bad[1]}")
    return 0 if result.wasSuccessful() else 1
