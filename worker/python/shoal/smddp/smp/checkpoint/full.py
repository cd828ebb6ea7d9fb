"""Full state dicts of a model that is divided among tensor parallel ranks: FSDP's FULL_STATE_DICT joins what
is sharded, and this the parts, so that the checkpoint is that of the model before transform().

A script turns it off by FullStateDictConfig(translate_on_save=False): then each tensor parallel rank has its
own part. Loading needs nothing here: a divided module takes its part of a whole parameter.
"""

import functools

import torch
import torch.distributed as dist

from shoal.smddp.smp.fsdp import module_utils
from shoal.smddp.smp.checkpoint.state_dict_utils import clean_name
from shoal.smddp.smp.tensor_parallel import _divided


def install():
    """Let FullStateDictConfig take translate_on_save."""
    try:
        from torch.distributed.fsdp.api import FullStateDictConfig
    except (ImportError, ValueError):  # torch 1.13 on Python 3.11
        return
    if hasattr(FullStateDictConfig, "translate_on_save"):
        return
    original = FullStateDictConfig.__init__

    @functools.wraps(original)
    def construct(self, *given, translate_on_save=True, **named):
        original(self, *given, **named)
        self.translate_on_save = translate_on_save

    FullStateDictConfig.__init__ = construct
    FullStateDictConfig.translate_on_save = True


def join_in_full_state_dicts(model):
    """For an FSDP module: whole parameters in its full state dicts."""
    if _divided.divided_parameters(model):
        model._register_state_dict_hook(_join)


def _join(model, state_dict, prefix, *_):
    from torch.distributed.fsdp import StateDictType

    full = model._state_dict_type is StateDictType.FULL_STATE_DICT
    if full and model._state_dict_config.translate_on_save and model.check_is_root():
        join_parts(model, state_dict, prefix)
    return state_dict


@torch.no_grad()
def join_parts(model, state_dict, prefix=""):
    """Put whole parameters in the places of parts, in a state dict of a divided model. All tensor parallel
    ranks call it, and have the same names in theirs."""
    for name, (module, own_name) in _divided.divided_parameters(model).items():
        key = prefix + clean_name(name)
        if key not in state_dict:
            continue  # of FSDP's ranks one alone may have it
        part = state_dict[key]
        on_device = part.detach().to(module_utils.default_device()).contiguous()
        parts = [torch.empty_like(on_device) for _ in range(module.tp.size)]
        dist.all_gather(parts, on_device, group=module.tp.group)
        state_dict[key] = module.splits[own_name].whole(parts).to(part.device)
    return state_dict
