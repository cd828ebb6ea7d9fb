"""torch.distributed.DeviceMesh of the grid of ranks, made of the process groups that torch.sagemaker.state has.

Dimensions have the names that torch's own libraries give them: dp_replicate, ep, dp_shard, tp.
"""

import torch
import torch.distributed as dist

from shoal.smddp.smp._ranker import DIMENSIONS
from shoal.smddp.smp.fsdp import module_utils

NAMES = {"rep": "dp_replicate", "ep": "ep", "shard": "dp_shard", "tp": "tp"}


def of_grid(state):
    """All four dimensions; where the script's own FSDP is left as it is, all ranks in the one that FSDP's are."""
    if state.is_native:
        name = "rep" if state.hybrid_shard_degree == 1 else "shard"
        return _make([dist.GroupMember.WORLD], torch.arange(state.world_size), (NAMES[name],))
    groups = [getattr(state, f"{dimension}_process_group") for dimension in DIMENSIONS]
    return _make(groups, _ranks(state), tuple(NAMES[dimension] for dimension in DIMENSIONS))


def of_data(state):
    """[replicas, shards] of what is not an expert: what FSDP's device_mesh and fully_shard's mesh take."""
    if state.is_native:
        return of_grid(state)
    groups = [state.dense_rep_process_group, state.shard_process_group]
    ranks = _ranks(state)[..., state.tp_rank].flatten(0, 1)
    return _make(groups, ranks, (NAMES["rep"], NAMES["shard"]))


def _ranks(state):
    return torch.arange(state.world_size).reshape(state.ranker.shape)


def _make(groups, ranks, names):
    make = dist.DeviceMesh.from_group
    kind = module_utils.default_device().type
    if len(groups) == 1:
        return make(groups[0], kind, mesh_dim_names=names)
    return make(groups, kind, mesh=ranks, mesh_dim_names=names)


def groups_of(mesh):
    """The process group of each dimension."""
    return mesh.get_all_groups()
