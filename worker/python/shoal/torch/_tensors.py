"""Tensors as the library sees them: an address, a count, an element type, an operation."""

import torch
from torch.distributed import ReduceOp

from shoal import errors, library

DTYPES = {
    torch.float32: library.F32,
    torch.float64: library.F64,
    torch.float16: library.F16,
    torch.bfloat16: library.BF16,
    torch.int8: library.I8,
    torch.uint8: library.U8,
    torch.int32: library.I32,
    torch.int64: library.I64,
    torch.int16: library.I16,
    torch.uint16: library.U16,
    torch.uint32: library.U32,
    torch.uint64: library.U64,
}

_OPS = [
    (ReduceOp.SUM, library.SUM),
    (ReduceOp.AVG, library.AVG),
    (ReduceOp.PRODUCT, library.PROD),
    (ReduceOp.MIN, library.MIN),
    (ReduceOp.MAX, library.MAX),
    (ReduceOp.BAND, library.BAND),
    (ReduceOp.BOR, library.BOR),
    (ReduceOp.BXOR, library.BXOR),
]

# Pairs: sums and averages are those of the real and of the imaginary parts.
_PAIRS = {torch.complex64: library.F32, torch.complex128: library.F64}

# On bytes that are 0 or 1. A sum of truths is their "or", as torch.tensor + gives it.
_BOOL_OPS = {
    library.SUM: library.MAX,
    library.PROD: library.MIN,
    library.MIN: library.MIN,
    library.MAX: library.MAX,
    library.BAND: library.BAND,
    library.BOR: library.BOR,
    library.BXOR: library.BXOR,
}


def reduction(dtype, op):
    """(element type, operation) of the library for a reduction."""
    code = next((code for known, code in _OPS if op == known), None)
    if code is None:
        raise errors.UnsupportedError(f"{op} is not an operation of shoal")
    if dtype == torch.bool:
        if code not in _BOOL_OPS:
            raise errors.InvalidError(f"{op} is not for torch.bool")
        return library.U8, _BOOL_OPS[code]
    if dtype in _PAIRS:
        if code not in (library.SUM, library.AVG):
            raise errors.InvalidError(f"{op} is not for {dtype}: sums and averages are")
        return _PAIRS[dtype], code
    if dtype not in DTYPES:
        raise errors.InvalidError(f"{dtype} cannot be reduced: {known_names()} can")
    return DTYPES[dtype], code


def without_factor(op):
    """Return (the operation, None); for PREMUL_SUM, whose ranks each multiply before the sum, (SUM, the factor)."""
    if op != ReduceOp.PREMUL_SUM:
        return op, None
    state = op.__getstate__()  # (operation, factor); of the bare name a number
    if not isinstance(state, tuple):
        raise errors.InvalidError("PREMUL_SUM without a factor")
    return ReduceOp.SUM, state[1].reshape(()) if isinstance(state[1], torch.Tensor) else state[1]


def known_names():
    return ", ".join(str(dtype) for dtype in (*DTYPES, *_PAIRS, torch.bool))


def movement(tensor):
    """Return (element type, count) for moving a tensor's bytes: of any type, as itself where possible. A reduction has
    the same count."""
    if tensor.dtype in DTYPES:
        return DTYPES[tensor.dtype], tensor.numel()
    if tensor.dtype in _PAIRS:
        return _PAIRS[tensor.dtype], 2 * tensor.numel()
    return library.U8, tensor.numel() * tensor.element_size()


def check(tensor, what):
    if tensor.layout != torch.strided:
        raise errors.InvalidError(f"{what}: a {tensor.layout} tensor; shoal takes dense tensors")
    if tensor.device.type not in ("cpu", "cuda"):
        raise errors.UnsupportedError(
            f"{what}: a tensor on {tensor.device}; shoal takes CPU and CUDA tensors"
        )


def flat(tensor):
    """The tensor's elements in row-major order: itself, or a copy where it is laid out otherwise, or
    its memory has not the elements themselves (conj() and what is made of it)."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def product(tensor, factor):
    """Return flat() of the tensor times the factor, in memory of its own; without one flat() of the tensor."""
    return flat(tensor) if factor is None else flat(tensor.detach().clone().mul_(_factor_for(tensor, factor)))


def _factor_for(tensor, factor):
    """Return the factor by which a tensor is multiplied: one of its type where that is the same number."""
    factor = torch.as_tensor(factor, dtype=None if isinstance(factor, torch.Tensor) else torch.float64)
    if tensor.dtype.is_floating_point or tensor.is_complex():
        if torch.can_cast(factor.dtype, tensor.dtype):
            return factor
    elif tensor.dtype in DTYPES and not factor.is_complex():
        whole = factor.to(tensor.dtype)
        if whole.double().equal(factor.double()):
            return whole
    raise errors.InvalidError(
        f"PREMUL_SUM of {tensor.dtype} by a factor that is no number of that type: convert the tensor, or divide after"
        " the sum"
    )


def _first_of_shared(tensor):
    """Return an index that takes one element of each piece of memory, where elements share it (expand()), or None."""
    if 0 not in tensor.stride():
        return None
    shared = [stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape)]
    return tuple(slice(0, 1) if one else slice(None) for one in shared) if any(shared) else None


def check_written(tensor, what):
    """Refuse an output whose elements share memory and would get different values."""
    if _first_of_shared(tensor):
        raise errors.InvalidError(
            f"{what}: elements of an output of shape {list(tensor.shape)} share memory, as expand() makes them:"
            " give it memory of its own, as clone() does"
        )


def copy_back(tensor, contiguous):
    """Return a function that makes `tensor` hold what `contiguous`, made by flat() of it, holds; None: they are one.
    Elements that share memory must have got the same value."""
    first = _first_of_shared(tensor)
    if first:
        return lambda: _copy_shared(tensor.detach(), contiguous, first)
    if contiguous.data_ptr() == tensor.data_ptr():
        return None
    return lambda: tensor.detach().copy_(contiguous)


def _copy_shared(tensor, contiguous, first):
    values = contiguous[first]
    if not torch.all((values == contiguous) | ((values != values) & (contiguous != contiguous))):
        raise errors.InvalidError(
            f"elements of a tensor of shape {list(tensor.shape)} share memory, as expand() makes them, and those of"
            " the result differ, since those of another rank do: give it memory of its own, as clone() does"
        )
    tensor[first].copy_(values)
