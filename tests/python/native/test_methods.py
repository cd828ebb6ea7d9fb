#!/usr/bin/python3
"""Whatever torch's Backend and ProcessGroup offer is done, or is listed here with the reason why not: what is not
overridden runs over nothing, without a word."""

import os
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

sys.path.insert(0, str(suite.TREE / "worker" / "python"))
os.environ.setdefault("SHOAL_LIBRARY", str(suite.BUILD / "lib" / "libshoal.so"))

BACKEND_HEADER = "torch/csrc/distributed/c10d/Backend.hpp"
NOT_IN_CPP = {
    "getMemAllocator": "torch's raises: a pool of memory is a GPU's",
    "eagerConnectSingleDevice": "nothing is to be connected; torch's does nothing",
    "enableCollectivesTiming": "torch's raises; the daemon's trace has the times",
    "getMemoryStats": "torch's raises; shoalctl status has them",
    "registerOnCompletionHook": "torch's raises: only NCCL has it",
    "waitForPendingWorks": "torch's raises: only NCCL has it",
    "resume": "torch's raises: there is no memory of a GPU to give back",
    "suspend": "torch's raises: there is no memory of a GPU to give back",
    "setGroupUid": "torch's keeps the name",
    "supportsTimeEstimation": "torch's answer is no",
}
NOT_IN_PYTHON = {
    **dict.fromkeys(["BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "UCC", "UNDEFINED", "XCCL"], "a constant"),
    **dict.fromkeys(["boxed", "unbox", "_id", "_backend_id"], "of the object; a group in Python has no operators"),
    **dict.fromkeys(["_register_backend", "_set_default_backend"], "the group has no backend"),
    **dict.fromkeys(["_register_on_completion_hook", "_wait_for_pending_works"], "torch's raises: only NCCL has it"),
    **dict.fromkeys(["_enable_collectives_timing"], "torch's raises"),
    **dict.fromkeys(["_has_hooks", "bound_device_id", "use_pg_for_symm_mem_rendezvous"], "torch's keeps it"),
    **dict.fromkeys(["name", "_get_backend_name"], "torch's calls getBackendName"),
    "_pybind11_conduit_v1_": "pybind11's",
}


def headers():
    import torch

    folders = [pathlib.Path(torch.__file__).parent / "include", pathlib.Path("/usr/include")]
    return [folder / BACKEND_HEADER for folder in folders if (folder / BACKEND_HEADER).exists()]


def virtuals(text):
    return set(re.findall(r"virtual [^;{(]*?\b(\w+)\(", text))


@unittest.skipIf(suite.reason_to_skip(), suite.reason_to_skip())
class Methods(unittest.TestCase):
    def test_of_a_backend(self):
        if not headers():
            self.skipTest("torch's headers are not there")
        ours = (suite.TREE / "worker/python/native/backend.hpp").read_text()
        offered = virtuals(headers()[0].read_text())
        self.assertIn("allreduce", offered)
        done = {name for name in offered if re.search(rf"\b{name}\(", ours)}
        self.assertEqual(offered - done - set(NOT_IN_CPP), set())
        self.assertEqual(done & set(NOT_IN_CPP), set(), "done, and listed as not done")

    def test_of_a_process_group_in_python(self):
        import shoal.torch  # noqa: F401
        from shoal.torch import _process_group
        from torch._C import _distributed_c10d as c10d

        kinds = [kind for kind in _process_group.ProcessGroup.__mro__ if kind.__module__.startswith("shoal")]
        done = {name for kind in kinds for name in vars(kind)}
        offered = {name for name in vars(c10d.ProcessGroup) if not name.startswith("__")}
        self.assertIn("allreduce", offered)
        self.assertEqual(offered - done - set(NOT_IN_PYTHON), set())
        self.assertEqual(done & set(NOT_IN_PYTHON), set(), "done, and listed as not done")


if __name__ == "__main__":
    sys.exit(suite.main())
