"""torch.sagemaker.transform with a MoEConfig: mixtures of experts of a model that has all of them become MoELayers,
with the same weights, of which each rank keeps its experts.

Known are Mixtral's as Hugging Face's transformers build them up to 4.57: a Mixtral... with the children `gate`, a
linear layer, and `experts`, a ModuleList, and nothing else of its own, and the number `top_k`. Its forward(hidden)
returns the hidden states and the router's logits, [tokens, experts]; weights of the chosen experts add up to 1.
Others compute something else of the same parts: shared experts, other weights. They are refused by name.
"""

from torch import nn

from shoal import errors
from shoal.smddp.smp.moe_layer import Experts, MoELayer


class Mixture(MoELayer):
    """A MoELayer in the place of such a module."""

    def forward(self, hidden):
        return self.run(hidden)


def transform(model, config, load_state_dict_from_rank0):
    """Replace the mixtures of a model, in place; every rank has the whole model, or the meta device has it."""
    if not config.smp_moe:
        return
    if load_state_dict_from_rank0:
        raise errors.UnsupportedError(
            "transform: load_state_dict_from_rank0 is not done for a mixture of experts: give every rank the weights"
        )
    found = {name: module for name, module in model.named_modules() if name and _has_experts(module)}
    if not found:
        raise errors.UnsupportedError(
            f"transform: nothing in a {type(model).__name__} is a known mixture of experts, as Mixtral's are"
        )
    for name, module in found.items():
        _check_known(name, module)
    for name, module in found.items():
        path, _, own_name = name.rpartition(".")
        setattr(model.get_submodule(path), own_name, _replace(module, config))


def _has_experts(module):
    """True for every mixture that a model may have, known or not."""
    return "experts" in module._modules and not isinstance(module, MoELayer)


def _check_known(name, module):
    def refuse(why):
        raise errors.UnsupportedError(
            f"transform: {name} is a {type(module).__name__}, a mixture of experts that is not known: {why}"
        )

    gate, experts = (module._modules.get(child) for child in ("gate", "experts"))
    if not type(module).__name__.startswith("Mixtral"):
        refuse("those of Mixtral are")
    more = set(module._modules) - {"gate", "experts"} | set(module._parameters) | set(module._buffers)
    if more:
        refuse(f"it has {min(more)} beside gate and experts")
    if not isinstance(gate, nn.Linear) or not isinstance(experts, nn.ModuleList):
        refuse(f"its gate is a {type(gate).__name__} and its experts a {type(experts).__name__}")
    if not isinstance(getattr(module, "top_k", None), int):
        refuse(f"its top_k is {getattr(module, 'top_k', None)}")
    if gate.out_features != len(experts) or gate.bias is not None:
        refuse(f"it has {len(experts)} experts and a gate {gate}, where one without a bias for as many is wanted")
    if getattr(module, "jitter_noise", 0):
        refuse(f"its router has jitter_noise {module.jitter_noise}, which is not done here: set it to 0")
    if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
        refuse("it has a forward() of its own or hooks, which would be lost")


def _replace(module, config):
    gate = module.gate
    mixture = Mixture(gate.in_features, nn.Identity, len(module.experts), module.top_k, config)
    mixture.router.gate, mixture.router.adds_up_to_one = gate, True
    mine = module.experts[mixture.first_expert :][: len(mixture.experts)]
    mixture.experts = Experts(mixture.shoal_place, mine)
    return mixture.train(module.training)
