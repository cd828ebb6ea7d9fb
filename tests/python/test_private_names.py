#!/usr/bin/python3
"""Private names of torch that shoal uses or changes: each is in the torch at hand. Where one is gone, this says so
before a program does less than it should."""

import importlib
import inspect
import re
import sys
import unittest

import suite

PACKAGE = suite.TREE / "worker" / "python"
C10D = "torch._C._distributed_c10d"
DISTRIBUTED = "torch.distributed.distributed_c10d"
FULLY_SHARD = "torch.distributed.fsdp._fully_shard._fully_shard"
# (where, the names of one thing: of the last versions first)
NAMES = (
    (C10D, "_create_work_from_future"),
    (C10D, "ProcessGroup._set_group_name"),
    (C10D, "ProcessGroup._set_group_desc"),
    (C10D, "ProcessGroup._get_backend"),
    (C10D, "ProcessGroup._start_coalescing"),
    (C10D, "ProcessGroup._end_coalescing"),
    (C10D, "ProcessGroup._allgather_base"),
    (C10D, "ProcessGroup._reduce_scatter_base"),
    (DISTRIBUTED, "_store_based_barrier"),
    ("torch.distributed", "_broadcast_coalesced"),
    ("torch.distributed", "_verify_params_across_processes"),
    ("torch.distributed.utils", "_recursive_to"),
    ("torch", "_assert_async"),
    ("torch._utils", "_get_device_index"),
    ("torch.nn.modules.module", "Module._apply"),
    ("torch.distributed._shard.sharded_tensor.api", "_SHARDED_OPS"),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "CheckpointWrapper"),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "OffloadWrapper"),
    ("torch.distributed.algorithms._comm_hooks", "default_hooks"),
    ("torch.distributed.checkpoint._nested_dict", "unflatten_state_dict"),
    ("torch.distributed.checkpoint.state_dict_saver", "_save_state_dict"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel._optim_state_dict_impl"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel._optim_state_dict_to_load_impl"),
    ("torch.distributed.fsdp._init_utils", "_check_module_states_for_sync_module_states"),
    ("torch.distributed.fsdp._shard_utils", "_create_chunk_sharded_tensor"),
    ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup"),
    (FULLY_SHARD, "_init_default_mesh", "_init_default_fully_shard_mesh"),  # 2.6 has the second
)
# What shoal counts on in a private function's arguments.
ARGUMENTS = (
    ("torch.distributed.checkpoint.state_dict_saver", "_save_state_dict",
     {"state_dict", "process_group", "coordinator_rank", "no_dist"}),
    ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup", {"params", "modules", "mesh_info"}),
    ("torch.distributed.fsdp._shard_utils", "_create_chunk_sharded_tensor", {"tensor", "rank", "world_size", "pg"}),
)  # fmt: skip


def find(where, name):
    found = importlib.import_module(where)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


class PrivateNames(unittest.TestCase):
    def test_torch_has_them(self):
        missing = [f"{where}: {' or '.join(names)}" for where, *names in NAMES
                   if not any(find(where, name) is not None for name in names)]  # fmt: skip
        self.assertEqual(missing, [])

    def test_what_they_take(self):
        for where, name, wanted in ARGUMENTS:
            self.assertEqual(wanted - set(inspect.signature(find(where, name)).parameters), set(), name)

    def test_private_modules_that_are_imported(self):
        """All of them are here: whoever imports one more adds it."""
        known = " ".join(f"{where}.{name}" for where, *names in NAMES for name in names)
        lines = re.compile(r"^ *from (torch\S*) import (.+)$", re.MULTILINE)
        for path in PACKAGE.glob("shoal/**/*.py"):
            for where, names in lines.findall(path.read_text()):
                for name in re.findall(r"\w+", names.split(" as ")[0]):
                    if re.search(r"(^|\.)_", f"{where}.{name}"):
                        self.assertIn(f"{where}.{name}", known, path)

    def test_one_that_is_gone_is_an_error(self):
        sys.path.insert(0, str(PACKAGE))
        self.addCleanup(sys.path.remove, str(PACKAGE))
        from shoal.smddp.smp import _hooks

        holder = type("holder", (), {"_later": 1, "_earlier": 2})
        self.assertEqual(_hooks.find(holder, "_later", "_earlier"), "_later")
        with self.assertRaisesRegex(ImportError, "has no _latest or _last in holder, and torch.sagemaker changes it"):
            _hooks.find(holder, "_latest", "_last")


if __name__ == "__main__":
    sys.exit(suite.main())
