"""torch.sagemaker.grad_norm: clipping by the norm of a gradient that is sharded and divided."""

import dataclasses
import math
from typing import Any, Optional

import torch
import torch.distributed as dist

from shoal.smddp.smp.fsdp import module_utils
from shoal.smddp.smp.moe_layer import place_of
from shoal.smddp.smp.tensor_parallel._divided import Divided


@dataclasses.dataclass
class _Piece:
    """This rank's piece of a parameter's gradient. groups: those over which the powers of pieces add up."""

    groups: tuple
    gradient: Optional[torch.Tensor]
    scaled: Any = None  # the tensor that is scaled, of which `gradient` may be a view


@torch.no_grad()
def clip_grad_norm_(model, max_norm, norm_type=2.0):
    """Scale the gradients of an FSDP model, in place, so that the norm of the whole gradient is max_norm at the
    most; returns the norm before. Each parameter counts once, whoever has which part of it: the norm is that
    of the model in one process. All ranks call it."""
    norm_type = float(norm_type)
    by_groups = {}
    for piece in _pieces(model):
        by_groups.setdefault(piece.groups, []).append(piece)
    powers = [_power_over(groups, pieces, norm_type) for groups, pieces in by_groups.items()]
    powers = torch.stack(powers) if powers else torch.zeros(1)
    norm = powers.max() if math.isinf(norm_type) else powers.sum() ** (1.0 / norm_type)
    scale = torch.clamp(float(max_norm) / (norm + 1e-6), max=1.0)
    whole = {id(p.scaled): p.scaled for pieces in by_groups.values() for p in pieces if p.scaled is not None}
    for gradient in whole.values():
        gradient.mul_(scale.to(gradient.device, gradient.dtype))
    return norm


def _power_over(groups, pieces, norm_type):
    """The sum of the powers of all elements (for the infinite norm the greatest), in f32."""
    power = torch.zeros((), device=module_utils.default_device())
    own = [p.gradient for p in pieces if p.gradient is not None and p.gradient.numel() > 0]
    if own:
        norms = torch.stack([torch.linalg.vector_norm(g.float(), norm_type).to(power.device) for g in own])
        power = norms.max() if math.isinf(norm_type) else (norms**norm_type).sum()
    for group in groups:
        dist.all_reduce(power, dist.ReduceOp.MAX if math.isinf(norm_type) else dist.ReduceOp.SUM, group=group)
    return power


def _pieces(model):
    """In the same order, with the same groups, on all ranks."""
    seen = set()
    for module in _fsdp_modules(model):
        handle = module._handle
        if handle is None:
            continue
        seen.update(map(id, (handle.flat_param, *(handle.flat_param._params or ()))))
        sharded = (module.process_group,) if handle.uses_sharded_strategy else ()
        for info, piece in zip(handle.flat_param._param_infos, _of_handle(handle)):
            piece.groups = sharded + _parted_over(info.module, info.param_name)
            yield piece
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield _Piece(_parted_over(module, name), parameter.grad, parameter.grad)


def _fsdp_modules(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel.fsdp_modules(model)


def _of_handle(handle):
    """A piece for each parameter that FSDP has flattened into one."""
    flat = handle.flat_param
    if handle._use_orig_params:
        return [_Piece((), p.grad, p.grad) for p in flat._params]
    if flat.grad is None:
        return [_Piece((), None) for _ in flat._param_infos]
    gradient = flat.grad.flatten()  # a view
    return [
        _Piece((), gradient[s.offset_in_shard :][: s.numel_in_shard] if s.in_shard else None, gradient)
        for s in flat._shard_param_infos
    ]


def _parted_over(module, name):
    """The groups whose ranks have other parts of a parameter, or other experts, in its place."""
    groups = (module.tp.group,) if isinstance(module, Divided) and name in module.splits else ()
    place = place_of(module)
    return groups + ((place.group,) if place else ())
