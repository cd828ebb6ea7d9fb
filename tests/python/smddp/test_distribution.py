#!/usr/bin/python3
"""The distribution shoal-smddp: by pip and by make, and where it refuses."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

PACKAGE = suite.TREE / "worker" / "python"
SOURCE = PACKAGE / "smddp"
SHOW = "import smdistributed.dataparallel as d, sys; print(d.__version__, 'torch' in sys.modules)"

# The finder that setuptools makes for a package that is installed to be edited.
FINDER = """
import sys, importlib.machinery
class Edited:
    def find_spec(name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, path or [{folder!r}])
sys.meta_path.append(Edited)
"""


class Distribution(unittest.TestCase):
    """In an interpreter with a folder of packages of its own, which reads .pth files at its start."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shoal-smddp-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        suite.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", self.folder / "own"])
        (self.packages,) = (self.folder / "own").glob("lib/python*/site-packages")
        if sys.prefix != sys.base_prefix:  # the system's packages are not those of the environment that this is in
            (self.packages / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        # A build writes beside its sources.
        self.tree = self.folder / "tree" / "worker" / "python"
        ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
        shutil.copytree(PACKAGE, self.tree, ignore=ignored)

    def python(self, *arguments, **more):
        """The interpreter; shoal is beside its packages if PYTHONPATH says so."""
        more.setdefault("PYTHONPATH", str(PACKAGE))
        finished = suite.run([self.folder / "own" / "bin" / "python", *arguments], **more)
        return finished.returncode, finished.stdout

    def add_another(self):
        """Another maker's package; returns its place."""
        place = self.packages / "smdistributed" / "dataparallel" / "__init__.py"
        place.parent.mkdir(parents=True)
        place.write_text("__version__ = 'theirs'")
        return place

    def build(self):
        program = "import sys; sys.path.insert(0, sys.argv[1]); import smddp_builder as b;"
        program += "print(b.build_wheel(sys.argv[2]))"
        return self.python("-c", program, self.tree / "smddp", self.folder)

    def test_the_wheel(self):
        """One file; with it a new interpreter finds the names, and another one loses nothing by it."""
        code, name = self.build()
        self.assertEqual(code, 0, name)
        with zipfile.ZipFile(self.folder / name.strip()) as wheel:
            files = [path for path in wheel.namelist() if ".dist-info/" not in path]
            self.assertEqual(files, ["shoal-smddp.pth"])
            (metadata,) = [path for path in wheel.namelist() if path.endswith("/METADATA")]
            self.assertIn("Name: shoal-smddp\n", wheel.read(metadata).decode())
            wheel.extractall(self.packages)
        self.assertEqual(self.python("-c", SHOW), (0, "1.8.0 False\n"))
        self.assertEqual(self.python("-c", "print(1)", PYTHONPATH=str(self.folder)), (0, "1\n"))
        # An older shoal, or another package of that name.
        other = self.folder / "other"
        (other / "shoal").mkdir(parents=True)
        (other / "shoal" / "__init__.py").write_text("")
        self.assertEqual(self.python("-c", "import shoal; print(2)", PYTHONPATH=str(other)), (0, "2\n"))

    def test_where_shoal_comes_by_a_later_line(self):
        """shoal comes by a later line where it is installed to be edited: shoal.pth is read after shoal-smddp.pth.
        Until a name is looked for, nothing of it is imported; and what another finder has is found before, however late
        it comes. An environment of its own reads its files twice; a folder that a script adds is read once."""
        shutil.copy(SOURCE / "shoal-smddp.pth", self.packages)
        once = f"import site; site.addsitedir({str(self.folder / 'site')!r}); "
        (self.folder / "site").symlink_to(self.packages)
        loaded = "import sys; print([n for n in ('shoal', 'torch') if n in sys.modules])"
        twice = "import importlib.util as u; print([u.find_spec('torch.sagemaker').origin for _ in range(2)])"

        def says(program, expected):
            self.assertEqual(self.python("-c", program, PYTHONPATH=""), (0, expected + "\n"))
            finished = suite.run([sys.executable, "-c", once + program], PYTHONPATH="")
            self.assertEqual((finished.returncode, finished.stdout), (0, expected + "\n"))

        says(loaded, "[]")
        code, said = self.python("-c", SHOW, PYTHONPATH="")
        self.assertIn("No module named 'smdistributed'", said)
        (self.packages / "shoal.pth").write_text(f"{PACKAGE}\n")
        says(loaded, "[]")
        says(SHOW, "1.8.0 False")
        says(twice, "['shoal', 'shoal']")
        script = self.folder / "script.py"
        script.write_text(SHOW)
        self.assertEqual(self.python("-m", "shoal.smddp", script, PYTHONPATH=""), (0, "1.8.0 False\n"))
        theirs = self.folder / "theirs"
        (theirs / "smdistributed" / "dataparallel").mkdir(parents=True)
        (theirs / "smdistributed" / "dataparallel" / "__init__.py").write_text("__version__ = 'theirs'")
        (self.packages / "zz.pth").write_text("import zz_finder\n")
        (self.packages / "zz_finder.py").write_text(FINDER.format(folder=str(theirs)))
        says(SHOW, "theirs False")

    def test_another_package_that_comes_later(self):
        shutil.copy(SOURCE / "shoal-smddp.pth", self.packages)
        self.add_another()
        self.assertEqual(self.python("-c", SHOW), (0, "theirs False\n"))

    def test_it_refuses(self):
        """With what is in the interpreter's own folder, and with what is on its path by a variable."""
        place = self.add_another()
        code, said = self.build()
        self.assertEqual(code, 1)
        expected = f"shoal-smddp is not installed: smdistributed.dataparallel is there already, at {place}"
        self.assertIn(expected, said)
        self.assertEqual(list(self.folder.glob("*.whl")), [])
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        (self.packages / "smdistributed").rename(elsewhere / "smdistributed")
        code, said = self.python(SOURCE / "smddp_builder.py", PYTHONPATH=str(elsewhere))
        self.assertEqual(code, 1)
        self.assertIn(f"is there already, at {elsewhere / 'smdistributed'}", said)
        self.assertEqual(self.python(SOURCE / "smddp_builder.py"), (0, ""))

    def test_pip(self):
        if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
            self.skipTest(f"{sys.executable} has no pip")
        install = ["-m", "pip", "install", "--no-index", "--disable-pip-version-check"]
        code, said = self.python(*install, self.tree / "smddp")
        self.assertEqual(code, 0, said)
        self.assertEqual(self.python("-c", SHOW), (0, "1.8.0 False\n"))
        (self.packages / "shoal-smddp.pth").unlink()
        place = self.add_another()
        code, said = self.python(*install, "--force-reinstall", self.tree / "smddp")
        self.assertNotEqual(code, 0)
        self.assertIn(f"smdistributed.dataparallel is there already, at {place}", said)
        self.assertFalse((self.packages / "shoal-smddp.pth").exists())

    def make(self, *words, **more):
        command = ["make", "-C", suite.TREE, f"BUILD={suite.BUILD}", "PREFIX=/opt/shoal"]
        command += [f"PYTHON={sys.executable}", f"DESTDIR={self.folder}", *words]
        finished = suite.run(command, **more)
        return finished.returncode, finished.stdout

    def test_make(self):
        code, said = self.make("install-smddp")
        self.assertEqual(code, 0, said)
        (installed,) = self.folder.glob("opt/shoal/lib/python*/*-packages/shoal-smddp.pth")
        self.assertEqual(installed.read_bytes(), (SOURCE / "shoal-smddp.pth").read_bytes())
        self.assertEqual(self.make("uninstall")[0], 0)
        self.assertFalse(installed.exists())
        place = self.add_another()
        code, said = self.make("install-smddp", PYTHONPATH=str(self.packages))
        self.assertNotEqual(code, 0)
        self.assertIn(f"smdistributed.dataparallel is there already, at {place}", said)
        self.assertFalse(os.path.lexists(installed))

    def test_versions_agree(self):
        sys.path.insert(0, str(PACKAGE))
        from shoal import __version__

        self.assertIn(f'version = "{__version__}"', (SOURCE / "pyproject.toml").read_text())


if __name__ == "__main__":
    sys.exit(suite.main())
