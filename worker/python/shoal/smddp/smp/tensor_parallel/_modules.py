"""Modules of torch, divided. Inputs are the same on all tensor parallel ranks, or are parts of the last dimension
(`split_input`); and so are outputs (`split_output`)."""

import torch
from torch.nn import functional

from shoal import errors
from shoal.smddp.smp.tensor_parallel import _functions
from shoal.smddp.smp.tensor_parallel._divided import Divided, divide
from shoal.smddp.smp.tensor_parallel._split import Split


class ColumnLinear(Divided, torch.nn.Linear):
    """Each rank has some of the output features."""

    def forward(self, tensor):
        output = functional.linear(_functions.copy(tensor, self.tp), self.weight, self.bias)
        return output if self.split_output else _functions.gather(output, self.tp)


class RowLinear(Divided, torch.nn.Linear):
    """Each rank has some of the input features, and all have the bias."""

    def forward(self, tensor):
        if not self.split_input:
            tensor = _functions.scatter(tensor, self.tp)
        output = _functions.add_up(functional.linear(tensor, self.weight), self.tp)
        return output if self.bias is None else output + self.bias


class VocabularyEmbedding(Divided, torch.nn.Embedding):
    """Each rank has some of the rows, and gives zeros for the others."""

    def forward(self, indices):
        self._check(indices)
        rows = self.weight.shape[0]
        first = self.tp.rank * rows
        local = indices - first
        elsewhere = (local < 0) | (local >= rows)
        padding = None
        if self.padding_idx is not None and 0 <= self.padding_idx - first < rows:
            padding = self.padding_idx - first
        found = functional.embedding(local.masked_fill(elsewhere, 0), self.weight, padding, sparse=self.sparse)
        # Not by a product: a row that is not a number would spread.
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return _functions.add_up(found, self.tp)

    def _check(self, indices):
        """Raises torch's kind of error for what no rank has; a GPU raises it where it gets to it, as torch's does."""
        count = self.whole_shapes["weight"][0]
        outside = (indices < 0) | (indices >= count)
        if indices.is_cuda:
            torch._assert_async(~outside.any())
        elif not indices.is_meta and outside.any():
            index = indices[outside][0].item()
            raise IndexError(f"index {index} is out of range in a divided Embedding of {count} rows")


class PartDropout(torch.nn.Dropout):
    """Dropout of a part, which is another one on each rank."""

    def forward(self, tensor):
        return drop_of_part(tensor, self.p, self.tp) if self.training else tensor


def drop_of_part(tensor, probability, tp):
    """The default generator, which is at the same place on all ranks, gives one number; with the rank and the
    configuration's seed it seeds what this rank drops. In this way the ranks stay together, and what is computed again
    in an activation checkpoint is the same."""
    if probability == 0.0:
        return tensor
    drawn = int(torch.randint(2**31, (1,)).item())
    generator = torch.Generator(tensor.device)
    generator.manual_seed((drawn * 2**31 + (tp.seed + tp.rank) % 2**31) % 2**62)
    kept = torch.empty_like(tensor).bernoulli_(1.0 - probability, generator=generator)
    return tensor * kept / (1.0 - probability)


def divide_column(linear, tp, name, memo, split_output):
    splits = {"weight": Split(0), "bias": Split(0)}
    return divide(linear, ColumnLinear, splits, tp, name, memo, split_output=split_output)


def divide_row(linear, tp, name, memo, split_input):
    return divide(linear, RowLinear, {"weight": Split(1)}, tp, name, memo, split_input=split_input)


def divide_embedding(embedding, tp, name, memo):
    for attribute, none in (("max_norm", None), ("scale_grad_by_freq", False)):
        if getattr(embedding, attribute) != none:
            raise errors.UnsupportedError(f"{name}: an embedding with {attribute} cannot be divided")
    return divide(embedding, VocabularyEmbedding, {"weight": Split(0)}, tp, name, memo)


def divide_dropout(dropout, tp):
    dropout.__class__ = PartDropout
    dropout.tp = tp
    return dropout
