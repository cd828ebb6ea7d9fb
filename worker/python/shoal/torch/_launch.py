"""Fills in, when init_process_group asks, the variables that torch's "env://" wants and a launcher leaves out: shoalrun
(no store), srun (nothing of torch's) and SageMaker (no master). Variables that are set already stay."""

import importlib
import itertools
import os
import pathlib

import torch.distributed as dist

from shoal import _launchers
from shoal._launcher_table import LAUNCHERS
from shoal.torch import _hosts

# torch.distributed has a function of the same name.
_rendezvous = importlib.import_module("torch.distributed.rendezvous")

_stores = itertools.count()


def fill_in(environment):
    """Fill in the variables that srun and SageMaker leave out. environment: a mapping, changed."""
    _fill_in_slurm(environment)
    _fill_in_sagemaker(environment)


def _fill_in_slurm(environment):
    """Task number and count, and the first host of the list as master, in a step of srun's."""
    srun = LAUNCHERS["srun"]
    if "RANK" in environment or not _launchers.is_task_of_srun(environment):
        return
    environment["RANK"] = environment[srun["rank"]]
    environment.setdefault("WORLD_SIZE", environment.get(srun["size"]) or environment.get(srun["other_size"], "1"))
    if srun["local_rank"] in environment:
        environment.setdefault("LOCAL_RANK", environment[srun["local_rank"]])
    environment.setdefault("MASTER_ADDR", _launchers.first_host_of_slurm(environment) or "127.0.0.1")
    job = int(environment.get("SLURM_JOB_ID", "0")) + int(environment[srun["marked_by"]])
    environment.setdefault("MASTER_PORT", str(20000 + job % 20000))


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
