"""Hybrid sharding: which groups and which strategy a script's own FSDP gets.

Scripts call torch's FullyShardedDataParallel, and have imported it before torch.sagemaker.init(): so it is
its constructor that changes, in place. It does what it did wherever the script names a process group or a
device mesh, and before init().

    hybrid_shard_degree 0, no other degree    nothing changes
    1                                         NO_SHARD: every rank has all parameters
    2 and more, fewer than data parallel ranks      HYBRID_SHARD over (shard group, group of the replicas)
    as many as there are data parallel ranks        FULL_SHARD over the shard group
"""

import functools
import inspect
import logging

import torch

from shoal import errors
from shoal.smddp.smp.fsdp import delayed_param
from shoal.smddp.smp.checkpoint import full

_log = logging.getLogger("shoal.smddp")


def install(state):
    """Let FSDP's constructor ask `state` from now on. Where this torch has no FSDP, nothing happens."""
    try:
        from torch.distributed import fsdp
    except (ImportError, ValueError):  # torch 1.13 on Python 3.11
        return
    kind = fsdp.FullyShardedDataParallel
    if hasattr(kind.__init__, "shoal_original"):
        return
    original = kind.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def construct(self, *given, post_param_init_fn=None, **named):
        arguments = signature.bind(self, *given, **named).arguments
        arguments.pop("self")
        arguments = {**arguments, **arguments.pop("kwargs", {})}
        if state.is_initialized:
            set_groups(arguments, state, fsdp.ShardingStrategy)
        if post_param_init_fn is not None:
            delayed_param.call_after_init(arguments, post_param_init_fn)
        original(self, **arguments)
        if state.is_initialized and state.tp_size > 1:
            full.join_in_full_state_dicts(self)

    construct.shoal_original = original
    kind.__init__ = construct
    _let_cpu_states_be_sent()


def _let_cpu_states_be_sent():
    """torch takes sync_module_states for tensors on a GPU only, which is what nccl could send. Where there is
    no GPU, what is on the CPU is sent."""
    from torch.distributed.fsdp import _init_utils

    if hasattr(_init_utils, "_check_module_states_for_sync_module_states") and not torch.cuda.is_available():
        _init_utils._check_module_states_for_sync_module_states = lambda states: None


def set_groups(arguments, state, strategies):
    """Add to FSDP's arguments what the configuration says: process_group, sharding_strategy, and a device
    where torch would refuse to guess one. strategies: torch's ShardingStrategy."""
    if arguments.get("device_id") is None and not torch.cuda.is_available():
        arguments["device_id"] = torch.device("cpu")
    if arguments.get("process_group") is not None or arguments.get("device_mesh") is not None:
        _check_own_groups(arguments, state)
        return
    asked = arguments.get("sharding_strategy")
    if state.is_native:
        if state.hybrid_shard_degree == 1:
            arguments["sharding_strategy"] = _replace(asked, strategies.NO_SHARD, state)
        return
    zero2 = asked == strategies._HYBRID_SHARD_ZERO2
    replicas = state.dense_rep_process_group
    if state.shard_size == 1:
        chosen, group = strategies.NO_SHARD, replicas
    elif replicas.size() == 1:
        chosen = strategies.SHARD_GRAD_OP if zero2 else strategies.FULL_SHARD
        group = state.shard_process_group
    else:
        chosen = asked if zero2 else strategies.HYBRID_SHARD
        group = (state.shard_process_group, replicas)
    arguments.update(sharding_strategy=_replace(asked, chosen, state), process_group=group)


# What differs in the groups alone.
_ALIKE = (
    {"FULL_SHARD", "HYBRID_SHARD"},
    {"SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"},
)


def _replace(asked, chosen, state):
    """The configuration's strategy; the log says so where the script asks for a contrary one."""
    if asked not in (None, chosen) and {asked.name, chosen.name} not in _ALIKE and state.rank == 0:
        _log.warning(
            "hybrid_shard_degree %d makes FSDP's sharding_strategy %s, in place of %s",
            state.hybrid_shard_degree,
            chosen.name,
            asked.name,
        )
    return chosen


def _check_own_groups(arguments, state):
    """Groups that the script names itself may not join tensor parallel ranks: their parameters differ."""
    if state.tp_size == 1 or arguments.get("process_group") is None:
        return
    groups = arguments["process_group"]
    for group in groups if isinstance(groups, tuple) else (groups,):
        ranks = torch.distributed.get_process_group_ranks(group)
        at = {rank: state.ranker.get_tp_rank(rank) for rank in ranks}
        other = next((rank for rank in ranks if at[rank] != at[ranks[0]]), None)
        if other is not None:
            raise errors.InvalidError(
                f"FSDP's process_group has ranks {ranks[0]} and {other}, whose tensor parallel ranks are "
                f"{at[ranks[0]]} and {at[other]}: they have different parts of the parameters"
            )
