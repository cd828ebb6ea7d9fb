"""Hybrid sharding: which groups and which strategy a script's own FSDP gets.

Scripts call torch's FullyShardedDataParallel, and have imported it before torch.sagemaker.init(): so it is
its constructor that changes, in place. It does what it did wherever the script names a process group or a
device mesh, and before init().

    hybrid_shard_degree 0, no other degree    nothing changes
    1                                         NO_SHARD: every rank has all parameters
    2 and more, fewer than data parallel ranks      HYBRID_SHARD over (shard group, group of the replicas)
    as many as there are data parallel ranks        FULL_SHARD over the shard group

Experts are other ones on other expert parallel ranks: their replicas are those of `rep` alone
(_expert_sharding.py).
"""

import functools
import inspect
import logging

import torch

from shoal.smddp.smp import _hooks, _meshes
from shoal.smddp.smp.checkpoint import full
from shoal.smddp.smp.fsdp import _expert_sharding, _own_groups, delayed_param
from shoal.smddp.smp.moe_layer import place_of

_log = logging.getLogger("shoal.smddp")


def install(state):
    """Let FSDP's constructor ask `state` from now on."""
    from torch.distributed import fsdp

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
        layers = _expert_sharding.set_aside(arguments, kind)
        original(self, **arguments)
        _expert_sharding.wrap(layers, arguments, kind)
        if state.is_initialized:
            _leave_out_other_experts(self, state, fsdp.ShardingStrategy)
            full.join_in_full_state_dicts(self)

    construct.shoal_original = original
    kind.__init__ = construct
    _let_cpu_states_be_sent()


def _let_cpu_states_be_sent():
    """torch takes sync_module_states for tensors on a GPU only, which is what nccl could send. Where there is
    no GPU, what is on the CPU is sent."""
    from torch.distributed.fsdp import _init_utils

    name = _hooks.find(_init_utils, "_check_module_states_for_sync_module_states")
    if not torch.cuda.is_available():
        setattr(_init_utils, name, lambda *given, **named: None)


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
    of_expert = place_of(arguments["module"]) is not None
    replicas = state.rep_process_group if of_expert else state.dense_rep_process_group
    chosen = _choose(asked, state, strategies, replicas)
    if not of_expert:
        _replace(asked, chosen["sharding_strategy"], state)
    arguments.update(chosen)


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


def _leave_out_other_experts(module, state, strategies):
    """Where nothing is sharded, FSDP's group is all that have the same parameters: other experts are in it. Scripts
    save checkpoints with FSDP's group, and FSDP cuts what it saves by it. For this reason FSDP's group becomes that of
    the same experts; means are taken over the other group all the same."""
    everyone = state.dense_rep_process_group
    is_one = module.sharding_strategy == strategies.NO_SHARD and module.process_group is everyone
    if not is_one or everyone is state.rep_process_group or everyone is None:
        return
    from torch.distributed.algorithms._comm_hooks import default_hooks

    module._comm_hook = default_hooks.allreduce_hook
    module._comm_hook_state = default_hooks.DefaultState(process_group=everyone)
    module.process_group = state.rep_process_group
    module.rank, module.world_size = module.process_group.rank(), module.process_group.size()


# Strategies that differ only in their groups.
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
    groups = arguments.get("process_group")
    what = "FSDP's process_group"
    if groups is None:
        groups, what = tuple(_meshes.groups_of(arguments["device_mesh"])), "FSDP's device_mesh"
    groups = groups if isinstance(groups, tuple) else (groups,)
    _own_groups.check(what, groups, state, of_expert=place_of(arguments["module"]) is not None)
