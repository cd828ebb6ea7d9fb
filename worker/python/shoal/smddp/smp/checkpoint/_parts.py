"""Check for data that a checkpoint would lose: it keeps one rank's data of each name, but the parts of a divided layer,
and experts, have the same names on ranks that differ in `tp` and `ep`.

For this reason a save looks for names, with the same place in the whole tensor, that such ranks share. Where all of
them have the same bytes (a whole model, a scalar of an optimizer), nothing is lost; else it is an error.
"""

import functools
import hashlib

import torch
import torch.distributed as dist

from shoal import errors
from shoal.smddp.smp import _hooks
from shoal.smddp.smp._state import state
from shoal.smddp.smp.checkpoint._agreement import Together


class LocalStateDict(dict):
    """A model's shards as they are: other ones by the same names on the ranks that differ in `shard` too."""


def install():
    """Let torch's own saves look too."""
    from torch.distributed.checkpoint import DefaultSavePlanner, state_dict_saver

    original = getattr(state_dict_saver, _hooks.find(state_dict_saver, "_save_state_dict"))
    if hasattr(original, "shoal_original"):
        return
    bind = _hooks.binder(original)

    @functools.wraps(original)
    def save(*given, **named):
        arguments = bind(*given, **named)
        state_dict = arguments["state_dict"]
        if not arguments["no_dist"] and dist.is_initialized() and _dimensions(state_dict):
            own = DefaultSavePlanner()
            own.set_up_planner(state_dict)
            together = Together(arguments["process_group"], arguments["coordinator_rank"])
            plans = together.gather("plan a checkpoint", own.create_local_plan)
            check_nothing_is_lost(together, plans, own.resolve_data, state_dict)
        return original(*given, **named)

    save.shoal_original = original
    state_dict_saver._save_state_dict = save


def check_nothing_is_lost(together, plans, data_of, state_dict):
    """Raise MismatchError, on all ranks, where ranks have other data by one name. plans: the SavePlan of each rank
    of `together`; data_of(item): the tensor of an item of this rank's plan."""
    dimensions = _dimensions(state_dict)
    everyone = [_place(rank, dimensions) for rank in together.ranks]
    if len(set(everyone)) == 1:
        return
    having = {}  # (name, place in the tensor): which ranks have it, by their places in the group
    for i, plan in enumerate(plans):
        for item in plan.items:
            if item.tensor_data is not None:
                having.setdefault((item.index.fqn, item.index.offset), []).append(i)
    shared = {key for key, found in having.items() if len({everyone[i] for i in found}) > 1}
    digests = together.gather(
        "compare what it saves",
        lambda: {
            (item.index.fqn, item.index.offset): _digest(data_of(item))
            for item in plans[together.index].items
            if (item.index.fqn, item.index.offset) in shared
        },
    )
    for key in sorted(shared, key=lambda key: (key[0], tuple(key[1] or ()))):
        first, *others = having[key]
        for other in others:
            if everyone[other] != everyone[first] and digests[other][key] != digests[first][key]:
                raise errors.MismatchError(_lost(key[0], together.ranks[first], together.ranks[other]))


def check_group(group, what):
    """Raise where a group has ranks with other parts of a model: what is sharded over it would be mixed. what:
    begins the error."""
    if not state.is_initialized:
        return
    ranks = dist.get_process_group_ranks(group)
    for rank in ranks[1:]:
        for dimension, mine, theirs in _differences(ranks[0], rank, ("tp", "ep")):
            raise errors.InvalidError(
                f"{what} has ranks {ranks[0]} and {rank}, which differ in {dimension} ({mine} and {theirs}): "
                f"they have other parts by the same names; {_own_group()} has those with the same"
            )


def _dimensions(state_dict):
    """Return the dimensions in which ranks differ that have other data by the same names."""
    if not state.is_initialized:
        return ()
    found = tuple(dimension for dimension in ("tp", "ep") if state.ranker.sizes[dimension] > 1)
    is_local = any(isinstance(value, LocalStateDict) for value in (state_dict, *state_dict.values()))
    return found + (("shard",) if is_local and state.shard_size > 1 else ())


def _place(rank, dimensions):
    at = state.ranker.coordinates(rank) if dimensions else {}
    return tuple(at[dimension] for dimension in dimensions)


def _differences(rank, other, dimensions):
    here, there = state.ranker.coordinates(rank), state.ranker.coordinates(other)
    return [(d, here[d], there[d]) for d in dimensions if here[d] != there[d]]


def _own_group():
    name = "shard" if state.shard_size > 1 else "rep"
    return f"torch.sagemaker.state.{name}_process_group"


def _lost(name, rank, other):
    dimension, mine, theirs = _differences(rank, other, ("tp", "ep", "shard"))[0]
    group = "torch.sagemaker.state.rep_process_group" if dimension == "shard" else _own_group()
    return (
        f"checkpoint: {name} is another part of the model on ranks {rank} and {other}, which differ in {dimension} "
        f"({mine} and {theirs}), and one would be lost: save it with process_group={group}, "
        f"each {dimension}_rank's in a folder of its own"
    )


def _digest(data):
    data = data.detach().cpu().contiguous()
    found = hashlib.blake2b(repr((data.dtype, data.shape)).encode())
    found.update(data.reshape(-1).view(torch.uint8).numpy())
    return found.digest()
