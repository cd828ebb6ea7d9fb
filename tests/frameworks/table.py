"""The frameworks: how the user of each starts a program, on one node and on two."""

import dataclasses
import importlib.util
import sys
from collections.abc import Callable

from running import PROGRAMS

PYTHON = sys.executable


def torchrun(program, *words):
    def command(size, port):
        own = ["--standalone", "--monitor_interval=0.2", f"--nproc_per_node={size}"]
        return [PYTHON, "-m", "torch.distributed.run", *own, PROGRAMS / program, *words]

    return command


def torchrun_nodes(program, *words):
    def command(node, port, size):
        own = ["--nnodes=2", f"--node_rank={node}", "--master_addr=127.0.0.1", f"--master_port={port}"]
        return [PYTHON, "-m", "torch.distributed.run", *own, f"--nproc_per_node={size}", PROGRAMS / program, *words]

    return command


def alone(program, *words):
    """By Python: the framework starts the ranks."""

    def command(*_):
        return [PYTHON, PROGRAMS / program, *words]

    return command


def accelerate(size, port):
    return [*ACCELERATE, f"--num_processes={size}", f"--main_process_port={port}", *ACCELERATE_PROGRAM]


def accelerate_nodes(node, port, _):
    place = ["--num_machines=2", f"--machine_rank={node}", "--main_process_ip=127.0.0.1", f"--main_process_port={port}"]
    return [*ACCELERATE, "--num_processes=2", *place, *ACCELERATE_PROGRAM]


def deepspeed(size, port):
    return [*DEEPSPEED, f"--num_gpus={size}", f"--master_port={port}", DEEPSPEED_PROGRAM]


def deepspeed_nodes(node, port, _):
    place = [f"--hostfile={PROGRAMS / 'two_hosts'}", "--no_ssh", f"--node_rank={node}"]
    return [*DEEPSPEED, *place, "--master_addr=127.0.0.1", f"--master_port={port}", DEEPSPEED_PROGRAM]


ACCELERATE = (PYTHON, "-m", "accelerate.commands.launch", "--multi_gpu")
ACCELERATE_PROGRAM = ("--dynamo_backend=no", "--mixed_precision=no", PROGRAMS / "train_accelerate.py")
DEEPSPEED = (PYTHON, "-m", "deepspeed.launcher.runner")
DEEPSPEED_PROGRAM = PROGRAMS / "train_deepspeed.py"
# Each line that a worker tells is wanted, and at once. Ray gives its node 30 s to start, which cannot be set, and loads
# some interpreters in that time: so only one Ray starts at once.
RAY = {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
# Where DeepSpeed keeps what it compiles when it begins.
OPERATORS = {"TORCH_EXTENSIONS_DIR": f"{sys.prefix}/torch_extensions"}


@dataclasses.dataclass(frozen=True)
class Framework:
    """launch(size, port) is the command for so many ranks on this node; nodes(node, port, size) that of one of two
    nodes with so many each. endings: how a run of it is ended early. named: it takes the name "shoal", too. by_name:
    the program always asks for shoal by name, so that rank 0 has nothing to say of SHOAL_AS. in_turn: its runs come one
    after the other. in_short: those of its tests that the short part has."""

    name: str
    needs: tuple  # modules
    launch: Callable
    nodes: Callable | None = None
    sizes: tuple = (2,)
    environment: dict = dataclasses.field(default_factory=dict)
    endings: tuple = ()
    named: bool = False
    by_name: bool = False
    in_turn: bool = False
    in_short: tuple = ()

    def reason_to_skip(self):
        missing = [module for module in self.needs if importlib.util.find_spec(module) is None]
        return f"{PYTHON} has no {' and no '.join(missing)} (scripts/frameworks-env.sh)" if missing else None


ENDINGS = ("kill", "raise", "interrupt")
TRAINER, LIGHTNING = "train_trainer.py", "train_lightning.py"

FRAMEWORKS = (
    Framework(
        "accelerate",
        ("accelerate",),
        accelerate,
        accelerate_nodes,
        sizes=(2, 4),
        environment={"ACCELERATE_USE_CPU": "true"},
        endings=ENDINGS,
        named=True,
        in_short=("2_ranks", "kill", "raise", "test_ops_2_ranks"),
    ),
    Framework(
        "trainer",
        ("transformers",),
        torchrun(TRAINER, "plain"),
        torchrun_nodes(TRAINER, "plain"),
        endings=ENDINGS,
        named=True,
        in_short=("two_nodes",),
    ),
    Framework("peft", ("transformers", "peft"), torchrun(TRAINER, "lora")),
    Framework("trl", ("transformers", "trl"), torchrun(TRAINER, "sft")),
    Framework(
        "lightning-ddp",
        ("lightning",),
        alone(LIGHTNING, "ddp"),
        alone(LIGHTNING, "ddp"),
        sizes=(2, 4),
        endings=ENDINGS,
        in_short=("2_ranks",),
    ),
    Framework("lightning-spawn", ("lightning",), alone(LIGHTNING, "ddp_spawn")),
    Framework("lightning-notebook", ("lightning",), alone(LIGHTNING, "ddp_notebook")),
    Framework("lightning-model-parallel", ("lightning",), alone(LIGHTNING, "model_parallel"), named=True),
    Framework("lightning-fabric", ("lightning",), alone(LIGHTNING, "fabric"), endings=ENDINGS, named=True),
    Framework("keras", ("keras",), torchrun("train_keras.py"), endings=ENDINGS, named=True),
    # Its auto_model knows Gloo's name, and another's not.
    Framework(
        "ignite",
        ("ignite",),
        alone("train_ignite.py"),
        alone("train_ignite.py"),
        endings=ENDINGS,
        in_short=("raise",),
    ),
    Framework("ray", ("ray",), alone("train_ray.py"), environment=RAY, in_turn=True, endings=ENDINGS),
    Framework(
        "deepspeed",
        ("deepspeed",),
        deepspeed,
        deepspeed_nodes,
        environment=OPERATORS,
        endings=ENDINGS,
        named=True,
    ),
    Framework("torchft", ("torchft",), torchrun("train_torchft.py"), by_name=True),
    Framework(
        "torchft-manager",
        ("torchft",),
        alone("train_torchft_manager.py"),
        by_name=True,
        in_short=("2_ranks",),
    ),
    Framework("megatron", ("megatron.core",), torchrun("train_megatron.py"), sizes=(4,), endings=ENDINGS),
)
