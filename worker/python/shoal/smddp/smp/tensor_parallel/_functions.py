"""Exchanges between tensor parallel ranks, forward and backward. Every rank of the group has the same loss.

    copy      to the parallel part: the same tensor; gradients are summed
    add_up    from it: partial sums are summed; the gradient is the same on all
    gather    from it: parts of the last dimension are joined; a gradient's own part goes back
    scatter   to it: the own part of the last dimension; gradients are joined
"""

import torch
import torch.distributed as dist


def copy(tensor, tp):
    return _Copy.apply(tensor, tp)


def add_up(tensor, tp):
    return _AddUp.apply(tensor, tp)


def gather(tensor, tp):
    return _Gather.apply(tensor, tp)


def scatter(tensor, tp):
    return _Scatter.apply(tensor, tp)


def _summed(tensor, tp):
    tensor = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(tensor, group=tp.group)
    return tensor


def _joined(tensor, tp):
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(tp.size)]
    dist.all_gather(parts, tensor.contiguous(), group=tp.group)
    return torch.cat(parts, dim=-1)


def _own(tensor, tp):
    return tensor.chunk(tp.size, dim=-1)[tp.rank].contiguous()


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor, tp):
        context.tp = tp
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context, gradient):
        return _summed(gradient, context.tp), None


class _AddUp(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor, tp):
        return _summed(tensor, tp)

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor, tp):
        context.tp = tp
        return _joined(tensor, tp)

    @staticmethod
    def backward(context, gradient):
        return _own(gradient, context.tp), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor, tp):
        context.tp = tp
        return _own(tensor, tp)

    @staticmethod
    def backward(context, gradient):
        return _joined(gradient, context.tp), None
