#!/usr/bin/python3
"""The package by itself: installed by make and by pip, the library found, addresses, launchers."""

import contextlib
import datetime
import importlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

import suite

sys.path.insert(0, str(suite.TREE / "worker" / "python"))


def temporary_folder(test):
    folder = tempfile.TemporaryDirectory(prefix="shoal-package-")
    test.addCleanup(folder.cleanup)
    return pathlib.Path(folder.name)


def modules():
    root = suite.TREE / "worker" / "python"
    return sorted(path.relative_to(root).as_posix() for path in root.glob("shoal/**/*.py"))


def without_network():
    """Return the words before a command that must not need a network; none where that cannot be had."""
    words = ["unshare", "--net"]
    possible = shutil.which("unshare") is not None
    possible = possible and not subprocess.run([*words, "true"], capture_output=True).returncode
    return words if possible else []


class Streams(unittest.TestCase):
    def test_what_waits_for_collectives_is_not_of_the_priority_of_computation(self):
        program = (
            "import torch; from shoal.torch import _streams;"
            "torch.cuda.Stream = lambda device, priority=0: (device, priority);"
            "print(_streams.runtime.make(3))"
        )
        finished = suite.run([sys.executable, "-c", program])
        self.assertEqual(finished.stdout.strip(), "(3, -1)", finished.stdout)


class Environments(unittest.TestCase):
    """The Python by which the tests are run."""

    def setUp(self):
        self.empty = temporary_folder(self)
        finished = suite.run([sys.executable, "-m", "venv", "--without-pip", self.empty])
        self.assertEqual(finished.returncode, 0, finished.stdout)

    def test_the_one_that_is_active(self):
        command = ["make", "-n", "-C", suite.TREE, f"BUILD={suite.BUILD}", "check-python"]
        for more, python in (
            ({"VIRTUAL_ENV": str(self.empty)}, f"{self.empty}/bin/python3"),
            ({"VIRTUAL_ENV": ""}, "/usr/bin/python3"),
            ({"VIRTUAL_ENV": str(self.empty), "PYTHON": "/named/python3"}, "/named/python3"),
        ):
            # The variables of what runs this test are no part of the case.
            finished = suite.run(["env", "-u", "PYTHON", "-u", "MAKEFLAGS", *map("=".join, more.items()), *command])
            self.assertIn(f"PYTHON={python} scripts/run-tests.sh ", finished.stdout)

    def test_one_without_torch_says_how_to_get_it(self):
        test = suite.TREE / "tests" / "python" / "test_states.py"
        finished = suite.run([self.empty / "bin" / "python3", test], TEST_TORCH_SEEN="", TORCH_ENV="/kept/torch")
        wanted = "scripts/torch-env.sh, then make check PYTHON=/kept/torch/bin/python3"
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertRegex(finished.stdout, rf"^SKIP test_states: \S+ has no torch 2.6 or later .*: {wanted}$")


class Installation(unittest.TestCase):
    def python(self, program, **more):
        return suite.run([sys.executable, "-c", program], **more)

    def test_make_install(self):
        folder = temporary_folder(self)
        command = ["make", "-C", suite.TREE, f"BUILD={suite.BUILD}", f"DESTDIR={folder}"]
        finished = suite.run([*without_network(), *command, "PREFIX=/opt/shoal", "install"])
        self.assertEqual(finished.returncode, 0, finished.stdout)
        (package,) = folder.glob("opt/shoal/lib/python*/*-packages")
        self.assertEqual(
            sorted(path.relative_to(package).as_posix() for path in package.glob("**/*.py")),
            modules(),
        )
        self.check_library(folder)
        self.check_pages(folder / "opt/shoal/share/man")
        self.check_completions(folder / "opt/shoal/share", ["shoalctl", "shoald", "shoalperf", "shoalrun"])
        # From there it finds the library beside it, without a variable.
        program = "from shoal import library; print(library.load().path)"
        finished = self.python(program, PYTHONPATH=str(package), SHOAL_LIBRARY="")
        library = folder / "opt/shoal/lib/libshoal.so.0"
        self.assertEqual(finished.stdout.strip(), str(library))
        finished = suite.run([*command, "PREFIX=/opt/shoal", "uninstall"])
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertEqual(list(folder.glob("**/*.py")), [])
        self.assertEqual([path for path in folder.glob("**/man[1-8]/*")], [])
        self.check_completions(folder / "opt/shoal/share", [])

    def check_pages(self, folder):
        """Each in its section, and every function a name for the library's page."""
        pages = {path.relative_to(folder).as_posix() for path in folder.glob("man*/*")}
        here = {path.name for path in (suite.TREE / "doc/man").glob("*.[1-8]")}
        self.assertGreaterEqual(len(here), 6)
        functions = {page for page in pages if page.startswith("man3/shoal_")}
        self.assertEqual(pages - functions, {f"man{name[-1]}/{name}" for name in here})
        header = (suite.TREE / "worker/shoal.h").read_text()
        declared = re.findall(r"^SHOAL_API[^(]*?(shoal_\w+)\(", header, re.M)
        self.assertEqual(functions, {f"man3/{name}.3" for name in declared})
        page = (folder / "man3/shoal_open.3").read_text()
        self.assertIn("\n.Nm shoal\n", page)

    def check_completions(self, folder, programs):
        names = sorted(path.name for path in folder.glob("bash-completion/completions/*"))
        self.assertEqual(names, programs)
        names = sorted(path.name for path in folder.glob("zsh/site-functions/*"))
        self.assertEqual(names, [f"_{program}" for program in programs])

    def check_library(self, folder):
        """Check what a program meets that is built and started outside this tree."""
        lines = (folder / "opt/shoal/lib/pkgconfig/shoal.pc").read_text().splitlines()
        # Not that of an earlier `make`.
        self.assertIn("prefix=/opt/shoal", lines)
        self.assertIn("libdir=/opt/shoal/lib", lines)
        library = folder / "opt/shoal/lib/libshoal.so"
        dynamic = suite.run(["readelf", "--dynamic", "--wide", library]).stdout
        self.assertIn("soname: [libshoal.so.0]", dynamic)
        needed = re.findall(r"\(NEEDED\).*\[(.*?)\.so", dynamic)
        self.assertLessEqual(set(needed), {"libc", "libm", "libjansson", "ld-linux-x86-64"})
        symbols = suite.run(["nm", "--dynamic", "--defined-only", library]).stdout.split("\n")
        names = {line.split()[2].split("@")[0] for line in symbols if line} - {"SHOAL_0"}
        header = (folder / "opt/shoal/include/shoal.h").read_text()
        self.assertEqual(names, set(re.findall(r"^SHOAL_API[^(]*?(shoal_\w+)\(", header, re.M)))

    def test_the_loader_is_told(self):
        """An installation that is to be used, not packed, is made known to the loader."""
        folder = temporary_folder(self)
        told = folder / "told"
        (folder / "ldconfig").write_text(f"#!/bin/sh\necho told >> {told}\n")
        (folder / "ldconfig").chmod(0o755)
        command = ["make", "-C", suite.TREE, f"BUILD={suite.BUILD}", f"PREFIX={folder}/there"]
        path = f"{folder}:{os.environ['PATH']}"
        finished = suite.run([*command, f"DESTDIR={folder}", "install"], PATH=path)
        self.assertEqual((finished.returncode, told.exists()), (0, False), finished.stdout)
        finished = suite.run([*command, "DESTDIR=", "install"], PATH=path)
        self.assertEqual((finished.returncode, told.exists()), (0, True), finished.stdout)
        told.unlink()
        (folder / "ldconfig").write_text("#!/bin/sh\nexit 1\n")
        finished = suite.run([*command, "DESTDIR=", "install"], PATH=path)
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertIn("run ldconfig as root", finished.stdout)

    def test_the_wheel(self):
        """pip calls this builder; a wheel is all that pip needs."""
        builder = importlib.import_module("wheel_builder")
        folder = temporary_folder(self)
        first = (folder / builder.build_wheel(str(folder))).read_bytes()
        with zipfile.ZipFile(folder / builder.build_wheel(str(folder))) as wheel:
            names = wheel.namelist()
            self.assertEqual([name for name in names if name.startswith("shoal/")], modules())
            record = wheel.read(f"{builder.INFO}/RECORD").decode().splitlines()
            self.assertEqual([line.split(",")[0] for line in record], names)
            wheel.extractall(folder)
        self.assertEqual(first, (folder / f"shoal-{builder.VERSION}-py3-none-any.whl").read_bytes())
        finished = self.python("import shoal; print(shoal.__file__)", PYTHONPATH=str(folder))
        self.assertEqual(finished.stdout.strip(), str(folder / "shoal/__init__.py"))

    PROGRAMS = ("shoald", "shoalctl", "shoalrun", "shoalperf")

    def put_programs(self, bundle):
        for name in ("bin", "lib"):
            (bundle / name).mkdir(parents=True)
        for name in self.PROGRAMS:
            shutil.copy(suite.BUILD / "bin" / name, bundle / "bin")
        shutil.copy(suite.BUILD / "lib" / "libshoal.so.0", bundle / "lib")

    def put_what_they_need(self, bundle):
        for name in self.PROGRAMS:
            said = suite.run(["ldd", suite.BUILD / "bin" / name]).stdout
            for path in re.findall(r"=> (/\S+)", said):
                if not re.search(r"/(libc|libm|libdl|librt|libpthread|libresolv)\.so\.", path):
                    shutil.copy(path, bundle / "lib")

    def test_the_wheel_with_a_bundle(self):
        """One that has programs: their mode, the commands, the name, and what checks it."""
        folder = temporary_folder(self)
        bundle = folder / "bundle"
        self.put_programs(bundle)
        command = [sys.executable, "-B", suite.TREE / "scripts/packages/wheel.py"]
        # The libraries that the programs need are not in it yet.
        finished = suite.run([*command, bundle, folder / "made"])
        self.assertEqual(finished.returncode, 1, finished.stdout)
        self.assertRegex(finished.stdout, r"needs \S+, which is not in the bundle")
        self.put_what_they_need(bundle)
        finished = suite.run([*command, bundle, folder / "made"])
        self.assertEqual(finished.returncode, 0, finished.stdout)
        (wheel,) = (folder / "made").glob("*.whl")
        self.assertRegex(wheel.name, r"^shoal-[0-9.]+-py3-none-manylinux_2_\d+_x86_64\.whl$")
        with zipfile.ZipFile(wheel) as opened:
            modes = {entry.filename: entry.external_attr >> 16 for entry in opened.infolist()}
            self.assertEqual(modes["shoal/_bundle/bin/shoald"], 0o100755)
            self.assertEqual(modes["shoal/library.py"], 0o100644)
            info = wheel.name.partition("-py3")[0] + ".dist-info"
            self.assertIn("shoald = shoal.programs:shoald", opened.read(f"{info}/entry_points.txt").decode())
            self.assertIn("Root-Is-Purelib: false", opened.read(f"{info}/WHEEL").decode())
        finished = suite.run([*command, "--check", wheel])
        self.assertEqual(finished.returncode, 0, finished.stdout)
        older = wheel.with_name(re.sub(r"_2_\d+_", "_2_5_", wheel.name))
        wheel.rename(older)
        finished = suite.run([*command, "--check", older])
        self.assertEqual((finished.returncode, "its name says 2.5" in finished.stdout), (1, True), finished.stdout)

    def test_a_wheel_with_native_backends(self):
        """The package in it takes the one for its torch, says so in a line, and else says which ones there are."""
        reason = suite.reason_without_native()
        if reason:
            self.skipTest(reason)
        folder = temporary_folder(self)
        bundle, own = folder / "bundle", folder / "own"
        self.put_programs(bundle)
        self.put_what_they_need(bundle)
        own.mkdir()
        for path in (suite.BUILD / "lib").glob("shoal_native-*.so"):
            shutil.copy(path, own)
        another = own / "shoal_native-torch-0.1-abi1.so"
        shutil.copy(path, another)
        command = [sys.executable, "-B", suite.TREE / "scripts/packages/wheel.py", "--native", own, bundle, folder / "made"]
        finished = suite.run(command)
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertIn(another.name, finished.stdout)
        (wheel,) = (folder / "made").glob("*.whl")
        zipfile.ZipFile(wheel).extractall(folder / "installed")
        inside = folder / "installed/shoal/_bundle/lib"

        def backend():
            environment = {"PYTHONPATH": str(folder / "installed"), "SHOAL_LIBRARY": ""}
            said = suite.run([sys.executable, "-B", "-m", "shoal", "--no-test"], **environment).stdout
            (line,) = [line for line in said.splitlines() if line.startswith("backend")]
            return line

        line = backend()
        self.assertRegex(line, rf"^backend +native, {re.escape(str(inside))}/shoal_native-torch-")
        (inside / pathlib.Path(line.split("native, ")[1]).name).unlink()
        line = backend()
        self.assertRegex(line, "^backend +in Python: ")
        self.assertIn(another.name, line)

    def test_where_things_are(self):
        finished = suite.run([sys.executable, "-m", "shoal", "--no-test"])
        self.assertEqual(finished.returncode, 0, finished.stdout)
        for name in ("shoald", "shoalctl", "shoalrun", "shoalperf"):
            self.assertRegex(finished.stdout, rf"(?m)^{name} +{suite.BUILD}/bin/{name}$")
        self.assertIn(str(suite.BUILD / "lib" / "libshoal.so"), finished.stdout)
        finished = suite.run([sys.executable, "-m", "shoal", "--nonsense"])
        self.assertEqual((finished.returncode, "unknown: --nonsense" in finished.stdout), (1, True))

    def test_a_torch_that_is_too_old(self):
        """It is said before anything else that such a torch lacks."""
        program = (
            "import torch\nfor version in '1.13.0a0+git', '2.0', '2.5.1+cpu', '2.10.0+cpu':\n"
            "    torch.__version__ = version\n    try:\n        import shoal.torch\n"
            "    except ImportError as problem:\n        print(problem)\nprint(shoal.torch.__name__)"
        )
        said = suite.run([sys.executable, "-c", program], TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout
        expected = [f"shoal.torch needs torch 2.6 or later, and this is {old}" for old in ("1.13.0a0+git", "2.0", "2.5.1+cpu")]
        self.assertEqual(said.splitlines(), [*expected, "shoal.torch"])

    def test_the_self_test(self):
        finished = suite.run([sys.executable, "-m", "shoal"])
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertEqual(finished.stdout.count("PASS  "), 2, finished.stdout)

    def test_commands(self):
        command = [sys.executable, "-c", "import sys; from shoal import programs; programs.shoalctl()"]
        finished = suite.run([*command, "--version"])
        self.assertRegex(finished.stdout, r"^shoalctl [0-9.]+$")
        finished = suite.run([*command, "--version"], SHOAL_LIBRARY="/nowhere/libshoal.so", PATH="/nowhere")
        self.assertEqual(finished.returncode, 1)
        self.assertIn("shoalctl: the program is not there", finished.stdout)

    def test_pip(self):
        if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
            self.skipTest(f"{sys.executable} has no pip")
        folder = temporary_folder(self)
        command = [sys.executable, "-m", "pip", "install", "--no-index", "--target", folder]
        finished = suite.run([*without_network(), *command, suite.TREE / "worker" / "python"])
        self.assertEqual(finished.returncode, 0, finished.stdout)
        self.assertTrue((folder / "shoal" / "torch" / "__init__.py").exists())

    def test_from_the_tree(self):
        """With PYTHONPATH alone: the library of the tree that the package is in."""
        folder = temporary_folder(self)
        shutil.copytree(suite.TREE / "worker/python/shoal", folder / "worker/python/shoal")
        shutil.copytree(suite.BUILD / "lib", folder / "build/lib", symlinks=True)
        program = "from shoal import library; print(library.load().path)"
        finished = self.python(program, PYTHONPATH=str(folder / "worker/python"), SHOAL_LIBRARY="")
        self.assertEqual(finished.stdout.strip(), str(folder / "build/lib/libshoal.so.0"))

    def test_no_library(self):
        finished = self.python("import shoal.library as l; l.load()", SHOAL_LIBRARY="/nowhere/x.so")
        self.assertIn("ImportError: libshoal is not there", finished.stdout)
        self.assertIn("/nowhere/x.so", finished.stdout)

    def test_versions_agree(self):
        from shoal import __version__, library

        os.environ["SHOAL_LIBRARY"] = str(suite.BUILD / "lib" / "libshoal.so")
        self.assertEqual(library.load().c.shoal_version().decode(), __version__)
        project = (suite.TREE / "worker/python/pyproject.toml").read_text()
        self.assertIn(f'version = "{__version__}"', project)


class TorchsOwn(unittest.TestCase):
    """The counts of make check-torch."""

    def test_what_is_worse_than_on_gloo(self):
        import torch_own

        gloo = {"test_a": ("passed", ""), "test_b": ("failed", "ValueError: b"), "test_c": ("skipped", "")}
        for changed, bad in (
            ({}, 0),
            ({"test_c": ("passed", "")}, 0),
            ({"test_a": ("failed", "x")}, 1),
            ({"test_a": ("skipped", "x"), "test_b": ("skipped", "")}, 2),
            ({"test_d": ("failed", "gloo has it not")}, 1),
        ):
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(torch_own.compare({**gloo, **changed}, gloo), bad, changed)
        del gloo["test_b"], gloo["test_c"]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(torch_own.compare({}, gloo), 1)
        self.assertIn("test_a: missing; on gloo passed", said.getvalue())


class Errors(unittest.TestCase):
    def test_the_name_is_said_once(self):
        from shoal import library

        for name, text, said in (
            ("timed out", "", "timed out"),
            ("rank lost", "rank 1 is gone", "rank lost: rank 1 is gone"),
            ("ranks disagree", "the ranks disagree on collective 2", "the ranks disagree on collective 2"),
            ("timed out", "timed out in shoal_wait", "timed out in shoal_wait"),
            ("invalid argument", "rank 9: the invalid argument", "invalid argument: rank 9: the invalid argument"),
        ):
            self.assertEqual(library.said(name, text), said)

    def test_a_class_for_each_code(self):
        """The codes of shoal.h, as it has them."""
        from shoal import errors

        header = (suite.TREE / "worker" / "shoal.h").read_text()
        codes = [int(code) for _, code in re.findall(r"\b(SHOAL_E\w+) = (-\d+)", header)]
        self.assertGreater(len(codes), 10)
        for code in codes:
            error = errors.make_error(code, "text")
            self.assertEqual((error.code, str(error)), (code, "text"))
            if code != -12:  # "not done yet" is no error
                self.assertIsNot(type(error), errors.ShoalError, code)

    def test_the_numbers_of_types_and_operations(self):
        from shoal import library

        header = (suite.TREE / "worker" / "shoal.h").read_text()
        for kind in ("dtype", "op"):
            (members,) = re.findall(rf"enum shoal_{kind} {{(.*?)}};", header, re.DOTALL)
            numbers = re.findall(r"\bSHOAL_(\w+) = (\d+)", members)
            self.assertGreater(len(numbers), 10)
            for name, number in numbers:
                self.assertEqual(getattr(library, name), int(number), name)

    def test_every_declared_function_is_there(self):
        from shoal import library

        header = (suite.TREE / "worker" / "shoal.h").read_text()
        for name in library._DECLARATIONS:
            self.assertIn(f"{name}(", header)


class Versions(unittest.TestCase):
    def test_later_names_are_ours(self):
        """A later torch has its new names in the base class too, where they find no backend."""
        from shoal.torch import _member, _process_group, _versions

        class Base:
            def all_gather_single(self):
                return "torch's"

        class Group(Base):
            pass

        for ours in set(_versions.METHOD_NAMES.values()):
            self.assertTrue(hasattr(_member.Member, ours))
            setattr(Group, ours, lambda self, ours=ours: ours)
        _versions.add_method_names(Group)
        for name, ours in _versions.METHOD_NAMES.items():
            self.assertEqual(getattr(Group(), name)(), ours)
            self.assertIn(name, vars(_process_group.ProcessGroup))


class Environment(unittest.TestCase):
    def setUp(self):
        self.before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(self.before)))

    def resource_config_path(self):
        """Where SageMaker's description of the job is looked for in this test; nothing is there."""
        from shoal.torch import _hosts

        path = temporary_folder(self) / "resourceconfig.json"
        self.addCleanup(setattr, _hosts, "RESOURCE_CONFIG", _hosts.RESOURCE_CONFIG)
        _hosts.RESOURCE_CONFIG = path
        return path

    def test_lines_of_ranks_are_whole(self):
        """Ranks have one pipe together: a line and its end must be one write, whatever is set here."""
        os.environ["PYTHONUNBUFFERED"] = "1"
        program = "import sys; print(sys.stdout.write_through)"
        self.assertEqual(suite.run([sys.executable, "-c", program]).stdout.strip(), "False")

    def test_the_first_host_of_slurm(self):
        from shoal import _launchers

        for hosts, first in {
            "gpu[03-07,12],cpu1": "gpu03",
            "gpu7": "gpu7",
            "a,b": "a",
            "n[1,5]x,m": "n1x",
            "rack[1-2]node[03-04],n": "rack1node03",
            "": "",
        }.items():
            self.assertEqual(_launchers.first_host_of_slurm({"SLURM_STEP_NODELIST": hosts}), first)

    def test_srun(self):
        from shoal.torch import _launch

        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        os.environ.update(
            SLURM_PROCID="3",
            SLURM_NTASKS="8",
            SLURM_LOCALID="1",
            SLURM_JOB_NODELIST="n[2-5]",
            SLURM_JOB_ID="20001",
            SLURM_STEP_ID="2",
        )
        os.environ["MASTER_PORT"] = "1234"
        _launch.fill_in(os.environ)
        got = [os.environ[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")]
        self.assertEqual(got, ["3", "8", "1", "n2"])
        self.assertEqual(os.environ["MASTER_PORT"], "1234")  # what is set stays

    def test_sagemaker(self):
        from shoal.torch import _hosts, _launch

        path = self.resource_config_path()
        path.write_text(
            '{"current_host": "algo-2", "hosts": ["algo-2", "algo-1"],'
            ' "network_interface_name": "lo"}'
        )
        os.environ.pop("MASTER_ADDR", None)
        os.environ.pop("SHOAL_INTERFACE", None)
        _launch.fill_in(os.environ)
        self.assertEqual(os.environ["MASTER_ADDR"], "algo-1")
        self.assertEqual(_hosts.own_address(), "127.0.0.1")

    def test_a_description_that_cannot_be_read(self):
        from shoal.torch import _hosts

        path = self.resource_config_path()
        self.assertEqual(_hosts.resource_config(), {})  # none is no reason for words
        for text in ('{"hosts": ["al', "\xff\xfe"):
            path.write_text(text, encoding="latin-1")
            with self.assertWarnsRegex(UserWarning, "resourceconfig.json cannot be read"):
                self.assertEqual(_hosts.resource_config(), {})
        path.write_text("[]")
        self.assertEqual(_hosts.resource_config(), {})

    def test_an_interface_that_is_not_there(self):
        from shoal import InvalidError
        from shoal.torch import _hosts

        os.environ["SHOAL_INTERFACE"] = "nosuch0"
        with self.assertRaisesRegex(InvalidError, "nosuch0 has no IPv4 and no IPv6 address, or does not exist"):
            _hosts.own_address()

    def test_the_name_of_a_node(self):
        """A daemon's configuration takes the name, whatever the host's name and SHOAL_NODE are."""
        from unittest import mock

        from shoal.torch import _hosts

        for host, node, name in (
            ("gpu7.example", None, "gpu7.example"),
            ("gpu7", "left", "gpu7-left"),
            ("", "b", "b"),
            ("my host\n", "caf\u00e9", "my-host--caf-"),
            ("h" * 80, "b", "h" * 56),
            ("", None, "node"),
        ):
            os.environ.pop("SHOAL_NODE", None)
            os.environ.update({"SHOAL_NODE": node} if node else {})
            with mock.patch("socket.gethostname", return_value=host):
                self.assertEqual(_hosts.node_name(), name)

    def test_nodes_whose_names_are_alike(self):
        from shoal.torch import _hosts

        for names, distinct in (
            (["a", "b"], ["a", "b"]),
            (["a", "a", "b", "a"], ["a", "a-2", "b", "a-3"]),
            (["a", "a-2", "a"], ["a", "a-2", "a-3"]),
            (["a", "a", "a-2"], ["a", "a-2", "a-2-2"]),
        ):
            self.assertEqual(_hosts.distinct(names), distinct)

    def test_daemons_on_some_nodes_only(self):
        from shoal import InvalidError
        from shoal.torch import _rendezvous

        answers = [{"node": node, "name": f"host{node}", "given": True, "job": None} for node in ("x", "y", "x")]
        plan = _rendezvous._make_plan(answers)
        self.assertEqual((plan["nodes"], plan["node_of"], plan["given"]), (["hostx", "hosty"], [0, 1, 0], True))
        answers[1]["given"] = False
        with self.assertRaisesRegex(InvalidError, "rank 0 has a daemon .* and rank 1 has none"):
            _rendezvous._make_plan(answers)

    def test_what_a_rank_waits_for_is_said_once(self):
        """Rank 0 names the ranks that are missing, and another rank says that rank 0 is. The store's time is over at
        once for what is not there."""
        from shoal.torch import _rendezvous

        class Store(dict):
            set, get = dict.__setitem__, dict.__getitem__

            def check(self, keys):
                return all(key in self for key in keys)

            def wait(self, keys, limit):
                if not self.check(keys):
                    raise RuntimeError("no such key")

        cases = [(0, (0, 2), "ranks 1, 3 have not joined"), (0, (0, 1, 2), "rank 3 has not joined")]
        cases += [(2, (2,), "rank 0 has not joined"), (2, (0, 2), "")]
        for rank, come, words in cases:
            with self.subTest(rank=rank, come=come):
                store, said, os.environ["RANK"] = Store(), io.StringIO(), str(rank)
                for other in set(come) - {rank}:
                    store.set(f"node/{other}", json.dumps({"mark": "m"}))
                with contextlib.redirect_stderr(said), self.assertRaisesRegex(Exception, "has not joined within 1000 s"):
                    _rendezvous.meet(store, rank, 4, datetime.timedelta(seconds=1000))
                lines = said.getvalue().splitlines()
                expected = [f"shoal: rank {rank} waits for its job to begin: {words}"] if words else []
                self.assertEqual(lines, expected)

    def test_what_an_attempt_before_has_left_in_the_store(self):
        """Whoever comes first: an answer of a process that is gone is taken for no rank's, an error of it is not
        raised, and all have one place."""
        import torch.distributed as dist

        from shoal.torch import _rendezvous

        limit = datetime.timedelta(seconds=60)
        os.environ["SHOAL_SOCKET"] = "/nowhere"
        for first in (0, 1, 2):
            store, places = dist.HashStore(), [None] * 3
            for rank in range(3):
                left = {"node": f"gone {rank}", "given": False, "job": None, "mark": f"{rank}"}
                store.set(f"node/{rank}", json.dumps(left))
                store.set(f"plan/{rank}", json.dumps({"error": "of before", "code": -3}))

            def meet(rank):
                places[rank] = _rendezvous.meet(store, rank, 3, limit)

            threads = [threading.Thread(target=meet, args=(rank,), daemon=True) for rank in range(3)]
            threads[first].start()
            threads[first].join(0.8)  # by itself, for longer than rank 0 waits before it looks again
            for thread in threads:
                if thread is not threads[first]:
                    thread.start()
            for thread in threads:
                thread.join(60)
            self.assertEqual([place.local_rank for place in places], [0, 1, 2], first)
            self.assertEqual(len({(place.job, place.name) for place in places}), 1, first)


if __name__ == "__main__":
    sys.exit(suite.main())
