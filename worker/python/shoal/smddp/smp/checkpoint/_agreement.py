"""Steps of a checkpoint that all ranks of a group do together: what one cannot do, all hear of."""

import torch.distributed as dist

from shoal import errors


def _ranks_of(group, rank):
    """All of its ranks: this one must be there."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise errors.InvalidError(f"checkpoint: rank {rank} is not in the process_group: new_group() made it of others")
    ranks = dist.get_process_group_ranks(group)
    if rank not in ranks:
        raise errors.InvalidError(f"checkpoint: rank {rank} is not in the process_group, whose ranks are {ranks}")
    return ranks


class Together:
    """The ranks of a process group (None: of the default one; without any, this process alone)."""

    def __init__(self, group=None, coordinator_rank=0):
        """coordinator_rank: a rank of the whole job, in the group; 0, the default, also stands for the group's
        first rank."""
        self.group = group
        self.ranks = [0]
        rank = 0
        if dist.is_initialized():
            rank = dist.get_rank()
            self.ranks = _ranks_of(dist.GroupMember.WORLD if group is None else group, rank)
        if coordinator_rank not in self.ranks:
            if coordinator_rank != 0:
                raise errors.InvalidError(
                    f"coordinator_rank {coordinator_rank} is not in the process group, whose ranks are {self.ranks}"
                )
            coordinator_rank = self.ranks[0]
        self.index = self.ranks.index(rank)  # this rank's place
        self.coordinator = coordinator_rank
        self.is_coordinator = rank == coordinator_rank

    def gather(self, step, call):
        """Return the results of call() on every rank, in rank order. Where it fails on one, all raise its error."""
        try:
            mine = (True, call())
        except Exception as error:
            mine, cause = (False, f"{type(error).__name__}: {error}"), error
        everyone = [mine]
        if len(self.ranks) > 1:
            everyone = [None] * len(self.ranks)
            dist.all_gather_object(everyone, mine, group=self.group)
        for rank, (good, value) in zip(self.ranks, everyone):
            if not good:
                text = f"checkpoint: rank {rank} could not {step}: {value}"
                raise errors.ShoalError(text) from (None if mine[0] else cause)
        return [value for _, value in everyone]

    def ask_coordinator(self, step, call):
        """Return on every rank the result of call() on the coordinator."""
        found = []
        self.gather(step, lambda: found.append(call()) if self.is_coordinator else None)
        value = found or [None]
        if len(self.ranks) > 1:
            dist.broadcast_object_list(value, src=self.coordinator, group=self.group)
        return value[0]
