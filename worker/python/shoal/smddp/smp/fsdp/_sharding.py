"""Hybrid sharding: which groups and which strategy a script's own FSDP gets.

Scripts call torch's FullyShardedDataParallel, and have imported it before torch.sagemaker.init(): so it is
its constructor that changes, in place. It does what it did wherever the script names a process group or a
device mesh, and before init().

    hybrid_shard_degree 0, no other degree    nothing changes
    1                                         NO_SHARD: every rank has all parameters
    2 and more, fewer than data parallel ranks      HYBRID_SHARD over (shard group, group of the replicas)
    as many as there are data parallel ranks        FULL_SHARD over the shard group

Experts are other ones on other expert parallel ranks: they become FSDP modules of their own, whose replicas are
those of `rep` alone.
"""

import functools
import inspect
import logging

import torch

from shoal import errors
from shoal.smddp.smp import moe_layer
from shoal.smddp.smp.checkpoint import full
from shoal.smddp.smp.fsdp import delayed_param

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
    asked = arguments.get("sharding_strategy")
    if _has_other_experts(arguments["module"]) and _is_dense(arguments.get("process_group"), state):
        arguments.update(_choose(asked, state, strategies, state.rep_process_group))
        return
    if arguments.get("process_group") is not None or arguments.get("device_mesh") is not None:
        _check_own_groups(arguments, state)
        return
    if state.is_native:
        if state.hybrid_shard_degree == 1:
            arguments["sharding_strategy"] = _replace(asked, strategies.NO_SHARD, state)
        return
    chosen = _choose(asked, state, strategies, state.dense_rep_process_group)
    _replace(asked, chosen["sharding_strategy"], state)
    arguments.update(chosen)
    if any(map(_has_other_experts, arguments["module"].modules())):
        arguments["auto_wrap_policy"] = _wrapping_experts(arguments.get("auto_wrap_policy"))


def _choose(asked, state, strategies, replicas):
    """FSDP's sharding_strategy and process_group, for parameters with these replicas of a shard."""
    zero2 = asked in (strategies._HYBRID_SHARD_ZERO2, strategies.SHARD_GRAD_OP)
    shard = state.shard_process_group
    if state.shard_size == 1:
        return {"sharding_strategy": strategies.NO_SHARD, "process_group": replicas}
    if replicas.size() == 1:
        chosen = strategies.SHARD_GRAD_OP if zero2 else strategies.FULL_SHARD
        return {"sharding_strategy": chosen, "process_group": shard}
    chosen = strategies._HYBRID_SHARD_ZERO2 if zero2 else strategies.HYBRID_SHARD
    return {"sharding_strategy": chosen, "process_group": (shard, replicas)}


def _has_other_experts(module):
    """Whether these are experts, and other ones on other ranks."""
    return isinstance(module, moe_layer.Experts) and module.shoal_place.ranks > 1


def _is_dense(group, state):
    """Whether a process_group is what _choose() gives what is not an expert."""
    shard, replicas = state.shard_process_group, state.dense_rep_process_group
    groups = group if isinstance(group, tuple) else (group,)
    return state.ep_size > 1 and all(one is shard or one is replicas for one in groups)


def _wrapping_experts(policy):
    """A script's auto_wrap_policy, which wraps experts too."""
    from torch.distributed.fsdp import wrap

    if policy is None:
        return wrap.ModuleWrapPolicy({moe_layer.Experts})
    if isinstance(policy, wrap.ModuleWrapPolicy):
        return wrap.ModuleWrapPolicy({*policy._module_classes, moe_layer.Experts})
    if not callable(policy):
        raise errors.UnsupportedError(
            f"FSDP: an auto_wrap_policy that is a {type(policy).__name__} cannot be had with expert parallelism; "
            "a ModuleWrapPolicy or a function can"
        )

    def wrap_experts_too(module, recurse, nonwrapped_numel):
        if not recurse and isinstance(module, moe_layer.Experts):
            return True
        return policy(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel)

    return wrap_experts_too


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
