"""torch.sagemaker.moe.moe_layer: a mixture of experts, of which each expert parallel rank has some.

The router is Shazeer et al.'s (2017), with the balancing loss of Fedus et al. (Switch, 2021), the z-loss of
Zoph et al. (ST-MoE, 2022), and the balanced assignment of Clark et al. (S-BASE, 2022).
"""

import torch
import torch.distributed as dist
from torch import nn

from shoal import errors
from shoal.smddp.smp import _random
from shoal.smddp.smp._state import state
from shoal.smddp.smp._token_exchange import Exchange
from shoal.smddp.smp.moe_config import MoEConfig
from shoal.smddp.smp.process_group_utils import get_global_ranks

__all__ = ["MoELayer", "Router", "place_of"]

SINKHORN_ITERATIONS_MOST = 100
SINKHORN_TOLERANCE = 1e-4


class _AttachLoss(torch.autograd.Function):
    """Gives its first argument on; in the backward pass the loss gets a gradient of 1, as if it were part of
    what the script calls backward() on, which knows nothing of it."""

    @staticmethod
    def forward(ctx, value, loss):
        ctx.save_for_backward(loss)
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        (loss,) = ctx.saved_tensors
        return gradient, torch.ones_like(loss)


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, factor):
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Router(nn.Module):
    """The choice of the experts that get a token, and their weights: [n, width] -> weights and experts, both [n, k],
    and what they come from, [n, experts]. adds_up_to_one: the weights of a token do. With a top_k of 1 that leaves the
    router without a gradient of the output's, so it is not the default there."""

    def __init__(self, width, expert_count, top_k, config):
        super().__init__()
        self.top_k, self.config, self.adds_up_to_one = top_k, config, top_k > 1
        self.gate = nn.Linear(width, expert_count, bias=False)

    def forward(self, tokens):
        logits = self.gate(tokens)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        probabilities = logits.softmax(-1)
        experts = self._choose(logits, probabilities)
        weights = probabilities.gather(-1, experts)
        if self.adds_up_to_one:
            weights = weights / weights.sum(-1, keepdim=True)
        if self.training and len(tokens):
            weights = _AttachLoss.apply(weights, self._loss(logits, probabilities, experts))
        return weights.to(tokens.dtype), experts, logits

    @torch.no_grad()
    def _choose(self, logits, probabilities):
        balancing = self.config.moe_load_balancing
        if balancing == "balanced":  # whatever the router says: for measurements
            count, size = logits.shape
            turns = torch.arange(count * self.top_k, device=logits.device)
            return (turns % size).reshape(count, self.top_k)
        if balancing == "sinkhorn" and self.training:
            return sinkhorn(logits).topk(self.top_k).indices
        return probabilities.topk(self.top_k).indices

    def _loss(self, logits, probabilities, experts):
        """The losses that keep the router in order, over this rank's tokens."""
        loss = self.config.moe_z_loss_coeff * logits.logsumexp(-1).square().mean()
        if self.config.moe_load_balancing == "aux_loss":
            size = logits.shape[-1]
            share = torch.bincount(experts.reshape(-1), minlength=size).to(logits.dtype) / experts.numel()
            loss = loss + self.config.moe_aux_loss_coeff * size * (share * probabilities.mean(0)).sum()
        return loss


def sinkhorn(logits):
    """exp(logits), [n, experts], with rows and columns scaled in turn until every token weighs 1/n and every
    expert 1/experts."""
    cost = (logits - logits.max()).exp() if logits.numel() else logits
    rows, columns = cost.new_ones(cost.shape[0]), cost.new_ones(cost.shape[1])
    for _ in range(SINKHORN_ITERATIONS_MOST):
        before = columns
        rows = 1 / (cost.shape[0] * (cost @ columns + 1e-8))
        columns = 1 / (cost.shape[1] * (rows @ cost + 1e-8))
        if (columns - before).abs().mean() <= SINKHORN_TOLERANCE * before.abs().mean():
            break
    return rows[:, None] * cost * columns


class Place:
    """Where experts are: the ranks that have the others; a group of None is this rank alone."""

    def __init__(self, group):
        self.group = group
        self.ranks = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)

    def __deepcopy__(self, memo):
        return self  # a copy of a model has its experts in the same place


class Experts(nn.ModuleList):
    """A rank's experts. Each module in it has the `shoal_place`: whoever shards or sums parameters one
    by one must know which are other ones on other ranks."""

    def __init__(self, place, experts):
        super().__init__(experts)
        for module in self.modules():
            module.shoal_place = place

    def forward(self, rows, counts):
        """rows: [sum(counts), width], counts[i] of them for the i-th expert. Every expert runs, with or without
        rows, so that each has a gradient on every rank."""
        rows = _ScaleGradient.apply(rows, self.shoal_place.ranks)
        parts = [expert(part) for expert, part in zip(self, rows.split(counts))]
        return _ScaleGradient.apply(torch.cat(parts), 1 / self.shoal_place.ranks)


class MoELayer(nn.Module):
    """[..., width] -> [..., width]: for each token the weighted sum of what top_k of the experts make of it.

    make_expert() makes one expert, a module [n, width] -> [n, width] that takes n of 0 too. Every rank of the expert
    parallel group (state's, or `group`, whose ranks must differ in nothing but experts) makes expert_count / size of
    them: `experts`, of which the first has the number first_expert among all. In this way parameters have the same
    names on all ranks, as FSDP wants. Weights depend on the seed and the expert's number alone, so that every degree
    begins with the same model.

    The gradients of the experts are sums over the group's ranks divided by their number. Whoever takes the mean over
    the data parallel ranks therefore takes it for experts over `rep` and `shard` alone."""

    def __init__(self, width, make_expert, expert_count, top_k=2, config=None, group=None):
        super().__init__()
        config = MoEConfig() if config is None else config
        self.shoal_place = place = Place(_expert_group(group))
        if expert_count < 1 or expert_count % place.ranks:
            raise errors.InvalidError(
                f"MoELayer: the expert parallel degree {place.ranks} does not divide {expert_count} experts"
            )
        if not 1 <= top_k <= expert_count:
            raise errors.InvalidError(f"MoELayer: top_k is {top_k}, but 1 to {expert_count} is wanted")
        self.width, self.expert_count = width, expert_count
        with _random.seeded(config.random_seed):
            self.router = Router(width, expert_count, top_k, config)
        self.local_count = expert_count // place.ranks
        self.first_expert = place.rank * self.local_count
        experts = []
        for number in range(self.first_expert, self.first_expert + self.local_count):
            with _random.seeded(config.random_seed + 1 + number):
                experts.append(make_expert())
        self.experts = Experts(place, experts)

    def _load_from_state_dict(self, state_dict, prefix, *arguments):
        """All experts, by their numbers among all, may be loaded too: each rank takes its own."""
        start = f"{prefix}experts."
        keys = [key for key in state_dict if key.startswith(start)]
        number_of = {key: int(key[len(start) :].split(".")[0]) for key in keys}
        if any(number >= self.local_count for number in number_of.values()):
            given = {key: state_dict.pop(key) for key in keys}
            for key, value in given.items():
                number = number_of[key] - self.first_expert
                if 0 <= number < self.local_count:
                    state_dict[f"{start}{number}.{key[len(start):].partition('.')[2]}"] = value
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def forward(self, hidden):
        return self.run(hidden)[0]

    def run(self, hidden):
        """The output, and the router's logits, [tokens, experts]."""
        if hidden.shape[-1:] != (self.width,):
            raise errors.InvalidError(
                f"MoELayer: the input is {list(hidden.shape)}, but its last dimension should be {self.width}"
            )
        tokens = hidden.reshape(-1, self.width)
        weights, experts, logits = self.router(tokens)
        way = Exchange(self.expert_count, self.shoal_place.group)
        rows, counts = way.dispatch(tokens, experts)
        made = way.combine(self.experts(rows, counts))
        return (made * weights[..., None]).sum(1).reshape(hidden.shape), logits


def _expert_group(group):
    """The group to use; None: this rank alone."""
    if group is None:
        return state.ep_process_group if state.is_initialized and state.ep_size > 1 else None
    if state.is_initialized:
        state.ranker.check_members(get_global_ranks(group), "ep", what="MoELayer: the group")
    return group


def place_of(module):
    """The Place of a module that is an expert's, or experts', and has others on other ranks; None."""
    place = getattr(module, "shoal_place", None)
    is_expert = isinstance(place, Place) and place.ranks > 1 and not isinstance(module, MoELayer)
    return place if is_expert else None
