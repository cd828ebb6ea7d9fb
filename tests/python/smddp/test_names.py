#!/usr/bin/python3
"""The names that scripts for SMDDP import, and the runner."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

INSTALL = "from shoal.smddp import install; install(); "


def folder_of(test, files):
    """A folder with these files, {name: text}, until the test ends."""
    folder = tempfile.TemporaryDirectory(prefix="shoal-smddp-")
    test.addCleanup(folder.cleanup)
    for name, text in files.items():
        path = pathlib.Path(folder.name) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return pathlib.Path(folder.name)


def python(*arguments, beside=None, **more):
    """An interpreter with this package, and with a folder on its path."""
    if beside:
        more["PYTHONPATH"] = f"{suite.TREE / 'worker' / 'python'}:{beside}"
    return suite.run([sys.executable, *arguments], **more)


class Names(unittest.TestCase):
    def says(self, program, expected, **how):
        finished = python("-c", program, **how)
        self.assertEqual((finished.returncode, finished.stdout.strip()), (0, expected), finished.stdout)

    def test_only_when_installed(self):
        program = "import importlib.util as u; print(u.find_spec('smdistributed'))"
        self.says(program, "None")
        self.says(INSTALL + program.replace("))", ") is None)"), "False")

    def test_torch_waits_until_it_is_needed(self):
        program = INSTALL * 2 + "import sys, smdistributed.dataparallel as d; print(d.__version__,"
        program += "'torch' in sys.modules, len([f for f in sys.meta_path if 'shoal' in type(f).__module__]))"
        self.says(program, "1.8.0 False 1")

    def test_names_that_there_are_not(self):
        for name in ("smdistributed.modelparallel", "smdistributed.dataparallel.tensorflow"):
            finished = python("-c", f"{INSTALL} import {name}")
            self.assertIn(f"ModuleNotFoundError: No module named '{name}'", finished.stdout)
        finished = python("-c", INSTALL + "from smdistributed.dataparallel import nothing")
        self.assertIn("cannot import name 'nothing' from 'smdistributed.dataparallel'", finished.stdout)

    def test_every_name(self):
        """It is what its parent has by that name; where torch is too old for it, the error says so."""
        program = INSTALL + "import importlib, sys; from shoal.smddp import _names\n"
        program += "for name in _names.MODULES:\n    parent, _, child = name.rpartition('.')\n"
        program += "    try:\n        module = importlib.import_module(name)\n"
        program += "    except ImportError as why:\n"
        program += "        assert f'this is torch {sys.modules[\"torch\"].__version__}' in str(why), (name, why)\n"
        program += "    else:\n        assert module.__name__ == name\n"
        program += "        assert not parent or getattr(sys.modules[parent], child) is module, name\n"
        self.says(program, "")

    def test_a_module_is_not_there_twice(self):
        """Python must not find our files through the public names' paths."""
        program = INSTALL + "import sys; from shoal.smddp import _names\n"
        program += "import smdistributed.dataparallel.torch.torch_smddp\n"
        program += "print([n for n in _names.MODULES if getattr(sys.modules.get(n), '__path__', None)], flush=True)\n"
        program += "import smdistributed.dataparallel._version"
        finished = python("-c", program)
        self.assertTrue(finished.stdout.startswith("[]\n"), finished.stdout)
        self.assertIn("No module named 'smdistributed.dataparallel._version'", finished.stdout)

    def test_a_public_module_comes_before_ours_of_its_name(self):
        """Also once ours has been imported, and is an attribute of the module behind the parent."""
        program = INSTALL + "import sys, types; from shoal.smddp import _names\n"
        program += "sys.modules.update(ours=types.ModuleType('ours'), one=types.ModuleType('one'))\n"
        program += "import ours; ours.child, ours.value, ours.nothing = types.ModuleType('wrong'), 7, None\n"
        program += "_names.MODULES.update({'smdistributed': 'ours', 'smdistributed.child': 'one'})\n"
        program += "from smdistributed import child, value, nothing; print(child.__name__, value, nothing)"
        self.says(program, "smdistributed.child 7 None")

    def test_another_package_is_not_shadowed(self):
        """Not even by what it has not."""
        files = {"smdistributed/dataparallel/__init__.py": "whose = 'theirs'"}
        for more in ({}, {"smdistributed/__init__.py": ""}):
            folder = folder_of(self, {**files, **more})
            program = INSTALL + "import smdistributed.dataparallel as d; print(d.whose)"
            self.says(program, "theirs", beside=folder)
            program = INSTALL + "import smdistributed.dataparallel.torch"
            finished = python("-c", program, beside=folder)
            self.assertIn("No module named 'smdistributed.dataparallel.torch'", finished.stdout)

    def test_another_package_found_by_a_later_finder(self):
        """A package that is installed to be edited is found by such a finder."""
        folder = folder_of(self, {"there/smdistributed/dataparallel/__init__.py": "whose = 'theirs'"})
        program = INSTALL + "import sys, importlib.machinery as m\n"
        program += "class Later:\n    def find_spec(name, path=None, target=None):\n"
        program += f"        return m.PathFinder.find_spec(name, path or [{str(folder / 'there')!r}])\n"
        program += "sys.meta_path.append(Later)\nimport smdistributed.dataparallel as d; print(d.whose)"
        self.says(program, "theirs")


class Runner(unittest.TestCase):
    def run_script(self, *arguments, **how):
        finished = python("-m", "shoal.smddp", *arguments, **how)
        return finished.returncode, finished.stdout

    def test_a_script(self):
        """The runner runs a script like python3."""
        text = "import sys, beside\nfrom smdistributed.dataparallel import __version__\n"
        text += "assert sys.modules['__main__'].__dict__ is globals()\n"
        text += "print(__name__, sys.argv, __file__, beside.name, __version__)\nsys.exit(3)\n"
        folder = folder_of(self, {"a/script.py": text, "a/beside.py": "name = 'found'"})
        script = str(folder / "a" / "script.py")
        code, said = self.run_script(script, "-m", "--x=1")
        self.assertEqual((code, said), (3, f"__main__ {[script, '-m', '--x=1']} {script} found 1.8.0\n"))

    def test_a_path_that_is_safe(self):
        """The runner puts nothing on the path, like python3 -P (3.11)."""
        if sys.version_info < (3, 11):
            self.skipTest("python3 has no -P")
        folder = folder_of(self, {"script.py": "import beside", "beside.py": ""})
        code, said = self.run_script(str(folder / "script.py"), PYTHONSAFEPATH="1")
        self.assertEqual(code, 1)
        self.assertIn("No module named 'beside'", said)

    def test_a_module(self):
        text = "import sys\nimport smdistributed.dataparallel\nprint(__name__, sys.argv)\n"
        folder = folder_of(self, {"some/__init__.py": "", "some/module.py": text})
        code, said = self.run_script("-m", "some.module", "-x", beside=folder)
        argv = [str(folder / "some" / "module.py"), "-x"]
        self.assertEqual((code, said), (0, f"__main__ {argv}\n"))

    def test_a_script_that_imports_only_torch(self):
        """The backend is there, and torch not before the script imports it."""
        text = "import sys, importlib.util\nbefore = 'torch' in sys.modules\n"
        text += "assert importlib.util.find_spec('torch')\n"  # as libraries look for what is there
        text += "import torch.distributed as dist\n"
        text += "print(before, dist.Backend('smddp'), hasattr(dist.Backend, 'SMDDP'), sys.meta_path[0].__module__)\n"
        folder = folder_of(self, {"script.py": text})
        first = "print(__import__('sys').meta_path[0].__module__)"
        code, said = self.run_script(str(folder / "script.py"))
        self.assertEqual(code, 0, said)
        self.assertEqual(said.strip(), f"False smddp True {python('-c', first).stdout.strip()}")

    def test_where_torch_is_not(self):
        folder = folder_of(self, {"script.py": "import sys\nsys.path[:] = []\nimport torch\n"})
        code, said = self.run_script(str(folder / "script.py"))
        self.assertEqual(code, 1)
        self.assertIn("No module named 'torch'", said)

    def test_what_it_cannot_run(self):
        for arguments, expected, words in (
            ((), 2, "usage: python3 -m shoal.smddp"),
            (("-m",), 2, "usage: python3 -m shoal.smddp"),
            (("--help",), 0, "usage: python3 -m shoal.smddp"),
            (("-x", "script.py"), 2, "-x is not an option"),
            (("/nowhere/script.py",), 2, "/nowhere/script.py: no such script"),
            (("-m", "no_such_module"), 1, "No module named no_such_module"),
        ):
            code, said = self.run_script(*arguments)
            self.assertEqual(code, expected, said)
            self.assertIn(words, said)

    def test_beside_another_package(self):
        """It says which, and where, and does not run the script."""
        for name, files in (
            ("smdistributed.dataparallel", {"smdistributed/dataparallel/__init__.py": ""}),
            ("torch.sagemaker", {"torch/__init__.py": "", "torch/sagemaker/__init__.py": ""}),
        ):
            folder = folder_of(self, {**files, "script.py": "print('it runs')"})
            code, said = self.run_script(str(folder / "script.py"), beside=folder)
            place = folder / name.replace(".", "/") / "__init__.py"
            self.assertEqual(code, 1)
            self.assertTrue(said.startswith(f"shoal.smddp: {name} is installed at {place}: "), said)


if __name__ == "__main__":
    sys.exit(suite.main())
