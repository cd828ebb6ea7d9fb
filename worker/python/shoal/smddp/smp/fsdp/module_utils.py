"""torch.sagemaker.utils.module_utils: what functions that initialize parameters call."""

import torch


def default_device():
    """The device of this rank: its GPU, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def empty_module_params(module, device=None, recurse=False):
    """Give each parameter of the module (and, with recurse, of its children) uninitialized memory on the
    device in place of what it has. A parameter that several modules share stays shared below `module`.
    Returns the module."""
    device = default_device() if device is None else torch.device(device)
    made = {}
    for child in module.modules() if recurse else (module,):
        for name, parameter in child._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                empty = torch.empty_like(parameter, device=device)
                made[id(parameter)] = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
                made[id(parameter)].__dict__.update(parameter.__dict__)
            child._parameters[name] = made[id(parameter)]
    return module


def move_buffers_to_device(module, device, recurse=False):
    """Move the buffers of the module (and, with recurse, of its children). One that is on the meta device
    has no values to move, and stays there. Returns the module."""
    for child in module.modules() if recurse else (module,):
        for name, buffer in child._buffers.items():
            if buffer is not None and not buffer.is_meta:
                child._buffers[name] = buffer.to(device)
    return module
