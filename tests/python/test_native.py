#!/usr/bin/python3
"""The native backend, where `make native` has built it: what it takes and leaves, and the collectives that
test_collectives.py runs on the one in Python; which of the two is used."""

import contextlib
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

import suite


def said(**more):
    return suite.run([sys.executable, "-m", "shoal", "--no-test"], **more)


class Native(suite.ForkedRanksCase, script="ranks_native.py", ranks=4, SHOAL_NATIVE="1"):
    pass


class Backend(suite.ForkedRanksCase, script="ranks_backend.py", ranks=2, SHOAL_NATIVE="1"):
    pass


class Checked(suite.ForkedRanksCase, script="ranks_checked.py", ranks=2, SHOAL_NATIVE="1", TORCH_DISTRIBUTED_DEBUG="DETAIL"):
    pass


class Choice(unittest.TestCase):
    """The choice of the backend, as `python3 -m shoal` says it."""

    @unittest.skipIf(suite.reason_without_native(), "no native backend (make native)")
    def test_native_where_it_is_built(self):
        self.assertIn("backend    native, ", said(SHOAL_NATIVE="").stdout)

    def test_python_where_it_is_not_built_or_not_wanted(self):
        """Why is said; to ask for what is not there is an error, and so is what is neither 0 nor 1."""
        with self.bare_library() as bare:
            why = f"is not in {bare.parent} or {suite.TREE / 'worker/python/shoal/torch'}"
            self.assertRegex(said(SHOAL_NATIVE="", SHOAL_LIBRARY=str(bare)).stdout, f"backend    in Python: .* {why}")
            text = said(SHOAL_NATIVE="1", SHOAL_LIBRARY=str(bare)).stdout
            self.assertRegex(text, f"backend    none: SHOAL_NATIVE is 1, and the native backend cannot be used: .* {why}")
        self.assertIn("backend    in Python: SHOAL_NATIVE is 0", said(SHOAL_NATIVE="0").stdout)
        self.assertIn("SHOAL_NATIVE is 'yes'", said(SHOAL_NATIVE="yes").stdout)

    def test_a_module_that_cannot_be_loaded_is_warned_of(self):
        with self.bare_library() as bare:
            program = (
                "import pathlib, shoal.torch; from shoal.torch import _native;"
                f"path = pathlib.Path({str(bare.parent)!r}, _native.file_name()); path.write_bytes(b'no module');"
                "print(_native.load()); print(_native.load())"
            )
            command = [sys.executable, "-W", "always", "-c", program]
            text = suite.run(command, SHOAL_NATIVE="", SHOAL_LIBRARY=str(bare)).stdout
            self.assertEqual(text.count("RuntimeWarning: the backend in Python serves: "), 1, text)
            self.assertEqual(len(re.findall(r"^\(None, '.* cannot be loaded: ", text, re.MULTILINE)), 2, text)

    def test_the_torchs_that_one_module_is_for(self):
        """pip's builds of a release for the CPU and for each CUDA have the same headers; other builds may not."""
        rows = {
            "2.13.0": "2.13.0",
            "2.13.0+cpu": "2.13.0+pip",
            "2.13.0+cu126": "2.13.0+pip",
            "2.13.0+cu130": "2.13.0+pip",
            "2.13.1+cpu": "2.13.1+pip",
            "2.13.0+rocm6.4": "2.13.0+rocm6.4",
            "2.6.0+debian": "2.6.0+debian",
            "2.14.0a0+git12345": "2.14.0a0+git12345",
        }
        program = f"from shoal.torch import _native; print([_native.headers_of(one) for one in {list(rows)}])"
        self.assertEqual(suite.run([sys.executable, "-c", program]).stdout.strip(), str(list(rows.values())))

    @contextlib.contextmanager
    def bare_library(self):
        """libshoal in a folder without a native backend."""
        with tempfile.TemporaryDirectory(prefix="shoal-native-") as folder:
            bare = pathlib.Path(folder).resolve() / "libshoal.so"
            shutil.copy(suite.BUILD / "lib" / "libshoal.so", bare)
            yield bare


class Building(unittest.TestCase):
    def build(self, folder):
        builder = suite.TREE / "worker" / "python" / "native" / "build.py"
        done = suite.run([sys.executable, "-B", builder, "--build", folder], CXX="no-such-compiler")
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_without_a_compiler_the_reason_is_said(self):
        with tempfile.TemporaryDirectory(prefix="shoal-native-") as folder:
            text = self.build(folder)
        self.assertEqual(
            text, "native backend: not built: no compiler no-such-compiler; the one in Python serves\n"
        )

    def test_setuptools_is_not_needed(self):
        program = "import sys; sys.modules['setuptools'] = None; import build, torch; print(build.include_flags(torch))"
        folder = suite.TREE / "worker" / "python" / "native"
        done = suite.run([sys.executable, "-B", "-c", program], PYTHONPATH=str(folder))
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_what_is_of_older_sources_and_cannot_be_built_again_is_removed(self):
        """An older module would be used, and speaks to another library. A module that is as new as its sources
        stays."""
        with tempfile.TemporaryDirectory(prefix="shoal-native-") as folder:
            lib = pathlib.Path(folder).resolve() / "lib"
            lib.mkdir()
            old, new, other = [lib / name for name in ("shoal_native-a.so", "shoal_native-b.so", "libshoal.so")]
            for path in (old, new, other):
                path.touch()
            for path in (old, other):
                os.utime(path, (0, 0))
            text = self.build(folder)
            self.assertEqual(sorted(lib.iterdir()), [other, new], text)
            self.assertIn(f"native backend: removed {old}, which was of older sources\n", text)


if __name__ == "__main__":
    sys.exit(suite.main())
