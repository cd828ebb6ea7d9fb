"""torch.sagemaker.distributed.checkpoint.state_dict_utils: which state dict a model gives."""

import contextlib
import enum

import torch

from shoal.smddp.smp.checkpoint._parts import LocalStateDict

WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class SMStateDictType(enum.Enum):
    """Beside torch's StateDictType."""

    # This rank's shards as they are: fast, and good for the same number of shards only.
    SM_LOCAL_STATE_DICT = enum.auto()


@contextlib.contextmanager
def sm_state_dict_type(model, state_dict_type, state_dict_config=None, optim_state_dict_config=None):
    """FSDP's state_dict_type(), which knows SM_LOCAL_STATE_DICT too: while it lasts, model.state_dict() gives
    the shards themselves, which a load fills in place, and nothing is exchanged between ranks."""
    if state_dict_type is not SMStateDictType.SM_LOCAL_STATE_DICT:
        from torch.distributed.fsdp import FullyShardedDataParallel

        with FullyShardedDataParallel.state_dict_type(
            model, state_dict_type, state_dict_config, optim_state_dict_config
        ):
            yield
        return
    model.state_dict = lambda *given, **named: _local_state_dict(model)
    model.load_state_dict = lambda given, strict=True: _load_local_state_dict(model, given, strict)
    try:
        yield
    finally:
        del model.state_dict, model.load_state_dict


def clean_name(name):
    """The name of a parameter without the wrappers around its module."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _local_state_dict(model):
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return LocalStateDict((clean_name(name), tensor.detach()) for name, tensor in tensors)


def _load_local_state_dict(model, given, strict):
    """Load like torch's load_state_dict of a module whose parameters are these shards."""
    mine = _local_state_dict(model)
    missing = [name for name in mine if name not in given]
    unexpected = [name for name in given if name not in mine]
    if strict and (missing or unexpected):
        raise RuntimeError(f"the local state dict lacks {missing}, and has in excess {unexpected}")
    with torch.no_grad():
        for name in set(mine) & set(given):
            if mine[name].shape != given[name].shape:
                raise RuntimeError(
                    f"{name}: the local shard is {tuple(mine[name].shape)}, what is loaded {tuple(given[name].shape)}; "
                    "the number of shards must be the same"
                )
            mine[name].copy_(given[name])
    return torch.nn.modules.module._IncompatibleKeys(missing, unexpected)


def init_optim_state(optimizer, skip_empty_param=False):
    """Make an optimizer's state without changing a parameter, so that a load has what to fill: one step with
    gradients and learning rates of zero. skip_empty_param: not for parameters of which this rank has nothing.
    An optimizer that has a state is left as it is."""
    if any(optimizer.state.values()):
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    before = [(p, p.grad) for p in parameters]
    rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
    decays = [group.get("weight_decay") for group in optimizer.param_groups]
    for parameter in parameters:
        skip = skip_empty_param and parameter.numel() == 0
        parameter.grad = None if skip else torch.zeros_like(parameter)
    try:
        for group in optimizer.param_groups:
            if "lr" in group:
                group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
            if group.get("weight_decay") is not None:
                group["weight_decay"] = 0.0
        optimizer.step()
    finally:
        rates = iter(rates)
        for group, decay in zip(optimizer.param_groups, decays):
            if "lr" in group:
                group["lr"] = next(rates)
            if decay is not None:
                group["weight_decay"] = decay
        for parameter, gradient in before:
            parameter.grad = gradient
