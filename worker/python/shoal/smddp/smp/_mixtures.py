"""What torch.sagemaker.transform does with a MoEConfig: mixtures of experts of a model that has all of them
become MoELayers, with the same weights, of which each rank keeps its experts.

Known are modules as Hugging Face's transformers build Mixtral's (up to 4.57): with the children `gate`, a linear
layer, and `experts`, a ModuleList, and the number `top_k`. forward(hidden) returns the hidden states and the
router's logits, [tokens, experts].
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
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if _is_mixture(child)
    ]
    if not found:
        raise errors.UnsupportedError(
            f"transform: nothing in a {type(model).__name__} is a known mixture of experts: "
            "a module with gate, experts and top_k"
        )
    for parent, name, child in found:
        setattr(parent, name, _replace(child, config))


def _is_mixture(module):
    parts = (getattr(module, "gate", None), getattr(module, "experts", None))
    kinds = isinstance(parts[0], nn.Linear) and isinstance(parts[1], nn.ModuleList)
    return kinds and not isinstance(module, MoELayer) and isinstance(getattr(module, "top_k", None), int)


def _replace(module, config):
    count, gate = len(module.experts), module.gate
    if gate.out_features != count or gate.bias is not None:
        raise errors.UnsupportedError(
            f"transform: a {type(module).__name__} has {count} experts and a gate {gate}: "
            f"one without a bias, for {count}, is known"
        )
    mixture = Mixture(gate.in_features, nn.Identity, count, module.top_k, config)
    mixture.router.gate = gate
    mine = module.experts[mixture.first_expert :][: len(mixture.experts)]
    mixture.experts = Experts(mixture.shoal_place, mine)
    return mixture.train(module.training)
