#!/usr/bin/python3
"""Amazon's public training scripts for SMDDP, with nothing changed but lines about the device.

    SHOAL_SMDDP_SCRIPTS=FOLDER python3 test_scripts.py

FOLDER is where they have been put, for none of them is here: every smdataparallel_mnist.py
(aws/deep-learning-containers) and train_pytorch_smdataparallel_mnist.py (aws/amazon-sagemaker-examples,
with its model_def.py) below it, of any year, is run. In FOLDER/site is what they import and this machine has not, such as torchvision.
"""

import json
import re
import struct
import sys
import unittest

from scripts_case import FOLDER, NO_FOLDER, ScriptsCase, find
import suite

NAME = "*smdataparallel_mnist.py"
# Allowed differences of a printed loss, relative: in the first epoch, and later, when numbers that were rounded in
# another order have grown under a learning rate of 1.
ALLOWED = (2e-5, 2e-2)

# Lines about the device, where there is no GPU.
DEVICE = (
    (r"if not torch\.cuda\.is_available\(\)", "if False"),
    (r"torch\.device\([^)]*\)", 'torch.device("cpu")'),
    (r"torch\.cuda\.set_device\([^)]*\)", "pass"),
    (r"\.cuda\(\w*\)", ".cpu()"),
    (r", device_ids=\[\w+\]", ""),
)
# Changes that put the script on gloo, to compare with.
GLOO = (
    (
        r"import smdistributed\.dataparallel\.torch\.distributed as dist",
        "import smdistributed.dataparallel.torch.torch_smddp, torch.distributed as dist",
    ),
    (
        r"from smdistributed\S+ import DistributedDataParallel as DDP",
        "from torch.nn.parallel import DistributedDataParallel as DDP",
    ),
    (r"init_process_group\([^)]*\)", 'init_process_group("gloo")'),
    (r"dist\.get_local_rank\(\)", 'int(__import__("os").environ["LOCAL_RANK"])'),
    (r"DDP\(Net\(\)\.to\(device\)\)", "DDP(Net().to(device), broadcast_buffers=False)"),
)
# For a package that only logs, where it is missing.
SITE = """
import importlib.util, sys, types
if importlib.util.find_spec("tensorboard") is None:
    class SummaryWriter:
        def __init__(self, folder):
            pass
        def add_scalar(self, name, value, step):
            pass
        def close(self):
            pass
    module = sys.modules["torch.utils.tensorboard"] = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
"""


def replace(text, rules):
    """(the text, how many lines are changed)."""
    new = text
    for pattern, replacement in rules:
        new = re.sub(pattern, lambda match, by=replacement: by, new)
    return new, sum(old != now for old, now in zip(text.splitlines(), new.splitlines()))


def write_digits(folder):
    """The hand-written digits of the tree in MNIST's format and size, where torchvision looks."""
    table = (suite.TREE / "worker/examples/digits/digits.csv").read_text().split()
    rows = [[int(value) for value in line.split(",")] for line in table]
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, part in (("train", rows[:1536]), ("t10k", rows[1536:])):
        images = b"".join(enlarge(row[:64]) for row in part)
        header = struct.pack(">IIII", 0x803, len(part), 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + images)
        labels = bytes(row[64] for row in part)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 0x801, len(part)) + labels
        )


def enlarge(digit):
    """8 x 8 grey values of 0 to 16 as 28 x 28 of 0 to 255: three times as large, with a margin."""
    blank = bytes(28)
    lines = []
    for y in range(8):
        values = [min(255, value * 16) for value in digit[8 * y : 8 * y + 8]]
        lines += [bytes(2) + bytes(value for value in values for _ in range(3)) + bytes(2)] * 3
    return b"".join([blank, blank, *lines, blank, blank])


def write_sagemaker(folder):
    """Write what SageMaker puts into /opt/ml, and return what it says in the environment, on one node with eight
    GPUs."""
    config = folder / "input" / "config"
    config.mkdir(parents=True)
    (folder / "model").mkdir()
    parameters = {"sagemaker_distributed_dataparallel_enabled": True}
    host = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
    strings = {name: json.dumps(value) for name, value in parameters.items()}
    (config / "hyperparameters.json").write_text(json.dumps(strings))
    (config / "resourceconfig.json").write_text(json.dumps(host))
    (config / "inputdataconfig.json").write_text("{}")
    return {
        "SAGEMAKER_BASE_DIR": str(folder),
        "SM_HOSTS": '["algo-1"]',
        "SM_CURRENT_HOST": "algo-1",
        "SM_NUM_GPUS": str(Mnist.RANKS),
        "SM_MODEL_DIR": str(folder / "model"),
        "SM_HPS": '{"epochs": 2}',
        "SM_FRAMEWORK_PARAMS": json.dumps(parameters),
        "SM_RESOURCE_CONFIG": json.dumps(host),
        "SMDATAPARALLEL_USE_SINGLENODE": "1",
    }


@unittest.skipUnless(FOLDER, NO_FOLDER)
class Mnist(ScriptsCase):
    """Each script on shoal, and edited for gloo: the same losses."""

    RANKS = 8  # the scripts divide by the number of nodes of eight GPUs

    def setUp(self):
        self.path = self.folder()
        write_digits(self.path / "data")
        self.settings = write_sagemaker(self.path / "ml")

    def test_scripts_are_there(self):
        self.assertTrue(find(NAME), f"no {NAME} below {FOLDER}")

    def train(self, script, *rules):
        """(what it printed, how many lines were changed)."""
        text, changed = replace(script.read_text(), [one for part in rules for one in part])
        own = self.folder()
        (own / script.name).write_text(text)
        for beside in script.parent.glob("model_def.py"):
            (own / beside.name).write_text(beside.read_text())
        (own / "sitecustomize.py").write_text(SITE)
        options = ["--data-path", self.path / "data", "--epochs", "2", "--batch-size", "16"]
        command = [own / script.name, *options, "--log-interval", "1"]
        return self.start(*command, paths=[own], **self.settings), changed

    def check(self, script):
        output, changed = self.train(script, DEVICE)
        losses = [float(loss) for loss in re.findall(r"Loss: ([0-9.]+)", output)]
        self.assertEqual(len(losses), 24)
        self.assertLess(sum(losses[-4:]) / 4, losses[0] * 0.7, "it does not learn")
        right = [int(count) for count in re.findall(r"Accuracy: (\d+)/261", output)]
        expected, _ = self.train(script, DEVICE, GLOO)
        expected = [float(loss) for loss in re.findall(r"Loss: ([0-9.]+)", expected)]
        self.assertEqual(len(expected), len(losses))
        apart = [abs(one - other) / other for one, other in zip(losses, expected)]
        apart = (max(apart[:12]), max(apart[12:]))
        print(
            f"\n{script.parent.name}: {changed} lines about the device; losses {losses[0]} to {losses[-1]},"
            f" right of 261: {right}; apart from gloo's by at most {apart[0]:.1e}, then {apart[1]:.1e}"
        )
        for most, found in zip(ALLOWED, apart):
            self.assertLessEqual(found, most, (losses, expected))


for number, found in enumerate(find(NAME)):
    setattr(
        Mnist,
        f"test_{number}_{re.sub(r'[^a-z0-9]+', '_', found.parent.name.lower())}",
        lambda self, script=found: self.check(script),
    )

if __name__ == "__main__":
    sys.exit(suite.main())
