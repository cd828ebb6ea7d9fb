"""Full state dicts of a model that is divided among tensor or expert parallel ranks: FSDP's FULL_STATE_DICT joins
what is sharded, and this the parts and the experts, so that the checkpoint is that of one process.

A script turns it off by FullStateDictConfig(translate_on_save=False): then each rank has its own part. Loading
needs nothing here: a divided module takes its part of a whole parameter, and a MoELayer its experts.
"""

import functools

import torch
import torch.distributed as dist

from shoal import errors
from shoal.smddp.smp import _hooks
from shoal.smddp.smp.checkpoint.state_dict_utils import clean_name
from shoal.smddp.smp.fsdp import module_utils
from shoal.smddp.smp.moe_layer import MoELayer
from shoal.smddp.smp.tensor_parallel import _divided


def install():
    """Let FullStateDictConfig take translate_on_save, and refuse full states of an optimizer that are none."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.api import FullStateDictConfig

    if hasattr(FullStateDictConfig, "translate_on_save"):
        return
    original = FullStateDictConfig.__init__

    @functools.wraps(original)
    def construct(self, *given, translate_on_save=True, **named):
        original(self, *given, **named)
        self.translate_on_save = translate_on_save

    FullStateDictConfig.__init__ = construct
    FullStateDictConfig.translate_on_save = True
    _check_optimizer_states(FullyShardedDataParallel)


def _check_optimizer_states(fsdp):
    """Put a check into the two functions in which all of FSDP's functions for states of an optimizer end."""
    give, take = fsdp._optim_state_dict_impl, fsdp._optim_state_dict_to_load_impl
    bind_give, bind_take = _hooks.binder(give), _hooks.binder(take)

    @functools.wraps(give)
    def checked_give(*given, **named):
        arguments = bind_give(*given, **named)
        model = arguments["model"]
        config = fsdp.get_state_dict_type(model).state_dict_config
        if arguments["full_state_dict"] and getattr(config, "translate_on_save", True) and is_in_parts(model):
            raise errors.UnsupportedError(
                "FSDP.optim_state_dict(): in a FULL_STATE_DICT it would hold this rank's parts and experts only; "
                "take StateDictType.SHARDED_STATE_DICT, and save it in a folder for each tp_rank and ep_rank"
            )
        return give(*given, **named)

    @functools.wraps(take)
    def checked_take(*given, **named):
        arguments = bind_take(*given, **named)
        for path, layer in _layers_of_experts(arguments["model"]):
            start = f"{clean_name(path)}experts."
            for name in (arguments["optim_state_dict"] or {}).get("state", ()):
                if str(name).startswith(start) and int(name[len(start) :].split(".")[0]) >= layer.local_count:
                    raise errors.UnsupportedError(
                        f"FSDP.optim_state_dict_to_load(): {name} is of all experts, and this rank has "
                        f"{layer.local_count} of them: load what SHARDED_STATE_DICT has saved for its ep_rank"
                    )
        return take(*given, **named)

    fsdp._optim_state_dict_impl = staticmethod(checked_give)
    fsdp._optim_state_dict_to_load_impl = staticmethod(checked_take)


def is_in_parts(model):
    """Whether other ranks have other parts of the model by the same names."""
    return bool(_divided.divided_parameters(model)) or bool(_layers_of_experts(model))


def _layers_of_experts(model):
    """[(path with a dot, or "", MoELayer)] of those that have other experts on other ranks."""
    return [
        (f"{path}." if path else "", module)
        for path, module in model.named_modules()
        if isinstance(module, MoELayer) and module.shoal_place.ranks > 1
    ]


def join_in_full_state_dicts(model):
    """For an FSDP module: whole parameters, and all experts, in its full state dicts."""
    if is_in_parts(model):
        model._register_state_dict_hook(_join)


def _join(model, state_dict, prefix, *_):
    from torch.distributed.fsdp import StateDictType

    full = model._state_dict_type is StateDictType.FULL_STATE_DICT
    if full and model._state_dict_config.translate_on_save and model.check_is_root():
        join_parts(model, state_dict, prefix)
        join_experts(model, state_dict, prefix)
    return state_dict


@torch.no_grad()
def join_parts(model, state_dict, prefix=""):
    """Put whole parameters in the places of parts, in a state dict of a divided model. All tensor parallel
    ranks call it, and have the same names in theirs."""
    for name, (module, own_name) in _divided.divided_parameters(model).items():
        key = prefix + clean_name(name)
        if key not in state_dict:
            continue  # of FSDP's ranks one alone may have it
        parts = _gather(state_dict[key], module.tp.group)
        state_dict[key] = module.splits[own_name].whole(parts)
    return state_dict


@torch.no_grad()
def join_experts(model, state_dict, prefix=""):
    """Put the experts of all ranks, by their numbers among all, in the place of this rank's. All ranks of the
    expert parallel groups call it, and have the same names in theirs."""
    for path, layer in _layers_of_experts(model):
        start = f"{prefix}{clean_name(path)}experts."
        for key in [key for key in state_dict if key.startswith(start)]:
            number, _, rest = key[len(start) :].partition(".")
            for rank, other in enumerate(_gather(state_dict.pop(key), layer.shoal_place.group)):
                state_dict[f"{start}{rank * layer.local_count + int(number)}.{rest}"] = other
    return state_dict


def _gather(part, group):
    """A tensor of the same shape from every rank of a group, on the device where this rank's is."""
    on_device = part.detach().to(module_utils.default_device()).contiguous()
    parts = [torch.empty_like(on_device) for _ in range(group.size())]
    dist.all_gather(parts, on_device, group=group)
    return [other.to(part.device) for other in parts]
