"""The places of ranks in the grid of ranks, as numbers alone: no process group, no torch.

Dimensions from the slowest to the fastest, so that tensor parallel ranks are neighbours, then sharding ones
(in theirs too, rank // tensor_parallel_degree numbers the data parallel ranks; example scripts rely on it):

    rep     replicas of the whole model: hybrid sharding's outer dimension
    ep      expert parallel ranks: each has some of the experts, and all of the rest
    shard   ranks that share the parameters by sharding: hybrid sharding's inner dimension
    tp      tensor parallel ranks: each has a part of every layer
"""

from shoal import errors

DIMENSIONS = ("rep", "ep", "shard", "tp")
_KEYS = {
    "shard": "hybrid_shard_degree",
    "tp": "tensor_parallel_degree",
    "ep": "expert_parallel_degree",
}


class Ranker:
    """The grid. sizes: {dimension: size}, whose product is world_size."""

    def __init__(self, world_size, *, shard=1, tp=1, ep=1):
        degrees = {"shard": shard, "tp": tp, "ep": ep}
        for dimension, degree in degrees.items():
            _check_divides(_KEYS[dimension], degree, world_size)
        product = shard * tp * ep
        names = " x ".join(f"{_KEYS[d]} {n}" for d, n in degrees.items() if n > 1)
        _check_divides(f"{names} =" if names else "", product, world_size)
        self.world_size = world_size
        self.sizes = {"rep": world_size // product, "ep": ep, "shard": shard, "tp": tp}

    @property
    def shape(self):
        """Sizes in the order of DIMENSIONS."""
        return tuple(self.sizes[dimension] for dimension in DIMENSIONS)

    def coordinates(self, rank):
        """{dimension: position} of a rank."""
        if not 0 <= rank < self.world_size:
            raise errors.InvalidError(f"rank {rank} is not one of the {self.world_size} ranks")
        found = {}
        for dimension in reversed(DIMENSIONS):
            rank, found[dimension] = divmod(rank, self.sizes[dimension])
        return found

    def groups(self, *varying):
        """The ranks by the groups whose members differ in these dimensions only: lists in rank order, in the
        order of their first ranks; together they are all ranks, each once."""
        by_rest = {}
        for rank in range(self.world_size):
            here = self.coordinates(rank)
            rest = tuple(here[d] for d in DIMENSIONS if d not in varying)
            by_rest.setdefault(rest, []).append(rank)
        return list(by_rest.values())

    def check_members(self, ranks, *varying, what="the group"):
        """Raise unless these ranks are one of groups(*varying), as what is sharded or summed wants."""
        ranks = sorted(ranks)
        if ranks in self.groups(*varying):
            return
        first = self.coordinates(ranks[0])
        for rank in ranks[1:]:
            for dimension, position in self.coordinates(rank).items():
                if dimension not in varying and position != first[dimension]:
                    raise errors.InvalidError(
                        f"{what} has ranks {ranks[0]} and {rank}, which differ in {dimension} "
                        f"({first[dimension]} and {position}); its ranks may differ in {' and '.join(varying)} only"
                    )
        wanted = next(group for group in self.groups(*varying) if ranks[0] in group)
        lost = [rank for rank in wanted if rank not in ranks]
        raise errors.InvalidError(f"{what} lacks rank {lost[0]}: ranks {wanted} belong together")

    # The names by which scripts call it.

    # Scripts decide with these two who saves what of an FSDP model. Where nothing is sharded, FSDP's group is
    # that of the replicas, and all of it saves: by these names no rank replicates another then.

    def get_rep_rank(self, rank):
        return self.coordinates(rank)["rep"] if self.sizes["shard"] > 1 else 0

    def get_rep_groups(self):
        return self.groups("rep") if self.sizes["shard"] > 1 else self.groups()

    def get_shard_rank(self, rank):
        return self.coordinates(rank)["shard"]

    def get_shard_groups(self):
        return self.groups("shard")

    def get_tp_rank(self, rank):
        return self.coordinates(rank)["tp"]

    def get_tp_groups(self):
        return self.groups("tp")

    def get_ep_rank(self, rank):
        return self.coordinates(rank)["ep"]

    def get_ep_groups(self):
        return self.groups("ep")


def _check_divides(name, degree, world_size):
    if degree > world_size:
        raise errors.InvalidError(f"{name} {degree} is more than the world size {world_size}")
    if world_size % degree:
        raise errors.InvalidError(f"{name} {degree} does not divide the world size {world_size}")


def is_native(configuration):
    """True where the script's own FSDP is left as it is: neither degrees inside, nor a sharding to enforce."""
    inner = configuration.tensor_parallel_degree * configuration.expert_parallel_degree
    return inner == 1 and configuration.hybrid_shard_degree <= 1


def ranker_of(configuration, world_size):
    """The Ranker of a Configuration. A hybrid_shard_degree of 0 shards over as many ranks as there are."""
    tp, ep = configuration.tensor_parallel_degree, configuration.expert_parallel_degree
    shard = configuration.hybrid_shard_degree
    if shard == 0:
        Ranker(world_size, tp=tp, ep=ep)  # says what of the two does not divide
        shard = world_size // (tp * ep)
    return Ranker(world_size, shard=shard, tp=tp, ep=ep)
