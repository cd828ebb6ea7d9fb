"""Tokens on their way to the ranks of their experts and back, as autograd sees it."""

import torch
import torch.distributed as dist


class _AllToAll(torch.autograd.Function):
    """Rows to the ranks of a group by counts; the gradients go the other way."""

    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.counts, ctx.group = (sent, received), group
        result = rows.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
        return result

    @staticmethod
    def backward(ctx, gradient):
        sent, received = ctx.counts
        result = gradient.new_empty((sum(sent), *gradient.shape[1:]))
        dist.all_to_all_single(result, gradient.contiguous(), sent, received, group=ctx.group)
        return result, None, None, None


def exchange(rows, sent, received, group):
    """rows: [sum(sent), ...], in the order of the group's ranks, sent[i] of them for rank i. Returns the rows
    for this rank, [sum(received), ...], in that order. Ranks may send and receive none. All ranks of the group
    call it, and its backward pass, in the same order."""
    return _AllToAll.apply(rows, list(sent), list(received), group)


class Exchange:
    """One way there and back of the tokens of a step: by which experts each is wanted decides where it goes.

    Experts are numbered over the group: its rank i has experts [i * local, (i + 1) * local). A group of None
    is this rank alone."""

    def __init__(self, expert_count, group):
        self._group = group
        self._ranks = 1 if group is None else dist.get_world_size(group)
        self._local = expert_count // self._ranks
        self._count = expert_count

    def dispatch(self, tokens, experts):
        """tokens: [n, width]; experts: [n, k], numbers of experts. Returns the rows that this rank's experts
        get, sorted by expert and then by where they come from, and how many each gets."""
        self._wanted = experts.shape  # n, k
        wanted = experts.reshape(-1)
        self._order = torch.argsort(wanted, stable=True)
        rows = tokens[self._order // self._wanted[1]]
        counts = torch.bincount(wanted, minlength=self._count)
        if self._group is None:
            self._back = None
            return rows, counts.tolist()
        theirs = torch.empty_like(counts)  # [rank, local expert]: what each has for each of this rank's
        dist.all_to_all_single(theirs, counts, group=self._group)
        theirs = theirs.reshape(self._ranks, self._local)
        self._sent = counts.reshape(self._ranks, self._local).sum(1).tolist()
        self._received = theirs.sum(1).tolist()
        rows = exchange(rows, self._sent, self._received, self._group)
        # They come by rank and then by expert; sorting them keeps the order of ranks within an expert.
        numbers = torch.arange(self._local, device=theirs.device).repeat(self._ranks)
        by_expert = torch.argsort(torch.repeat_interleave(numbers, theirs.reshape(-1)), stable=True)
        self._back = torch.argsort(by_expert)
        return rows[by_expert], theirs.sum(0).tolist()

    def combine(self, rows):
        """Send rows back. rows: the experts' results for the rows that dispatch() returned, in their order. Returns [n,
        k, width of rows]: for each token the result of each of its experts."""
        if self._group is not None:
            rows = exchange(rows[self._back], self._received, self._sent, self._group)
        return rows[torch.argsort(self._order)].reshape(*self._wanted, rows.shape[-1])
