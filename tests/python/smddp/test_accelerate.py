#!/usr/bin/python3
"""HuggingFace's accelerate, from its repository, with the backend smddp.

    SHOAL_SMDDP_SCRIPTS=FOLDER python3 test_accelerate.py

Below FOLDER is a copy of huggingface/accelerate (src, examples), and in FOLDER/site what it imports
and this machine has not: safetensors, tqdm, and huggingface_hub's sources. doc/smddp.md says more.
Its example runs unedited on stand_ins/. SageMaker's way is the one that accelerate goes with
ACCELERATE_USE_SAGEMAKER=true; a device is named, where it would take a GPU.
"""

import os
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

FOLDER = os.environ.get("SHOAL_SMDDP_SCRIPTS")
RANKS = 2
ALLOWED = 1e-5  # of a loss, relative
SAGEMAKER = {
    "ACCELERATE_USE_SAGEMAKER": "true",
    "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": "DATA_PARALLEL",
    "ACCELERATE_TORCH_DEVICE": "cpu",
    "ACCELERATE_BYPASS_DEVICE_MAP": "true",
}
# Runs a script or module in a process group that is there already, which accelerate takes as its own.
AFTER_INIT = """
import runpy, sys
import smdistributed.dataparallel.torch.torch_smddp
import torch.distributed as dist
backend, what = sys.argv[1:3]
dist.init_process_group(backend)
del sys.argv[1:3]
run = runpy.run_path if what.endswith(".py") else runpy.run_module
run(what, run_name="__main__")
assert not dist.is_initialized() or dist.get_backend() == backend
"""


def find_accelerate():
    """The folder of its repository, or None."""
    found = pathlib.Path(FOLDER).rglob("src/accelerate/state.py") if FOLDER else ()
    return next((path.parents[2] for path in sorted(found)), None)


def reason_to_skip():
    if not find_accelerate():
        return "SHOAL_SMDDP_SCRIPTS names no folder with accelerate"
    if suite.reason_to_skip() is None and suite.torch_version() < (2, 0):
        return "accelerate wants torch 2.0"
    return None


@unittest.skipIf(reason_to_skip(), reason_to_skip())
class Accelerate(unittest.TestCase):
    def start(self, *command, **more):
        """What it prints, as so many ranks of mpirun's."""
        top = find_accelerate()
        paths = [suite.TREE / "worker/python", pathlib.Path(__file__).parent / "stand_ins"]
        paths += [top / "src", pathlib.Path(FOLDER) / "site"]
        finished = suite.run(
            [sys.executable, suite.LAUNCH / "mpirun.py", RANKS, sys.executable, *command],
            limit_s=280,
            PYTHONPATH=":".join(map(str, paths)),
            HF_HUB_OFFLINE="1",
            **more,
        )
        self.assertEqual(finished.returncode, 0, finished.stdout[-6000:])
        return finished.stdout

    def own_test(self, name, **more):
        """A test that accelerate brings, as SageMaker would start it."""
        module = f"accelerate.test_utils.scripts.{name}"
        return self.start("-m", "shoal.smddp", "-m", module, **SAGEMAKER, **more)

    def losses(self, output):
        return [
            [float(loss) for loss in re.findall(rf"loss of rank {rank}: (\S+)", output)]
            for rank in range(RANKS)
        ]

    def test_nlp_example(self):
        script = find_accelerate() / "examples" / "nlp_example.py"
        output = self.start("-m", "shoal.smddp", script, **SAGEMAKER)
        losses = self.losses(output)
        self.assertEqual([len(own) for own in losses], [120, 120])
        right = [float(share) for share in re.findall(r"'accuracy': ([0-9.]+)", output)]
        self.assertEqual(len(right), 3)
        self.assertGreater(right[-1], 0.9, "it does not learn")
        expected = self.losses(self.after_init("gloo", script, "--cpu"))
        apart = max(
            abs(one - other) / other
            for ours, theirs in zip(losses, expected)
            for one, other in zip(ours, theirs)
        )
        print(f"\nnlp_example.py: right {right}; losses from gloo's at most {apart:.1e} apart")
        self.assertEqual([len(own) for own in expected], [120, 120])
        self.assertLessEqual(apart, ALLOWED)

    def test_operations(self):
        output = self.own_test("test_ops")
        self.assertIn("Backend: smddp", output)
        self.assertIn("testing sending tensors across devices", output)

    def test_gradient_accumulation(self):
        self.own_test("test_sync")

    def test_after_init_process_group(self):
        module = "accelerate.test_utils.scripts.test_script"
        output = self.after_init("smddp", module, ACCELERATE_USE_CPU="true")
        self.assertIn("Training yielded the same results on one CPU or distributed setup", output)

    def after_init(self, backend, *command, **more):
        script = self.write(AFTER_INIT)
        return self.start("-m", "shoal.smddp", script, backend, *command, **more)

    def test_communication_hooks(self):
        """Without the two lines that name a GPU to DistributedDataParallel, and the three hooks of
        bf16, for which torch wants CUDA."""
        path = find_accelerate() / "src/accelerate/test_utils/scripts/test_ddp_comm_hook.py"
        text, count = re.subn(r"\n *(device_ids|output_device)=.*,", "", path.read_text())
        self.assertEqual(count, 2)
        text, count = re.subn(r"\n *\(DDPCommunicationHookType.*BF16.*\),", "", text)
        self.assertEqual(count, 3)
        output = self.start("-m", "shoal.smddp", self.write(text), **SAGEMAKER)
        self.assertIn("comm hook: batched_power_sgd, comm wrapper: fp16", output)

    def write(self, text):
        """A script of these lines."""
        folder = tempfile.TemporaryDirectory(prefix="shoal-accelerate-")
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "script.py"
        path.write_text(text)
        return path


if __name__ == "__main__":
    sys.exit(suite.main())
