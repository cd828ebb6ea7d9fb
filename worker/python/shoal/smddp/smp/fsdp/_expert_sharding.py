"""Experts under FSDP. A rank's experts are on no other rank of its `ep` group, so they are not flattened together with
the rest of a model: they get an FSDP of their own, over ranks that have the same ones."""

from torch import nn

from shoal.smddp.smp.moe_layer import MoELayer

# Arguments of a model's FSDP that are about its modules or its ranks.
_NOT_FOR_EXPERTS = frozenset(
    "module process_group device_mesh auto_wrap_policy ignored_modules ignored_states".split()
)


def set_aside(arguments, fsdp):
    """Let FSDP leave the experts alone; returns the layers whose they are, for wrap(). arguments: of FSDP's
    constructor, by name. fsdp: its class."""
    layers = [
        module
        for module in arguments["module"].modules()
        if isinstance(module, MoELayer) and module.shoal_place.ranks > 1 and not isinstance(module.experts, fsdp)
    ]
    if not layers:
        return []
    experts = [layer.experts for layer in layers]
    states = list(arguments.get("ignored_states") or ())
    if states and isinstance(states[0], nn.Parameter):
        arguments["ignored_states"] = states + [p for module in experts for p in module.parameters()]
    elif states:
        arguments["ignored_states"] = states + experts
    else:
        arguments["ignored_modules"] = [*(arguments.get("ignored_modules") or ()), *experts]
    return layers


def wrap(layers, arguments, fsdp):
    """An FSDP for the experts of each layer that has none yet, with the same other arguments; its constructor
    chooses the groups."""
    own = {name: value for name, value in arguments.items() if name not in _NOT_FOR_EXPERTS}
    for layer in layers:
        if not isinstance(layer.experts, fsdp):
            layer.experts = fsdp(layer.experts, **own)
