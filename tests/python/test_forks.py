#!/usr/bin/python3
"""A rank of the fork server is as one of a fresh interpreter, to itself and to whoever has started it."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import suite
from launch import forks

# Its output and its exit status are the same.
PROGRAMS = {
    "arguments": "import os, sys; print(sys.argv, __name__, os.getcwd(), os.environ['OWN'], sys.path[0])",
    "names": "print(sorted(name for name in globals() if not name.startswith('__')))",
    "imported later": "import own; print(own.NAME)",
    "descriptors": "import os; print(os.listdir('/proc/self/fd'))",
    "signals": "import signal; print([signal.getsignal(number) for number in range(1, 65)])",
    "session": "import os; print(os.getpgrp(), os.getsid(0))",
    "status": "import sys; sys.exit(3)",
    "words": "import sys; sys.exit('words')",
    "exception": "raise ValueError('x')",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import os; print('lost'); os.kill(os.getpid(), 11)",
    "end": "import atexit, threading; atexit.register(print, 'bye'); threading.Timer(0.1, print, ['late']).start()",
    "teardown": "class A:\n    def __del__(self):\n        print('gone')\na = A()\na.itself = a",
    "child": "import os; print(flush=True); pid = os.fork(); print(pid and os.waitpid(pid, 0)[1])",
}


class Forks(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="shoal-forks-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "own.py").write_text("NAME = 'its own'\n")
        self.server = forks.Server([], suite.environment())
        self.addCleanup(self.server.close)

    def start(self, kind, name, program, **how):
        script = self.folder / f"{name}.py"
        script.write_text(program)
        how.update(env=suite.environment(OWN=name), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        process = kind([sys.executable, str(script), "a b"], stdin=subprocess.DEVNULL, **how)
        self.addCleanup(process.stdout.close)
        return process

    def fork(self, command, **how):
        return forks.Fork(self.server, command, **how)

    def ends(self, process):
        """The lines of the server in a traceback are left out."""
        text = process.communicate(timeout=suite.LIMIT_S)[0]
        return process.returncode, re.sub(r"  File \"\S*/fork_server.py\".*\n(    .*\n)+", "", text)

    def test_as_a_fresh_one(self):
        for name, program in PROGRAMS.items():
            with self.subTest(name):
                ends = [self.ends(self.start(kind, name, program, cwd="/")) for kind in (subprocess.Popen, self.fork)]
                self.assertEqual(*ends)

    def test_random_numbers_differ(self):
        draw = "import numpy, torch; print(numpy.random.rand(), torch.rand(1).item())"
        self.server = suite.fork_server()
        if not self.server.is_ready:
            self.skipTest("this torch starts threads while it is loaded")
        drawn = [self.ends(self.start(self.fork, "draws", draw)) for _ in range(2)]
        self.assertEqual([code for code, _ in drawn], [0, 0], drawn)
        for ours, others in zip(*(text.split() for _, text in drawn)):
            self.assertNotEqual(ours, others)

    def test_threads_are_not_forked(self):
        """What they hold would stay held."""
        (self.folder / "threads.py").write_text(
            "import signal, threading\nthreading.Thread(target=signal.pause, daemon=True).start()\n"
        )
        server = forks.Server(["threads"], suite.environment(PYTHONPATH=str(self.folder)))
        server.close()
        self.assertEqual((server.is_ready, server.process.returncode), (False, 1))

    def test_one_that_runs_and_is_killed(self):
        process = self.start(self.fork, "runs", "import signal; print(flush=True); signal.pause()")
        process.stdout.readline()
        self.assertIsNone(process.poll())
        with self.assertRaises(subprocess.TimeoutExpired):
            process.wait(timeout=0.01)
        process.kill()
        self.assertEqual((process.wait(), process.poll()), (-9, -9))

    def test_none_outlives_the_server(self):
        process = self.start(self.fork, "stays", "import signal; print(flush=True); signal.pause()")
        process.stdout.readline()
        self.server.close()
        self.assertEqual(process.wait(), -9)


if __name__ == "__main__":
    sys.exit(suite.main())
