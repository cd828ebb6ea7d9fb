#!/usr/bin/python3
"""HuggingFace's accelerate, from its repository, with the backend smddp.

    SHOAL_SMDDP_SCRIPTS=FOLDER python3 test_accelerate.py

Below FOLDER is a copy of huggingface/accelerate (src, examples), and in FOLDER/site what it imports
and this machine has not: safetensors, tqdm, and huggingface_hub's sources. Its example runs unedited
on stand_ins/. SageMaker's way is the one that accelerate goes with ACCELERATE_USE_SAGEMAKER=true; a
device is named, where it would take a GPU.
"""

import pathlib
import re
import sys
import unittest

from scripts_case import NO_FOLDER, ScriptsCase, find
import suite

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
    return next((path.parents[2] for path in find("src/accelerate/state.py")), None)


def reason_to_skip():
    if not find_accelerate():
        return NO_FOLDER
    return None


@unittest.skipIf(reason_to_skip(), reason_to_skip())
class Accelerate(ScriptsCase):
    def run_with(self, *command, **more):
        paths = [pathlib.Path(__file__).parent / "stand_ins", find_accelerate() / "src"]
        return self.start(*command, paths=paths, HF_HUB_OFFLINE="1", **more)

    def after_init(self, backend, *command, **more):
        return self.run_with(self.write(AFTER_INIT), backend, *command, **more)

    def own_test(self, name):
        """A test that accelerate brings, as SageMaker would start it."""
        return self.run_with("-m", f"accelerate.test_utils.scripts.{name}", **SAGEMAKER)

    def test_nlp_example(self):
        script = find_accelerate() / "examples" / "nlp_example.py"
        output = self.run_with(script, **SAGEMAKER)
        right = [float(share) for share in re.findall(r"'accuracy': ([0-9.]+)", output)]
        self.assertEqual(len(right), 3)
        self.assertGreater(right[-1], 0.9, "it does not learn")
        apart = self.check_losses(output, self.after_init("gloo", script, "--cpu"), 120, 1e-5)
        print(f"\nnlp_example.py: right {right}; losses from gloo's at most {apart:.1e} apart")

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

    def test_communication_hooks(self):
        """Without the two lines that name a GPU to DistributedDataParallel, and the three hooks of
        bf16, for which torch wants CUDA."""
        path = find_accelerate() / "src/accelerate/test_utils/scripts/test_ddp_comm_hook.py"
        text, count = re.subn(r"\n *(device_ids|output_device)=.*,", "", path.read_text())
        self.assertEqual(count, 2)
        text, count = re.subn(r"\n *\(DDPCommunicationHookType.*BF16.*\),", "", text)
        self.assertEqual(count, 3)
        output = self.run_with(self.write(text), **SAGEMAKER)
        self.assertIn("comm hook: batched_power_sgd, comm wrapper: fp16", output)


if __name__ == "__main__":
    sys.exit(suite.main())
