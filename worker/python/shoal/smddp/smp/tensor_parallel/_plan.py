"""Plans, which say what modules of a model are divided, and how: {pattern of names: style}.

Patterns are those of fnmatch over the names of model.named_modules(), where a "*" stands for the number of a
layer. Styles, by the names that plans of Hugging Face's transformers have:

    colwise       a linear layer by output features; its output stays divided
    colwise_rep   likewise; its output is joined
    rowwise       a linear layer by input features, from a colwise one; its output is added up
    rowwise_rep   likewise, from what all ranks have; an embedding by rows
    attention     a torch.nn.MultiheadAttention by heads
    dropout       a torch.nn.Dropout between a colwise and a rowwise layer

A model has a plan of its own (transformers: `_tp_plan`, and config.base_model_tp_plan), or a script gives one. Without
a plan, modules that are always built alike are known: torch's own layers, and modules whose children have the names of
PAIRS, as those of Llama, Mistral and GPT-NeoX have.
"""

import fnmatch

import torch

from shoal import errors
from shoal.smddp.smp.tensor_parallel import _attention, _modules

STYLES = ("colwise", "colwise_rep", "rowwise", "rowwise_rep", "attention", "dropout")
_LAYERS = (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)


def of_model(model):
    """The plan that comes with a model; {} where none does."""
    plan = {}
    inner = getattr(model, "base_model_prefix", "")
    base = getattr(getattr(model, "config", None), "base_model_tp_plan", None) or {}
    for pattern, style in base.items():
        plan[f"{inner}.{pattern}" if inner and hasattr(model, inner) else pattern] = style
    plan.update(getattr(model, "_tp_plan", None) or {})
    return plan


# (What the class's name begins with, names of linear layers): the first layers give what the last one takes.
# In query_key_value the heads lie in another order in other models than in GPT-NeoX.
PAIRS = (
    ("", ("q_proj", "k_proj", "v_proj", "o_proj")),
    ("", ("gate_proj", "up_proj", "down_proj")),
    ("GPTNeoX", ("query_key_value", "dense")),
    ("", ("dense_h_to_4h", "dense_4h_to_h")),
)
HEADS = ("lm_head", "embed_out")


def of_known(model, size):
    """{name: style} of what is known in a model, and of its embeddings and head as far as `size` divides them."""
    found = {**_of_torch(model), **_of_names(model)}
    if found:
        found.update(_vocabularies(model, size))
    return found


def _of_names(model):
    found = {}
    for name, module in model.named_modules():
        children = dict(module.named_children())
        for start, (*columns, row) in PAIRS:
            if type(module).__name__.startswith(start) and all(isinstance(children.get(child), torch.nn.Linear) for child in (*columns, row)):
                inner = f"{name}." if name else ""
                found.update({f"{inner}{child}": "colwise" for child in columns})
                found[f"{inner}{row}"] = "rowwise"
    return found


def _of_torch(model):
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, _LAYERS):
            inner = f"{name}." if name else ""
            found[f"{inner}linear1"], found[f"{inner}linear2"] = "colwise", "rowwise"
            found[f"{inner}dropout"] = "dropout"
        elif isinstance(module, torch.nn.MultiheadAttention):
            found[name] = "attention"
    return found


def _vocabularies(model, size):
    """Embeddings, and the linear layers that share their weights or have the names of a head."""
    shared = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings % size == 0:
            if module.max_norm is None and not module.scale_grad_by_freq:
                shared[id(module.weight)] = name
    found = {name: "rowwise_rep" for name in shared.values()}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            is_head = name.rpartition(".")[2] in HEADS and module.out_features % size == 0
            if is_head or id(module.weight) in shared:
                found[name] = "colwise_rep"
    return found


def match(model, plan, check=True):
    """{name: style} for the modules that a plan's patterns name. check: a pattern that names none is an error, and
    so is an unknown style."""
    names = [name for name, _ in model.named_modules()]
    found = {}
    for pattern, style in plan.items():
        if check and style not in STYLES:
            raise errors.UnsupportedError(
                f"the tensor parallel plan has style {style!r} for {pattern}; known are {', '.join(STYLES)}"
            )
        matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if check and not matching:
            raise errors.InvalidError(f"the tensor parallel plan names {pattern}, which the model does not have")
        for name in matching:
            found[name] = style
    return found


def divide_module(name, module, style, tp, memo):
    """Divide one module as a style says."""
    wanted = {
        "attention": torch.nn.MultiheadAttention,
        "dropout": torch.nn.Dropout,
        "rowwise_rep": (torch.nn.Linear, torch.nn.Embedding),
    }.get(style, torch.nn.Linear)
    if not isinstance(module, wanted):
        raise errors.InvalidError(f"{name} is a {type(module).__name__}, which cannot be divided {style}")
    known = (torch.nn.Linear, torch.nn.Embedding, torch.nn.Dropout, torch.nn.MultiheadAttention)
    if type(module).forward not in [kind.forward for kind in known]:
        raise errors.UnsupportedError(
            f"{name} is a {type(module).__name__} with a forward() of its own, which division would put aside"
        )
    if style == "attention":
        _attention.divide_attention(module, tp, name, memo)
    elif style == "dropout":
        _modules.divide_dropout(module, tp)
    elif isinstance(module, torch.nn.Embedding):
        _modules.divide_embedding(module, tp, name, memo)
    elif style.startswith("col"):
        _modules.divide_column(module, tp, name, memo, split_output=style == "colwise")
    else:
        _modules.divide_row(module, tp, name, memo, split_input=style == "rowwise")


# Attributes in which attention keeps how many heads it has, and how wide they are together; a rank has its
# share of them.
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "num_key_value_heads")
_WIDTHS = ("hidden_size", "embed_dim")


def divide_heads(name, module, tp):
    """For a module with colwise children that reckons with its number of heads: its attributes."""
    if not any(hasattr(module, attribute) for attribute in _HEAD_COUNTS):
        return
    for attribute in (*_HEAD_COUNTS, *_WIDTHS):
        count = getattr(module, attribute, None)
        if isinstance(count, int) and not isinstance(count, bool):
            if count % tp.size:
                raise errors.InvalidError(
                    f"{name} has {attribute} {count}, which tensor_parallel_degree {tp.size} does not divide"
                )
            setattr(module, attribute, count // tp.size)
