"""What a launcher leaves out of the environment that torch's "env://" wants, filled in when
init_process_group asks: by shoalrun (no store), by srun (nothing of torch's) and on SageMaker (no
master). What is set already stays."""

import importlib
import itertools
import os
import pathlib
import re

import torch.distributed as dist

from shoal.torch import _hosts

# torch.distributed has a function of the same name.
_rendezvous = importlib.import_module("torch.distributed.rendezvous")

_stores = itertools.count()


def fill_in(environment):
    """What srun and SageMaker leave out. environment: a mapping, changed."""
    _fill_in_slurm(environment)
    _fill_in_sagemaker(environment)


def _fill_in_slurm(environment):
    """Task number and count, and the first host of the list as master, in a step of srun's. The script of sbatch
    has a task number too, but is not one of the tasks: what it has, every srun in it would inherit."""
    if "RANK" in environment or "SLURM_PROCID" not in environment or not _is_slurm_step(environment):
        return
    environment["RANK"] = environment["SLURM_PROCID"]
    environment.setdefault("WORLD_SIZE", environment.get("SLURM_NTASKS", "1"))
    if "SLURM_LOCALID" in environment:
        environment.setdefault("LOCAL_RANK", environment["SLURM_LOCALID"])
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    environment.setdefault("MASTER_ADDR", first_host(hosts) or "127.0.0.1")
    job = int(environment.get("SLURM_JOB_ID", "0")) + int(environment.get("SLURM_STEP_ID", "0"))
    environment.setdefault("MASTER_PORT", str(20000 + job % 20000))


def _is_slurm_step(environment):
    """Whether srun has started this process, to run it: the numbers from 2^32 - 16 on are not of such steps, but of
    the script of sbatch, the shell of salloc, and the like (slurm.h)."""
    number = environment.get("SLURM_STEP_ID", "")
    return number.isdigit() and int(number) < 2**32 - 16


def first_host(hosts):
    """The first of Slurm's host list: "gpu[03-07,12],cpu1" gives "gpu03"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts).group()
    return re.sub(r"\[(\d*)[^\]]*\]", r"\1", first)


def _fill_in_sagemaker(environment):
    hosts = _hosts.resource_config().get("hosts")
    if hosts:
        environment.setdefault("MASTER_ADDR", sorted(hosts)[0])
        environment.setdefault("MASTER_PORT", "29500")


def _shoalrun_store():
    """The path of a store for ranks of shoalrun, all on this machine; None elsewhere. It is in the folder of the run,
    which no other run has, and which goes with it."""
    environment = os.environ
    wanted = ("SHOAL_RUN", "RANK", "WORLD_SIZE")
    if "MASTER_ADDR" in environment or not all(name in environment for name in wanted):
        return None
    return pathlib.Path(environment["SHOAL_RUN"]) / f"store-{next(_stores)}"


def install():
    """Fill in before torch looks."""
    original = _rendezvous._rendezvous_handlers["env"]
    if hasattr(original, "shoal"):
        return

    def env_handler(url, *arguments, **options):
        fill_in(os.environ)
        path = _shoalrun_store()
        if path is None:
            yield from original(url, *arguments, **options)
            return
        size = int(os.environ["WORLD_SIZE"])
        yield dist.FileStore(str(path), size), int(os.environ["RANK"]), size
        raise RuntimeError("a job of shoalrun cannot be joined again")

    env_handler.shoal = True
    _rendezvous._rendezvous_handlers["env"] = env_handler
