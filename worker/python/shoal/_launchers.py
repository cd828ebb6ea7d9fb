"""The place of this process in its job, as the launchers name it. Pure functions over a mapping.

torchrun's names are those that torch reads ("env://"). Open MPI's are of its mpirun, and so of
SageMaker's smddprun; MPICH's and Intel MPI's of their process managers (PMI).
"""

import re
from typing import NamedTuple, Optional

from shoal import errors
from shoal._launcher_table import LAUNCHERS

# The numbers from here on are of no tasks of srun's, but of the script of sbatch, the shell of salloc (slurm.h).
_SLURM_STEPS = 2**32 - 16


class Launcher(NamedTuple):
    """The variables of one: the rank, the number of ranks, and the same within the node."""

    rank: str
    size: str
    local_rank: str
    local_size: str


TORCHRUN = Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
MPIRUN = tuple(
    Launcher(*(LAUNCHERS[name][field] for field in Launcher._fields)) for name in ("mpirun", "mpiexec")
)


class Value(NamedTuple):
    """A number, and the variable that says it."""

    number: int
    name: str

    def __str__(self):
        return f"{self.name}={self.number}"


class Place(NamedTuple):
    """The place of a process in its job; a field that is not known is None."""

    rank: Optional[Value] = None
    size: Optional[Value] = None
    local_rank: Optional[Value] = None
    local_size: Optional[Value] = None


def read_number(environment, name):
    """The Value of a variable, None where it is not set. Raises InvalidError."""
    text = environment.get(name)
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit()):
        raise errors.InvalidError(f'{name} is "{text}", which is no number')
    return Value(int(text), name)


def find_place(environment):
    """The Place that all launchers in the environment agree on. Raises InvalidError with the names
    of two variables that do not."""
    found = _read(environment, TORCHRUN)
    # torchrun and shoalrun may themselves be what mpirun has started, once on each node.
    inner = found.rank and ("TORCHELASTIC_RUN_ID" in environment or "SHOAL_JOB" in environment)
    for launcher in () if inner else MPIRUN:
        other = _read(environment, launcher)
        for one, two in zip(found, other):
            if one and two and one.number != two.number:
                raise errors.InvalidError(f"{one} and {two} contradict each other")
        found = Place(*(one or two for one, two in zip(found, other)))
    for rank, size in ((found.rank, found.size), (found.local_rank, found.local_size)):
        if rank and size and rank.number >= size.number:
            raise errors.InvalidError(f"{rank} and {size} contradict each other: ranks count from 0")
    if found.size and found.local_size and found.local_size.number > found.size.number:
        raise errors.InvalidError(
            f"{found.local_size} and {found.size} contradict each other:"
            " a node has no more ranks than the job"
        )
    return found


def is_task_of_srun(environment):
    """Whether srun has started this process as one of its tasks. The script of sbatch has a task number too, but is
    none of them: what it has, every srun in it would inherit."""
    number = environment.get(LAUNCHERS["srun"]["marked_by"], "")
    return LAUNCHERS["srun"]["rank"] in environment and number.isdigit() and int(number) < _SLURM_STEPS


def first_host_of_slurm(environment):
    """The first of Slurm's host list, "" without one: "gpu[03-07,12],cpu1" gives "gpu03"."""
    hosts = environment.get(LAUNCHERS["srun"]["hosts"]) or environment.get("SLURM_JOB_NODELIST", "")
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts).group()
    return re.sub(r"\[(\d*)[^\]]*\]", r"\1", first)


def _read(environment, launcher):
    return Place(*(read_number(environment, name) for name in launcher))
