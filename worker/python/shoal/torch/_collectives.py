"""Each collective over tensors, as requests of the library: one small function each.

A function takes the library's group and an Operation, to which it adds requests, the memory that
they use and what must follow them. It returns nothing and waits for nothing. Requests of an
operation complete in the order in which they were added.
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
    _check_in_place(group, operation, tensor, "all_reduce")
    op, factor = _tensors.without_factor(op)
    dtype, code = _tensors.reduction(tensor.dtype, op)
    data = _tensors.product(tensor, factor)
    address = data.data_ptr()
    _, count = _tensors.movement(data)
    operation.add(group.all_reduce(address, address, count, dtype, code), data, tensor)
    _finish_with(operation, _tensors.copy_back(tensor, data))


def all_reduce_sparse(group, operation, tensor, op):
    """`tensor`, of coordinates and values, becomes the sum, or the average, of all ranks'. How many values each rank
    has must be known first: this waits for the ranks, as long as the operation may take."""
    average = op == ReduceOp.AVG
    if (op != ReduceOp.SUM and not average) or tensor.layout != torch.sparse_coo:
        raise errors.InvalidError(f"all_reduce: {op} of a {tensor.layout} tensor")
    if tensor.device.type != "cpu":
        raise errors.UnsupportedError(f"all_reduce: a sparse tensor on {tensor.device}")
    mine = tensor.detach().coalesce()
    counts = torch.zeros(group.size, dtype=torch.int64)
    counts[group.rank] = mine._nnz()
    address = counts.data_ptr()
    request = group.all_reduce(address, address, group.size, library.I64, library.SUM)
    operation.add(request, counts)
    operation.complete_requests()
    indices = [mine.indices().new_empty((mine.sparse_dim(), count)) for count in counts.tolist()]
    values = [mine.values().new_empty((count, *mine.values().shape[1:])) for count in counts.tolist()]
    all_gather(group, operation, indices, mine.indices())
    all_gather(group, operation, values, mine.values())

    def add_up():
        whole = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), tensor.shape)
        with torch.no_grad():
            tensor.copy_(whole.coalesce() / group.size if average else whole.coalesce())

    operation.finishers.append(add_up)


def reduce(group, operation, tensor, op, root):
    """The root's tensor becomes the reduction; the others' stay."""
    _check_in_place(group, operation, tensor, "reduce")
    op, factor = _tensors.without_factor(op)
    dtype, code = _tensors.reduction(tensor.dtype, op)
    data = _tensors.product(tensor, factor)
    address = data.data_ptr()
    _, count = _tensors.movement(data)
    operation.add(group.reduce(address, address, count, dtype, code, root), data, tensor)
    if group.rank == root:
        _finish_with(operation, _tensors.copy_back(tensor, data))


def broadcast(group, operation, tensor, root):
    """Everybody's tensor becomes the root's."""
    _check_in_place(group, operation, tensor, "broadcast")
    dtype, count = _tensors.movement(tensor)
    data = _tensors.flat(tensor)
    operation.add(group.broadcast(data.data_ptr(), count, dtype, root), data, tensor)
    if group.rank != root:
        _finish_with(operation, _tensors.copy_back(tensor, data))


def all_gather(group, operation, outputs, tensor):
    """outputs[r] becomes rank r's tensor. Sizes may differ between ranks; each rank gives outputs
    of the sizes that will come."""
    dtype, _ = _check_all("all_gather", group, operation, [tensor], outputs)
    if outputs[group.rank].numel() != tensor.numel():
        raise errors.InvalidError(
            f"all_gather: {tensor.numel()} elements are given, and the output for them has"
            f" {outputs[group.rank].numel()}"
        )
    data = _tensors.flat(tensor)
    results = _receive(operation, outputs, "all_gather")
    operation.add(group.all_gather(data.data_ptr(), _parts(results), dtype), data, tensor)


def reduce_scatter(group, operation, output, inputs, op):
    """`output` becomes the reduction of all ranks' inputs[own rank]."""
    _check_all("reduce_scatter", group, operation, [output], inputs)
    op, factor = _tensors.without_factor(op)
    dtype, code = _tensors.reduction(output.dtype, op)
    if output.numel() != inputs[group.rank].numel():
        raise errors.InvalidError(
            f"reduce_scatter: {output.numel()} elements out, {inputs[group.rank].numel()} in"
        )
    parts = [_tensors.product(tensor, factor) for tensor in inputs]
    (result,) = _receive(operation, [output], "reduce_scatter")
    request = group.reduce_scatter(_parts(parts), result.data_ptr(), dtype, code)
    operation.add(request, parts, list(inputs))


def gather(group, operation, outputs, tensor, root):
    """On the root outputs[r] becomes rank r's tensor; `outputs` is not looked at elsewhere."""
    outputs = outputs if group.rank == root else None
    dtype, count = _check_all("gather", group, operation, [tensor], outputs)
    data = _tensors.flat(tensor)
    results = None if outputs is None else _parts(_receive(operation, outputs, "gather"))
    operation.add(group.gather(data.data_ptr(), count, results, dtype, root), data, tensor)


def scatter(group, operation, output, inputs, root):
    """`output` becomes the root's inputs[own rank]; `inputs` is not looked at elsewhere."""
    inputs = inputs if group.rank == root else None
    dtype, count = _check_all("scatter", group, operation, [output], inputs)
    parts = None if inputs is None else [_tensors.flat(tensor) for tensor in inputs]
    (result,) = _receive(operation, [output], "scatter")
    given = None if parts is None else _parts(parts)
    operation.add(group.scatter(given, result.data_ptr(), count, dtype, root), parts, inputs)


def all_to_all(group, operation, outputs, inputs):
    """inputs[r] goes to rank r, outputs[r] comes from it; of any sizes."""
    dtype, _ = _check_all("all_to_all", group, operation, [], outputs)
    _check_all("all_to_all", group, operation, outputs[:1], inputs)
    parts = [_tensors.flat(tensor) for tensor in inputs]
    results = _receive(operation, outputs, "all_to_all")
    operation.add(group.all_to_all(_parts(parts), _parts(results), dtype), parts, list(inputs))


def barrier(group, operation):
    operation.add(group.barrier())


def send(group, operation, tensor, peer, tag):
    _check(group, operation, tensor, "send")
    dtype, count = _tensors.movement(tensor)
    data = _tensors.flat(tensor)
    operation.add(group.send(data.data_ptr(), count, dtype, peer, tag), data, tensor)


def recv(group, operation, tensor, peer, tag):
    _check(group, operation, tensor, "recv")
    dtype, count = _tensors.movement(tensor)
    (result,) = _receive(operation, [tensor], "recv")
    operation.add(group.recv(result.data_ptr(), count, dtype, peer, tag))


def recv_any(group, operation, tensor, tag, source):
    """From whoever sends first; `source`, a ctypes.c_int, becomes the rank of the group."""
    _check(group, operation, tensor, "recv")
    dtype, count = _tensors.movement(tensor)
    (result,) = _receive(operation, [tensor], "recv")
    operation.add(group.recv_any(result.data_ptr(), count, dtype, tag, source), source)


def whole(operation, tensor, what, written=False):
    """A tensor of which ranks get parts, contiguous: itself or a copy, which it gets if `written`."""
    _tensors.check(tensor, what)
    data = _tensors.flat(tensor)
    if written:
        _tensors.check_written(tensor, what)
        _finish_with(operation, _tensors.copy_back(tensor, data))
    return data


def _check(group, operation, tensor, what):
    """Before anything of an operation is started: what it takes, and where all of it must lie."""
    _tensors.check(tensor, what)
    operation.use_device_of(group, tensor, what)


def _check_in_place(group, operation, tensor, what):
    """Check a tensor that is written in place. One on a device may not have elements that share memory: whether they
    got one value would be known too late."""
    _check(group, operation, tensor, what)
    if tensor.device.type != "cpu":
        _tensors.check_written(tensor, what)


def _finish_with(operation, finisher):
    if finisher:
        operation.finishers.append(finisher)


def _check_all(name, group, operation, tensors, listed):
    """(element type, count) of the first tensor. listed: one tensor for each rank, or None. All must
    be dense, on one device and of one type."""
    if listed is not None and len(listed) != group.size:
        raise errors.InvalidError(f"{name}: {len(listed)} tensors for a group of {group.size}")
    every = [*tensors, *(listed or [])]
    for tensor in every:
        _check(group, operation, tensor, name)
        if tensor.dtype != every[0].dtype:
            raise errors.InvalidError(f"{name}: {every[0].dtype} and {tensor.dtype} together")
    return _tensors.movement(every[0])


def _receive(operation, tensors, what):
    """Where the library may write for each of these tensors, which then get it."""
    for tensor in tensors:
        _tensors.check_written(tensor, what)
    results = [_tensors.flat(tensor) for tensor in tensors]
    for tensor, result in zip(tensors, results):
        _finish_with(operation, _tensors.copy_back(tensor, result))
    operation.kept.extend((results, list(tensors)))
    return results


def _parts(tensors):
    return [(tensor.data_ptr(), _tensors.movement(tensor)[1]) for tensor in tensors]
