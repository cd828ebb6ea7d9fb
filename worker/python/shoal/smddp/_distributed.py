"""smdistributed.dataparallel.torch.distributed, as versions 1.0 to 1.3 of the library had it: names,
signatures, defaults. Groups, which it only names, are those of torch.distributed."""

import os

import torch.distributed as dist
from torch.distributed import get_rank, get_world_size, group, is_initialized

from shoal import errors
from shoal.smddp import _log, _settings, _torch_smddp  # noqa: F401  (the backend)
from shoal.torch import _process_group

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_initialized",
    "reduce",
]

_OURS = (None, "smddp", "shoal")


class ReduceOp:
    """The operations, as torch has them."""

    AVERAGE = dist.ReduceOp.AVG
    SUM = dist.ReduceOp.SUM
    MIN = dist.ReduceOp.MIN
    MAX = dist.ReduceOp.MAX


def is_available():
    """Whether a launcher has started this process, as one of a job."""
    return is_initialized() or _settings.apply().started


def init_process_group(backend=None, *arguments, **options):
    """The group of all ranks. The arguments are those of torch's function and may all be left out.
    Where the group is there already, this is nothing. Raises InvalidError when it is of another
    backend, or when what launcher and SageMaker say is contradictory."""
    if is_initialized():
        if _process_group.member_of(dist.GroupMember.WORLD) is None:
            raise errors.InvalidError(
                f"the process group is there already, and is of {dist.get_backend()}: smddp cannot be it"
            )
        return
    if backend not in _OURS:
        _log.warn_on_rank_0(f"init_process_group: the backend {backend} is not asked here, it is smddp")
    _settings.apply()
    dist.init_process_group("smddp", *arguments, **options)


def get_local_rank():
    """The number of this rank on its node: as the launcher says, or else by the nodes of the group."""
    told = os.environ.get("LOCAL_RANK")  # whatever the launcher calls it: apply() has seen to that
    if told is not None:
        return int(told)
    member = _process_group.member_of(dist.GroupMember.WORLD)
    if member is None:
        raise errors.StateError("get_local_rank: LOCAL_RANK is not set: init_process_group() first")
    return member.session.meeting.local_rank


def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    """In place; op None: the sum. All of these return the work with async_op, else None."""
    return dist.all_reduce(tensor, ReduceOp.SUM if op is None else op, group, async_op)


def broadcast(tensor, src=0, group=None, async_op=False):
    return dist.broadcast(tensor, src, group, async_op)


def all_gather(tensor_list, tensor, group=None, async_op=False):
    """tensor_list[r] becomes rank r's tensor."""
    return dist.all_gather(tensor_list, tensor, group, async_op)


def reduce(tensor, dst=0, op=ReduceOp.SUM, group=None, async_op=False):
    """In place on rank dst."""
    return dist.reduce(tensor, dst, ReduceOp.SUM if op is None else op, group, async_op)


def all_to_all_single(
    output_t, input_t, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False
):
    """Exchange parts: part r of input_t, along the first dimension, goes to rank r, and part r of output_t comes from
    it."""
    return dist.all_to_all_single(
        output_t, input_t, output_split_sizes, input_split_sizes, group, async_op
    )


def barrier(group=None, async_op=False):
    return dist.barrier(group, async_op)
