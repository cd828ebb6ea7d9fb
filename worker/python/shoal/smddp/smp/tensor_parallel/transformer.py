"""torch.sagemaker.tensor_parallel.transformer: the classes by which scripts find a model's layers, to wrap
each in FSDP or in an activation checkpoint.

In theirs a transformed model consists of such layers. Here a model keeps its own, and transform() registers
their class: isinstance(layer, TransformerLayer) holds for them.
"""

import abc


class TransformerLayer(abc.ABC):
    """A layer of a model that transform() knows how to divide, whether or not there is more than one part."""


TETransformerLayer = TransformerLayer  # its name before torch 2.2


def register_layers(model, names):
    """Register the classes of the layers, members of lists, that modules of these names are in."""
    modules = dict(model.named_modules())
    for name in names:
        words = name.split(".")
        numbers = [place for place, word in enumerate(words) if word.isdigit()]
        if numbers:
            layer = modules[".".join(words[: numbers[0] + 1])]
            TransformerLayer.register(type(layer))
