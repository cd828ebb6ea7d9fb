#!/usr/bin/python3
"""Folders of checkpoints: which are kept, and what is no folder."""

import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

sys.path.insert(0, str(suite.TREE / "worker" / "python"))


class Folders(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shoal-test-")
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name in ("llama-9steps", "llama-100steps", "llama-20steps", "model"):
            os.mkdir(f"{self.root}/{name}")
        pathlib.Path(self.root, "llama-1steps").touch()
        pathlib.Path(self.root, "llama-9steps", "part").touch()
        os.symlink(f"{self.root}/model", f"{self.root}/link-0steps")

    def limit(self, count, **named):
        from shoal.smddp.smp.checkpoint import utils

        return utils.limit_num_subdirs(self.root, count, regex=r"^.*\d+steps$", **named)

    def test_the_greatest_numbers_are_kept(self):
        before = set(os.listdir(self.root))
        self.assertEqual(self.limit(2), ["llama-9steps"])
        self.assertEqual(before - set(os.listdir(self.root)), {"llama-9steps"})
        self.assertEqual(self.limit(2), [])

    def test_one_rank_alone_removes(self):
        before = set(os.listdir(self.root))
        self.assertEqual(self.limit(1, log=False), ["llama-9steps", "llama-20steps"])
        self.assertEqual(set(os.listdir(self.root)), before)

    def test_all_are_kept(self):
        for count in (0, -1, 3, 10):
            self.assertEqual(self.limit(count), [])

    def test_the_last_number_of_a_name(self):
        from shoal.smddp.smp.checkpoint import utils

        for name, number in (("a12b7steps", 7), ("7", 7), ("none", -1)):
            self.assertEqual(utils.SORT_BY_LAST_INT(name), number)

    def test_an_address_is_no_folder(self):
        from shoal import errors
        from shoal.smddp.smp.checkpoint import filesystem, state_dict_loader, state_dict_saver

        address = "s3://bucket/key"
        for call in (
            lambda: filesystem.DistributedFileSystemReader(address),
            lambda: state_dict_saver.save({}, checkpoint_id=address),
            lambda: state_dict_loader.load({}, checkpoint_id=address),
        ):
            with self.assertRaisesRegex(errors.UnsupportedError, "s3://bucket/key is an address"):
                call()
        with self.assertRaisesRegex(errors.UnsupportedError, "s3_region"):
            state_dict_saver.async_save({}, checkpoint_id=self.root, s3_region="us-west-2")
        with self.assertRaisesRegex(errors.InvalidError, "checkpoint_id or storage_writer"):
            state_dict_saver.save({})

    def test_one_process_alone(self):
        import torch
        from shoal.smddp.smp.checkpoint import state_dict_loader, state_dict_saver

        model = torch.nn.Linear(2, 2)  # has a state_dict() of its own
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state_dict_saver.async_save({"model": model, "steps": 7}, checkpoint_id=f"{self.root}/alone")
        torch.nn.init.zeros_(model.weight)
        self.assertTrue(state_dict_saver.maybe_finalize_async_calls())
        content = {"model": model, "steps": 0}
        state_dict_loader.load(content, checkpoint_id=f"{self.root}/alone")
        self.assertEqual(content["steps"], 7)
        self.assertTrue(all(torch.equal(model.state_dict()[name], before[name]) for name in before))

    def test_the_strategy_of_a_save(self):
        """The name that Amazon's reference gives it, and what it stands for; every other one is refused."""
        from shoal import errors
        from shoal.smddp.smp.checkpoint import state_dict_saver

        kind = state_dict_saver.PyTorchDistSaveShardedStrategy
        for number, strategy in enumerate((None, kind(), kind("torch_dist", 1), ("torch_dist", 1))):
            path = f"{self.root}/strategy-{number}"
            state_dict_saver.async_save({"steps": number}, checkpoint_id=path, sharded_strategy=strategy)
            state_dict_saver.maybe_finalize_async_calls()
            self.assertTrue(os.path.exists(f"{path}/.metadata"))
        for strategy, words in (
            (("zarr", 1), "sharded_strategy: 'zarr', 1 is not done here"),
            (("torch_dist", 2), "'torch_dist', 2"),
            (kind, "sharded_strategy is a type"),
            ("torch_dist", "sharded_strategy is a str"),
        ):
            with self.assertRaisesRegex(errors.UnsupportedError, words):
                state_dict_saver.async_save({}, checkpoint_id=self.root, sharded_strategy=strategy)
        with self.assertRaisesRegex(errors.UnsupportedError, "PyTorchDistSaveShardedStrategy: 'zarr'"):
            kind("zarr")

    def test_a_function_that_was_imported_before(self):
        """torch's load_sharded_optimizer_state_dict takes a process_group too, also where a script has it already."""
        program = "from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict as load\n"
        program += "from shoal.smddp.smp.checkpoint import optimizer\n"
        program += "optimizer.install()\noptimizer.load_for_group = lambda *given: given\n"
        # A later torch may have the function with one argument more.
        known = "model_state_dict, optimizer_key, storage_reader, planner=None"
        program += f"def original({known}, *, later=9):\n    return planner, later\nload.shoal_original = original\n"
        program += "print(load(1, 2, 3, process_group=5), load(1, 2, 3, 4, 5), load(1, 2, planner=4, storage_reader=3))\n"
        program += "print(load(1, 2, 3, later=6))"
        said = suite.run([sys.executable, "-c", program]).stdout
        self.assertEqual(said, "(2, 3, None, 5) (2, 3, 4, 5) (4, 9)\n(None, 6)\n")

    def test_a_rank_that_is_not_in_the_group(self):
        import torch.distributed as dist
        from shoal import errors
        from shoal.smddp.smp.checkpoint._agreement import Together

        dist.init_process_group("gloo", init_method=f"file://{self.root}/store", rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        self.assertEqual(Together(dist.GroupMember.WORLD).ranks, [0])
        with self.assertRaisesRegex(errors.InvalidError, "checkpoint: rank 0 is not in the process_group: "):
            Together(dist.GroupMember.NON_GROUP_MEMBER)
        with mock.patch.object(dist, "get_process_group_ranks", lambda group: [1, 3]):
            with self.assertRaisesRegex(errors.InvalidError, r"rank 0 is not in the process_group, .* \[1, 3\]"):
                Together(dist.GroupMember.WORLD, coordinator_rank=1)


if __name__ == "__main__":
    sys.exit(suite.main())
