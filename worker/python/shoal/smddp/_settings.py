"""The settings that SageMaker and the launchers make, read and checked before a job starts.

read() is a pure function over the environment and resourceconfig.json. apply() puts into the
environment what scripts and torch look for and a launcher has left out. The names are those of the
public training toolkit (aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md), and of Amazon's
guides to its library.
"""

import json
import os
import zlib
from typing import NamedTuple, Optional

from shoal import _launchers, errors
from shoal._launcher_table import LAUNCHERS
from shoal.smddp import _log
from shoal.torch import _hosts, _launch

# Variables of Amazon's library that mean nothing here, and why.
_UNUSED = {
    "SMDATAPARALLEL_OPTIMIZE_SDP": "sharded training has one way here",
    "SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES": "no buffers for it are on the GPU",
    "SMDDP_AG_SORT_BUFFER_SIZE_BYTES": "no buffers for it are on the GPU",
    "SAGEMAKER_INSTANCE_TYPE": "any machine will do",
}
_USED = (
    "SMDATAPARALLEL_LOCAL_RANK",
    "SMDATAPARALLEL_SERVER_ADDR",
    "SMDATAPARALLEL_SERVER_PORT",
    "SMDATAPARALLEL_USE_HOMOGENEOUS",
    "SMDATAPARALLEL_USE_SINGLENODE",
)
# Keys of SM_FRAMEWORK_PARAMS that mean nothing here, and why.
_UNUSED_PARAMETERS = {
    "sagemaker_instance_type": "any machine will do",
    "sagemaker_distributed_dataparallel_custom_mpi_options": "this process has been started already",
    "sagemaker_mpi_custom_mpi_options": "this process has been started already",
}
_KINDS = {dict: "object", list: "list"}
_PROCESSES = "sagemaker_mpi_num_of_processes_per_host"
_USED_PARAMETERS = ("sagemaker_distributed_dataparallel_enabled", "sagemaker_mpi_enabled", _PROCESSES)


class Settings(NamedTuple):
    """Settings of a job as a process sees them; a field that is not known is None, or empty."""

    place: _launchers.Place
    master: Optional[str]  # the host of rank 0, where torch's store is
    port: Optional[int]
    hosts: list  # of the job, the first one rank 0's
    current_host: Optional[str]
    hyperparameters: dict  # SM_HPS: the script's own
    unused: list  # ["NAME (why it means nothing here)"]

    @property
    def started(self):
        """A launcher has started this process, as one of a job."""
        return bool(self.place.rank and self.place.size)


def read(environment, resource_config):
    """The Settings. environment: a mapping; resource_config: what resourceconfig.json says, {} where
    there is none. Raises InvalidError: with a variable that is malformed, or with two things that
    contradict each other."""
    place = _launchers.find_place(environment)
    hosts, current_host = _find_hosts(environment, resource_config)
    parameters = _read_json(environment, "SM_FRAMEWORK_PARAMS", dict) or {}
    _check_ranks(environment, place, hosts, parameters)
    _check_one_node(environment, place, hosts)
    _check_local_rank(environment, place)
    port = _launchers.read_number(environment, "MASTER_PORT")
    port = port or _launchers.read_number(environment, "SMDATAPARALLEL_SERVER_PORT")
    if port and port.number > 65535:
        raise errors.InvalidError(f"{port} is no port")
    return Settings(
        place,
        _find_master(environment, place, hosts),
        port.number if port else None,
        hosts,
        current_host,
        _read_json(environment, "SM_HPS", dict) or {},
        _find_unused(environment, parameters),
    )


def apply(environment=None):
    """Read the surroundings of this process, and complete them: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
    MASTER_ADDR, MASTER_PORT and SMDATAPARALLEL_LOCAL_RANK, which scripts and torch look for. Variables that are set
    stay. Returns the Settings. May be called again. Raises as read()."""
    environment = os.environ if environment is None else environment
    settings = read(environment, _hosts.resource_config())
    for value, name in zip(settings.place, _launchers.TORCHRUN):
        if value:
            environment.setdefault(name, str(value.number))
    if settings.started and settings.master:
        environment.setdefault("MASTER_ADDR", settings.master)
        environment.setdefault("MASTER_PORT", str(settings.port or _choose_port(environment)))
    _launch.fill_in(environment)  # srun's
    settings = read(environment, _hosts.resource_config())
    local_rank = settings.place.local_rank
    if local_rank:
        environment.setdefault("SMDATAPARALLEL_LOCAL_RANK", str(local_rank.number))
    if settings.unused and (not local_rank or local_rank.number == 0):
        _log.warn("without a meaning here: " + ", ".join(settings.unused))  # in each node's log
    return settings


def _find_hosts(environment, resource_config):
    """(the hosts of the job, this host)."""
    config = resource_config or _read_json(environment, "SM_RESOURCE_CONFIG", dict) or {}
    told = "resourceconfig.json" if resource_config else "SM_RESOURCE_CONFIG"
    hosts = _read_names(environment, "SM_HOSTS")
    listed = config.get("hosts") or []
    if hosts and listed and sorted(hosts) != sorted(listed):
        raise errors.InvalidError(
            f"SM_HOSTS names {', '.join(hosts)} and {told} names {', '.join(map(str, listed))}"
        )
    current = environment.get("SM_CURRENT_HOST")
    if current and config.get("current_host") not in (None, current):
        raise errors.InvalidError(
            f"SM_CURRENT_HOST is {current}, and {told} says {config['current_host']}"
        )
    hosts, current = hosts or list(listed), current or config.get("current_host")
    if hosts and current and current not in hosts:
        name = "SM_HOSTS" if environment.get("SM_HOSTS") else told
        raise errors.InvalidError(
            f"this host is {current} (SM_CURRENT_HOST), and {name} names {', '.join(hosts)}"
        )
    return _choose_hosts(environment, hosts), current


def _choose_hosts(environment, hosts):
    """Return the hosts of the instance groups that the job runs on, where a cluster has several groups; else
    `hosts`."""
    groups = _read_json(environment, "SM_INSTANCE_GROUPS_DICT", dict) or {}
    chosen = []
    for name in _read_names(environment, "SM_DISTRIBUTION_INSTANCE_GROUPS"):
        group = groups.get(name)
        chosen += group.get("hosts", []) if isinstance(group, dict) else []
    return chosen or hosts


def _check_ranks(environment, place, hosts, parameters):
    """The number of ranks against that of hosts, and of processes on each, or on this one: others may have other
    numbers of GPUs."""
    each = _processes_per_host(parameters)
    here = each or _launchers.read_number(environment, "SM_NUM_GPUS")
    if not here or here.number == 0:  # no GPUs: as many ranks as the launcher likes
        each, here = None, place.local_size
    if here and place.local_size and here.number != place.local_size.number:
        raise errors.InvalidError(f"{here} and {place.local_size} contradict each other")
    if not hosts or not place.size:
        return
    text = f"the hosts are {len(hosts)} ({', '.join(hosts)}: SM_HOSTS)"
    if each and len(hosts) * each.number != place.size.number:
        raise errors.InvalidError(
            f"{text} with {each}, which makes {len(hosts) * each.number} ranks, and {place.size}"
        )
    least = (here.number if here else 1) + len(hosts) - 1
    if place.size.number < least or here and len(hosts) == 1 and place.size.number != least:
        here = f", here {here}" if here else ""
        raise errors.InvalidError(f"{text}{here}, which makes {least} ranks at least, and {place.size}")


def _processes_per_host(parameters):
    number = parameters.get(_PROCESSES)
    if number is None:
        return None
    name = f"{_PROCESSES} (SM_FRAMEWORK_PARAMS)"
    return _launchers.read_number({name: str(number)}, name)


def _check_one_node(environment, place, hosts):
    """Against SMDATAPARALLEL_USE_SINGLENODE."""
    name = "SMDATAPARALLEL_USE_SINGLENODE"
    if environment.get(name, "0") == "0":
        return
    if len(hosts) > 1:
        raise errors.InvalidError(
            f"{name}={environment[name]} and SM_HOSTS, which names {', '.join(hosts)}, contradict each other"
        )
    if place.size and place.local_size and place.size.number != place.local_size.number:
        raise errors.InvalidError(
            f"{name}={environment[name]}, but {place.local_size} and {place.size}: there are further nodes"
        )


def _check_local_rank(environment, place):
    theirs = _launchers.read_number(environment, "SMDATAPARALLEL_LOCAL_RANK")
    if theirs and place.local_rank and theirs.number != place.local_rank.number:
        raise errors.InvalidError(f"{theirs} and {place.local_rank} contradict each other")


def _find_master(environment, place, hosts):
    """The host of rank 0. None where it is not known, or where shoalrun's store is a file."""
    named = environment.get("MASTER_ADDR") or environment.get("SMDATAPARALLEL_SERVER_ADDR")
    if named or "SHOAL_JOB" in environment:
        return named
    if hosts:
        return hosts[0]
    if not place.rank or place.rank.name == _launchers.TORCHRUN.rank:
        return None
    if place.size and place.local_size and place.size.number == place.local_size.number:
        return "127.0.0.1"
    return _launchers.first_host_of_slurm(environment) or None


def _choose_port(environment):
    """Return a port: all ranks of a job of mpirun's get the same one, and another job seldom gets it."""
    for name in ("OMPI_MCA_ess_base_jobid", LAUNCHERS["mpirun"]["job"], LAUNCHERS["mpiexec"]["job"]):
        if environment.get(name):
            return 20000 + zlib.crc32(environment[name].encode()) % 10000
    return 29500


def _find_unused(environment, parameters):
    """["NAME (why)"] of what was meant for Amazon's library and means nothing here."""
    found = {}
    for name in environment:
        if name in _UNUSED:
            found[name] = _UNUSED[name]
        elif name.startswith(("SMDATAPARALLEL_", "SMDDP_")) and name not in _USED:
            found[name] = "not known"
    for name in parameters:
        if name not in _USED_PARAMETERS:
            found[f"SM_FRAMEWORK_PARAMS' {name}"] = _UNUSED_PARAMETERS.get(name, "not known")
    return [f"{name} ({why})" for name, why in sorted(found.items())]


def _read_names(environment, name):
    """A list of names in JSON, [] where it is not set. Raises InvalidError."""
    names = _read_json(environment, name, list) or []
    if not all(isinstance(one, str) for one in names):
        raise errors.InvalidError(f"{name} is no list of names: {environment[name]}")
    return names


def _read_json(environment, name, kind):
    """Return the variable's JSON, which is of this kind; None where it is not set. Raises InvalidError."""
    text = environment.get(name)
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError as problem:
        raise errors.InvalidError(f"{name} is no JSON: {problem}") from None
    if not isinstance(value, kind):
        raise errors.InvalidError(f"{name} is {text}, which is no JSON {_KINDS[kind]}")
    return value
