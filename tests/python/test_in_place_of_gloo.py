#!/usr/bin/python3
"""The name that torch knows without an import, and groups of gloo that are shoal's (SHOAL_AS)."""

import importlib
import json
import re
import sys
import tempfile
import unittest

import suite

SCRIPT = suite.RANKS / "ranks_in_place_of_gloo.py"
LINE = "shoal: this job's gloo groups are shoal's (SHOAL_AS=gloo)"


class Installed(unittest.TestCase):
    """With the entry points that `make install` makes, in a folder."""

    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, str(suite.TREE / "worker" / "python"))
        cls.folder = tempfile.TemporaryDirectory(prefix="shoal-info-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.info = importlib.import_module("wheel_builder").write_info(cls.folder.name)
        cls.path = f"{cls.folder.name}:{suite.environment()['PYTHONPATH']}"

    def python(self, program, *words, **more):
        return suite.run([sys.executable, "-c", program, *words], PYTHONPATH=self.path, **more)

    def check_prints(self, program, expected, **more):
        finished = self.python(program, **more)
        self.assertEqual(finished.stdout.strip(), expected, finished.stdout)

    def said(self, finished):
        """Return what the ranks have told, in their order."""
        self.assertEqual(finished.returncode, 0, finished.stdout)
        told = [json.loads(line[5:]) for line in re.findall(r"^SAID .*", finished.stdout, re.M)]
        return sorted(told, key=lambda one: one["rank"])

    def ranks(self, *words, how=("--as", "gloo"), **more):
        with tempfile.TemporaryDirectory(prefix="shoal-store-") as folder:
            command = [suite.BUILD / "bin" / "shoalrun", "--timeout", suite.LIMIT_S - 20, *how, "-n", "2"]
            more = {"PYTHONPATH": self.path, "TEST_STORE": f"{folder}/store", **more}
            return suite.run([*command, "--", sys.executable, SCRIPT, *words], **more)


class Name(Installed):
    def test_the_builders_agree(self):
        text = (self.info / "entry_points.txt").read_text()
        project = (suite.TREE / "worker/python/pyproject.toml").read_text()
        for group in ("torch.backends", "torch.distributed.backends"):
            self.assertIn(f"[{group}]\nshoal = shoal._autoload:register\n", text)
            self.assertIn(f'[project.entry-points."{group}"]\nshoal = "shoal._autoload:register"\n', project)

    def test_known_without_an_import(self):
        self.check_prints(
            "import sys, torch; capability = torch.distributed.Backend.backend_capability['shoal'];"
            "print(capability == (['cpu', 'cuda'] if torch.version.cuda else ['cpu']),"
            "[name for name in sys.modules if name.startswith(('shoal.torch', 'shoal.lib', 'shoal._in'))])",
            "True []",
        )

    def test_groups_without_an_import(self):
        said = self.said(self.ranks("shoal", how=()))
        self.assertEqual([one["kinds"]["default"][::2] for one in said], [["shoal", True]] * 2)

    def test_both_orders(self):
        for program in (
            "import torch, shoal.torch, shoal._autoload as a; a.register(); import torch.distributed as d",
            "import shoal.torch, torch, torch.distributed as d",
        ):
            self.check_prints(f"{program}; print(d.Backend.SHOAL, d.Backend.backend_list.count('shoal'))", "shoal 1")

    def test_without_autoload(self):
        program = "import torch.distributed as d; print('SHOAL' in d.Backend._plugins)"
        for more, expected in ((program, "False"), (f"import shoal.torch; {program}", "True")):
            self.check_prints(more, expected, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        # Without the entry point `import shoal.torch` reads SHOAL_AS.
        program = (
            "import shoal.torch, torch.distributed.distributed_c10d as c\n"
            "print(hasattr(c._new_process_group_helper, 'shoal'))"
        )
        self.check_prints(program, "True", TORCH_DEVICE_BACKEND_AUTOLOAD="0", SHOAL_AS="gloo")

    def test_raises_nothing(self):
        """Whatever torch lacks; and other backends work."""
        store = "import torch.distributed as d; s = d.HashStore()"
        for what in ("Backend", "Backend._plugins", "Backend.register_backend", "is_available"):
            program = (
                "import torch, sys, shoal._autoload as a; import torch.distributed as d\n"
                "d.Backend._plugins.pop('SHOAL', None)\n"
                f"kept = d.{what}; del d.{what}; print(a.register(), flush=True)\n"
            )
            if what == "Backend.register_backend":
                program += (
                    f"{store}\nd.init_process_group('gloo', store=s, rank=0, world_size=1); d.destroy_process_group()\n"
                    "d.init_process_group('shoal', store=s, rank=0, world_size=1)\n"
                )
            finished = self.python(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
            self.assertEqual(finished.stdout.splitlines()[0], "None", finished.stdout)
            if what == "Backend.register_backend":
                self.assertIn("register_backend", finished.stdout.splitlines()[-1], finished.stdout)
        # A name that is in a path is none that is asked for.
        program = (
            "import torch, tempfile, shoal._autoload as a; import torch.distributed as d\n"
            "a._raise_later(RuntimeError('no name')); path = tempfile.mkdtemp(prefix='shoal-test-')\n"
            "d.init_process_group('gloo', f'file://{path}/store', rank=0, world_size=1); print(d.get_backend())\n"
            "d.destroy_process_group(); import shutil; shutil.rmtree(path)"
        )
        self.check_prints(program, "gloo")
        # No library is there: a group of shoal says so.
        program = f"{store}; d.init_process_group('shoal', store=s, rank=0, world_size=1)"
        finished = self.python(program, SHOAL_LIBRARY="/nowhere/libshoal.so")
        self.assertIn("/nowhere/libshoal.so", finished.stdout.splitlines()[-1])

    def test_without_distributed(self):
        program = (
            "import sys, types, torch; torch.distributed.is_available = lambda: False\n"
            "import shoal._autoload as a; print(a.register(), 'SHOAL' in torch.distributed.Backend._plugins)"
        )
        self.check_prints(program, "None False", TORCH_DEVICE_BACKEND_AUTOLOAD="0", SHOAL_AS="gloo")


class InPlaceOfGloo(Installed):
    def test_what_is_turned(self):
        from shoal import _in_place_of_gloo

        for asked, accelerator, instead in (
            ("gloo", "cpu", "shoal"),
            ("gloo", "cuda", "shoal"),
            ("undefined", "cpu", "shoal"),
            ("undefined", "cuda", None),
            ("nccl", "cuda", None),
            ("shoal", "cpu", None),
            ("cpu:gloo", "cpu", "shoal"),
            ("cpu:gloo,cuda:gloo", "cuda", "shoal"),
            ("cpu:gloo,cuda:nccl", "cuda", "cpu:shoal,cuda:nccl"),
            ("cuda:nccl,cpu:gloo", "cpu", "cuda:nccl,cpu:shoal"),
            ("cpu:mpi,cuda:gloo", "cpu", None),
            ("cpu:gloo:x,cuda", "cpu", None),
        ):
            self.assertEqual(_in_place_of_gloo.instead_of(asked, accelerator), instead, asked)

    def test_torch_says_what_it_says_on_gloo(self):
        for asked in ("gloo", "nothing", "cpu:gloo"):
            finished = self.ranks(asked)
            ours = self.said(finished)
            self.assertEqual(finished.stdout.count(LINE), 1, finished.stdout)
            with tempfile.TemporaryDirectory(prefix="shoal-store-") as folder:
                finished = self.ranks(asked, f"file://{folder}/store", how=())
            gloo = self.said(finished)
            self.assertNotIn(LINE, finished.stdout)
            for mine, its in zip(ours, gloo):
                self.assertFalse(its["imported"])
                for name in ("default", "whole", "alone"):
                    self.assertEqual(mine["kinds"][name][:2], its["kinds"][name][:2], asked)
                    self.assertEqual((mine["kinds"][name][2], its["kinds"][name][2]), (True, False), asked)

    def test_ranks_that_a_script_makes(self):
        for how in ("spawn", "fork", "forkserver"):
            with tempfile.TemporaryDirectory(prefix="shoal-store-") as folder:
                command = [sys.executable, SCRIPT, how, f"{folder}/store"]
                finished = suite.run(command, PYTHONPATH=self.path, SHOAL_AS="gloo")
            said = self.said(finished)
            self.assertEqual([(one["shoal"], one["name"]) for one in said], [(True, "gloo")] * 2, how)
            self.assertEqual(finished.stdout.count(LINE), 1, finished.stdout)

    def test_torchrun(self):
        """The agent makes no group, and its ranks' are shoal's."""
        with tempfile.TemporaryDirectory(prefix="shoal-store-") as folder:
            command = [*suite.torchrun("--standalone"), SCRIPT, "gloo"]
            more = {"PYTHONPATH": self.path, "TEST_STORE": f"{folder}/store", "SHOAL_AS": "gloo"}
            finished = suite.run(command, **more)
        said = self.said(finished)
        self.assertEqual([one["kinds"]["default"][::2] for one in said], [["gloo", True]] * 2)
        self.assertEqual(finished.stdout.count(LINE), 1, finished.stdout)

    def test_beside_another_backend(self):
        said = self.said(self.ranks("beside"))
        self.assertEqual([(one["default"], one["name"], one["shoal"]) for one in said], [("fake", "gloo", True)] * 2)

    def test_the_part_of_the_cpu(self):
        said = self.said(self.ranks("mixed"))
        if "skipped" in said[0]:
            self.skipTest(said[0]["skipped"])
        for one in said:
            self.assertEqual(one["names"], {"cpu": "shoal", "cuda": "gloo"})
            self.assertEqual(one["config"], "cpu:shoal,cuda:gloo")

    def test_constructed_by_hand(self):
        said = self.said(self.ranks("hand"))
        self.assertEqual([(one["name"], one["sum"]) for one in said], [("gloo", 2.0)] * 2)

    def test_a_word_that_is_not_allowed(self):
        self.check_prints("import torch; print('imported')", "imported", SHOAL_AS="glo")
        for backend in ("gloo", "shoal"):
            arguments = f"'{backend}', store=d.HashStore(), rank=0, world_size=1"
            program = f"import torch.distributed as d; d.init_process_group({arguments})"
            finished = self.python(program, SHOAL_AS="glo")
            self.assertIn("SHOAL_AS is 'glo': it is gloo, or unset", finished.stdout.splitlines()[-1])

    def test_a_torch_that_makes_groups_in_another_way(self):
        """An error when a group is made, never Gloo in silence."""
        store = "d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1)"
        for change in (
            "del c._new_process_group_helper",
            "c._new_process_group_helper = lambda backend: None",
            "c._world = None",
        ):
            program = (
                "import torch, torch.distributed as d, torch.distributed.distributed_c10d as c, shoal._autoload as a\n"
                f"{change}\nprint(a.register(), flush=True)\n{store}"
            )
            finished = self.python(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0", SHOAL_AS="gloo")
            self.assertEqual(finished.stdout.splitlines()[0], "None", finished.stdout)
            self.assertIn("makes its groups in another way", finished.stdout.splitlines()[-1], change)


if __name__ == "__main__":
    sys.exit(suite.main())
