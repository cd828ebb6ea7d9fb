"""Process groups and device meshes that a script names itself, to FSDP, fully_shard or DDP: they may not join
ranks whose parameters are different ones."""

import functools

import torch
import torch.distributed as dist

from shoal import errors
from shoal.smddp.smp import _hooks, _meshes
from shoal.smddp.smp.moe_layer import place_of
from shoal.smddp.smp.tensor_parallel import _divided

# Names of the function that makes fully_shard's mesh: in the last versions of torch, and in 2.6.
DEFAULT_MESH = ("_init_default_mesh", "_init_default_fully_shard_mesh")


def install(state):
    """Let DDP, of which shoal's is a subclass, and fully_shard look at the groups that they are given."""
    if not hasattr(torch.nn.parallel.DistributedDataParallel.__init__, "shoal_original"):
        _check_in_ddp(torch.nn.parallel.DistributedDataParallel, state)
    _check_in_fully_shard(state)


def check(what, groups, state, of_expert):
    """Raise unless the ranks of each group have the same parameters, and two groups one rank in common.
    what: whose they are. of_expert: whether the parameters are an expert's."""
    ranks = [dist.get_process_group_ranks(group) for group in groups]
    for members in ranks:
        for dimension in ("tp", "ep") if of_expert else ("tp",):
            _check_same(what, members, dimension, state.ranker)
    if len(ranks) == 2:
        both = sorted(set(ranks[0]) & set(ranks[1]))
        if len(both) > 1:
            raise errors.InvalidError(
                f"{what}: groups {ranks[0]} and {ranks[1]} overlap in ranks {both[0]} and {both[1]}; "
                "the shards of a model and the replicas of a shard have one rank in common"
            )


def _check_same(what, members, dimension, ranker):
    at = [(rank, ranker.coordinates(rank)[dimension]) for rank in members]
    first, here = at[0]
    for rank, there in at:
        if there != here:
            other = next(ranks for ranks in ranker.groups(dimension) if first in ranks)
            raise errors.InvalidError(
                f"{what} has ranks {first} and {rank}, which differ in {dimension} ({here} and {there}): they have "
                f"different parts of the parameters. It has ranks {members}, and "
                f"torch.sagemaker.state.{dimension}_process_group, which it may not overlap so, {other}"
            )


def _check_in_ddp(kind, state):
    original = kind.__init__
    bind = _hooks.binder(original)

    @functools.wraps(original)
    def construct(self, *given, **named):
        if state.is_initialized and not state.is_native:
            arguments = bind(self, *given, **named)
            _check_ddp(arguments, state)
        original(self, *given, **named)

    construct.shoal_original = original
    kind.__init__ = construct


def _check_ddp(arguments, state):
    module, what = arguments["module"], "DistributedDataParallel's process_group"
    if arguments.get("device_mesh") is not None:
        groups, what = _meshes.groups_of(arguments["device_mesh"]), "DistributedDataParallel's device_mesh"
    else:
        groups = [arguments.get("process_group") or dist.GroupMember.WORLD]
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    experts = _experts_of(module)
    kinds = {id(p) in experts for name, p in module.named_parameters() if p.requires_grad and name not in ignored}
    if kinds == {True, False}:
        of_experts, of_rest = (
            dist.get_process_group_ranks(group) for group in (state.rep_process_group, state.dense_rep_process_group)
        )
        raise errors.UnsupportedError(
            f"DistributedDataParallel: a {type(module).__name__} has experts, with replicas on ranks {of_experts} "
            f"(rep_process_group), and other parameters, with replicas on {of_rest} (dense_rep_process_group), "
            "and it takes means over one group: use FSDP"
        )
    if True in kinds or _divided.divided_parameters(module):
        check(what, groups, state, of_expert=True in kinds)


def _experts_of(module):
    """The ids of parameters that are other ones on other expert parallel ranks."""
    return {id(p) for child in module.modules() if place_of(child) for p in child.parameters(recurse=False)}


def _check_in_fully_shard(state):
    """A mesh that is not named is that of the configuration. Scripts have imported fully_shard before: it is what
    it calls that changes."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group, _fully_shard

    name = _hooks.find(_fully_shard, *DEFAULT_MESH)
    default, kind = getattr(_fully_shard, name), _fsdp_param_group.FSDPParamGroup
    if hasattr(kind.__init__, "shoal_original"):
        return
    original = kind.__init__
    bind = _hooks.binder(original)

    @functools.wraps(default)
    def make_mesh(*given, **named):
        if not state.is_initialized or state.is_native:
            return default(*given, **named)
        return state.dp_device_mesh

    @functools.wraps(original)
    def construct(self, *given, **named):
        if state.is_initialized and not state.is_native:
            arguments = bind(self, *given, **named)
            parameters = {id(p) for p in arguments["params"]}
            of_expert = any(not _experts_of(child).isdisjoint(parameters) for child in arguments["modules"])
            check("fully_shard's mesh", _meshes.groups_of(arguments["mesh_info"].mesh), state, of_expert)
        original(self, *given, **named)

    construct.shoal_original = original
    setattr(_fully_shard, name, make_mesh)
    kind.__init__ = construct
