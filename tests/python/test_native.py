#!/usr/bin/python3
"""The native backend, where `make native` has built it: what it takes and leaves, and the collectives of
test_collectives.py, which runs on the one in Python."""

import os
import sys
import unittest

import suite


def said(**more):
    return suite.run([sys.executable, "-m", "shoal", "--no-test"], **more)


class Native(suite.ForkedRanksCase, script="ranks_native.py", ranks=4, SHOAL_NATIVE="1"):
    pass


class Choice(unittest.TestCase):
    """What `python3 -m shoal` says of it."""

    @unittest.skipIf(suite.reason_without_native(), "no native backend (make native)")
    def test_native_where_asked(self):
        self.assertIn("backend    native, ", said(SHOAL_NATIVE="1").stdout)

    def test_python_unless_asked(self):
        for more in ({}, {"SHOAL_NATIVE": "0"}):
            self.assertIn("backend    in Python: SHOAL_NATIVE is not 1", said(**more).stdout)

    def test_one_is_an_error_without_it(self):
        folder = suite.BUILD / "test-native"
        folder.mkdir(exist_ok=True)
        bare = folder / "libshoal.so"
        bare.unlink(missing_ok=True)
        os.link((suite.BUILD / "lib" / "libshoal.so").resolve(), bare)
        try:
            done = said(SHOAL_NATIVE="1", SHOAL_LIBRARY=str(bare))
            self.assertIn("backend    none: SHOAL_NATIVE is 1, and the native backend cannot be used", done.stdout)
        finally:
            bare.unlink()
            folder.rmdir()

    def test_anything_else_is_refused(self):
        self.assertIn("SHOAL_NATIVE is 'yes'", said(SHOAL_NATIVE="yes").stdout)


class Building(unittest.TestCase):
    def test_without_a_compiler_the_reason_is_said(self):
        builder = suite.TREE / "worker" / "python" / "native" / "build.py"
        done = suite.run([sys.executable, "-B", builder, "--build", suite.BUILD], CXX="no-such-compiler")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("not built: no compiler no-such-compiler; the one in Python serves", done.stdout)


if __name__ == "__main__":
    sys.exit(suite.main())
