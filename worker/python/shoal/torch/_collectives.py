"""Each collective over tensors, as requests of the library: one small function each.

A function takes the library's group and an Operation, to which it adds requests, the memory that
they use and what must follow them. It returns nothing and waits for nothing. Requests of an
operation complete in the order in which they were added.

Until the library has all-gather, reduce-scatter, gather and scatter of its own, they are made of
broadcasts and reduces here: right, but each byte goes through the sums, one root after another.
"""

import torch
from torch.distributed import ReduceOp

from shoal import errors, library
from shoal.torch import _tensors


def all_reduce(group, operation, tensor, op):
    """`tensor` becomes the reduction of all ranks' tensors, in place."""
    if tensor.layout != torch.strided:
        all_reduce_sparse(group, operation, tensor, op)
        return
    _tensors.check(tensor, "all_reduce")
    dtype, code = _tensors.reduction(tensor.dtype, op)
    data = _tensors.flat(tensor)
    address = data.data_ptr()
    operation.add(group.all_reduce(address, address, data.numel(), dtype, code), data, tensor)
    _finish_with(operation, _tensors.copy_back(tensor, data))


def all_reduce_sparse(group, operation, tensor, op):
    """`tensor`, of coordinates and values, becomes the sum of all ranks'. How many values each rank
    has must be known first: this waits for the ranks, as long as the operation may take."""
    if op != ReduceOp.SUM or tensor.layout != torch.sparse_coo:
        raise errors.InvalidError(f"all_reduce: {op} of a {tensor.layout} tensor")
    mine = tensor.detach().coalesce()
    counts = torch.zeros(group.size, dtype=torch.int64)
    counts[group.rank] = mine._nnz()
    request = group.all_reduce(
        counts.data_ptr(), counts.data_ptr(), group.size, library.I64, library.SUM
    )
    if not request.wait(max(1, int(operation.timeout_s * 1000))):
        operation.add(request, counts)
        raise errors.TimeoutError(f"timed out: {operation.name}")
    indices = [mine.indices().new_empty((mine.sparse_dim(), count)) for count in counts.tolist()]
    values = [mine.values().new_empty((count, *mine.values().shape[1:])) for count in counts.tolist()]
    all_gather(group, operation, indices, mine.indices())
    all_gather(group, operation, values, mine.values())

    def add_up():
        whole = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), tensor.shape)
        tensor.detach().copy_(whole.coalesce())

    operation.finishers.append(add_up)


def reduce(group, operation, tensor, op, root):
    """The root's tensor becomes the reduction; the others' stay."""
    _tensors.check(tensor, "reduce")
    dtype, code = _tensors.reduction(tensor.dtype, op)
    data = _tensors.flat(tensor)
    address = data.data_ptr()
    operation.add(group.reduce(address, address, data.numel(), dtype, code, root), data, tensor)
    if group.rank == root:
        _finish_with(operation, _tensors.copy_back(tensor, data))


def broadcast(group, operation, tensor, root):
    """Everybody's tensor becomes the root's."""
    _tensors.check(tensor, "broadcast")
    dtype, count = _tensors.movement(tensor)
    data = _tensors.flat(tensor)
    operation.add(group.broadcast(data.data_ptr(), count, dtype, root), data, tensor)
    if group.rank != root:
        _finish_with(operation, _tensors.copy_back(tensor, data))


def all_gather(group, operation, outputs, tensor):
    """outputs[r] becomes rank r's tensor. Sizes may differ between ranks; each rank gives outputs
    of the sizes that will come."""
    _tensors.check(tensor, "all_gather")
    if len(outputs) != group.size:
        raise errors.InvalidError(
            f"all_gather: {len(outputs)} output tensors for a group of {group.size}"
        )
    outputs[group.rank].detach().copy_(tensor.detach().reshape(outputs[group.rank].shape))
    for root, output in enumerate(outputs):
        broadcast(group, operation, output, root)


def reduce_scatter(group, operation, output, inputs, op):
    """`output` becomes the reduction of all ranks' inputs[own rank]."""
    _tensors.check(output, "reduce_scatter")
    if len(inputs) != group.size:
        raise errors.InvalidError(
            f"reduce_scatter: {len(inputs)} input tensors for a group of {group.size}"
        )
    for root, tensor in enumerate(inputs):
        _tensors.check(tensor, "reduce_scatter")
        dtype, code = _tensors.reduction(tensor.dtype, op)
        data = _tensors.flat(tensor)
        result = _tensors.flat(output) if root == group.rank else None
        if result is not None and result.numel() != data.numel():
            raise errors.InvalidError(
                f"reduce_scatter: {data.numel()} elements in, {result.numel()} out"
            )
        receive = None if result is None else result.data_ptr()
        operation.add(
            group.reduce(data.data_ptr(), receive, data.numel(), dtype, code, root), data, result
        )
        if result is not None:
            _finish_with(operation, _tensors.copy_back(output, result))
    operation.kept.append(output)


def gather(group, operation, outputs, tensor, root):
    """On the root outputs[r] becomes rank r's tensor; all tensors have the same size."""
    _tensors.check(tensor, "gather")
    if group.rank == root and len(outputs) != group.size:
        raise errors.InvalidError(
            f"gather: {len(outputs)} output tensors for a group of {group.size}"
        )
    scratch = None
    for source in range(group.size):
        if group.rank == root:
            place = outputs[source]
            if source == root:
                place.detach().copy_(tensor.detach())
        elif source == group.rank:
            place = tensor
        else:
            # Nobody looks at it, so that one is enough.
            scratch = tensor.new_empty(tensor.shape) if scratch is None else scratch
            place = scratch
        broadcast(group, operation, place, source)


def scatter(group, operation, output, inputs, root):
    """`output` becomes the root's inputs[own rank]; all tensors have the same size."""
    _tensors.check(output, "scatter")
    if group.rank == root and len(inputs) != group.size:
        raise errors.InvalidError(
            f"scatter: {len(inputs)} input tensors for a group of {group.size}"
        )
    scratch = None
    for receiver in range(group.size):
        if group.rank == root:
            place = inputs[receiver]
            if receiver == root:
                output.detach().copy_(place.detach())
        elif receiver == group.rank:
            place = output
        else:
            scratch = output.new_empty(output.shape) if scratch is None else scratch
            place = scratch
        broadcast(group, operation, place, root)


def barrier(group, operation):
    operation.add(group.barrier())


def missing(name):
    """What a collective that the library does not have raises."""
    raise errors.UnsupportedError(
        f"{name}: not in this version of shoal (libshoal {library.load().c.shoal_version().decode()})"
    )


def _finish_with(operation, finisher):
    if finisher:
        operation.finishers.append(finisher)
