"""torch.nn.MultiheadAttention, divided by heads."""

import math

import torch
from torch.nn import functional

from shoal import errors
from shoal.smddp.smp.tensor_parallel import _functions, _modules
from shoal.smddp.smp.tensor_parallel._divided import Divided, divide
from shoal.smddp.smp.tensor_parallel._split import Split


class PartAttention(Divided, torch.nn.MultiheadAttention):
    """Each rank has some of the heads. Arguments and results are torch's."""

    def forward(
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        need_weights=True,
        attn_mask=None,
        average_attn_weights=True,
        is_causal=False,
    ):
        if need_weights and not average_attn_weights:
            raise errors.UnsupportedError(
                "a divided MultiheadAttention gives the average of the heads' weights only"
            )
        if is_causal and attn_mask is None:
            raise errors.InvalidError(
                "a divided MultiheadAttention: is_causal says what attn_mask is, as torch has it, and attn_mask is None"
            )
        batched = query.dim() == 3
        if not batched:
            query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
        elif not self.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        heads = [self._by_head(tensor) for tensor in self._project(query, key, value)]
        mask = self._mask(attn_mask, key_padding_mask, heads[0])
        output, weights = self._attend(*heads, mask, need_weights)
        output = self.out_proj(output.transpose(1, 2).flatten(2))
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _project(self, query, key, value):
        """The local heads' queries, keys and values, (batch, length, local heads * head size)."""
        same = query is key and key is value
        query = _functions.copy(query, self.tp)
        key, value = (query, query) if same else (_functions.copy(key, self.tp), _functions.copy(value, self.tp))
        if self.in_proj_weight is None:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        else:
            if same:
                return functional.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
            weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [functional.linear(*one) for one in zip((query, key, value), weights, biases)]

    def _by_head(self, tensor):
        batch, length, _ = tensor.shape
        return tensor.reshape(batch, length, -1, self.head_dim).transpose(1, 2)

    def _mask(self, mask, padding, query):
        """Return what is added to the scores, for the local heads; None: nothing. In a mask of truths True is what may
        not be attended to."""
        batch, heads, _, _ = query.shape
        found = None
        if mask is not None:
            mask = _as_addend(mask, query.dtype)
            if mask.dim() == 3:
                mask = mask.reshape(batch, heads * self.tp.size, *mask.shape[1:]).chunk(self.tp.size, 1)[self.tp.rank]
            found = mask
        if padding is not None:
            padding = _as_addend(padding.reshape(batch, 1, 1, -1), query.dtype)
            found = padding if found is None else found + padding
        return found

    def _attend(self, query, key, value, mask, need_weights):
        probability = self.dropout if self.training else 0.0
        if not need_weights and probability == 0.0:
            return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask), None
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_dim)
        weights = (scores if mask is None else scores + mask).softmax(-1)
        weights = _modules.drop_of_part(weights, probability, self.tp)
        average = None
        if need_weights:
            average = _functions.add_up(weights.sum(1), self.tp) / self.num_heads
        return weights @ value, average


def _as_addend(mask, dtype):
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


def divide_attention(attention, tp, name, memo):
    """The projections' rows by heads, the output projection's columns."""
    if attention.num_heads % tp.size:
        raise errors.InvalidError(
            f"{name} has {attention.num_heads} heads, which tensor_parallel_degree {tp.size} does not divide"
        )
    if attention.bias_k is not None or attention.add_zero_attn:
        raise errors.UnsupportedError(f"{name}: add_bias_kv and add_zero_attn cannot be divided")
    splits = {"in_proj_weight": Split(0, 3), "in_proj_bias": Split(0, 3)}
    splits.update({f"{which}_proj_weight": Split(0) for which in "qkv"})
    _modules.divide_row(attention.out_proj, tp, f"{name}.out_proj", memo, split_input=True)
    return divide(attention, PartAttention, splits, tp, name, memo)
