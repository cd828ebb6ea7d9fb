"""Reductions and movements of every type of elements, compared with gloo's or with what must come out."""

import itertools
import unittest

import ranks
import torch
import torch.distributed as dist
from sample_tensors import DTYPES, check_equal, everybody, group, values
from shoal import errors
from torch.distributed import ReduceOp


def test_all_reduce_of_every_type():
    folds = {
        ReduceOp.SUM: torch.add,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.MIN: torch.minimum,
        ReduceOp.MAX: torch.maximum,
    }
    for dtype, (op, fold) in itertools.product(DTYPES, folds.items()):
        tensor = values(dtype)
        expected = everybody(tensor)[0]
        for other in everybody(tensor)[1:]:
            expected = fold(expected, other)
        dist.all_reduce(tensor, op, group=group())
        check_equal(tensor, expected)


def test_all_reduce_bitwise():
    folds = {
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }
    for dtype, (op, fold) in itertools.product(DTYPES[4:], folds.items()):
        tensor = values(dtype)
        all_of_them = everybody(tensor)
        expected = all_of_them[0]
        for other in all_of_them[1:]:
            expected = fold(expected, other)
        dist.all_reduce(tensor, op, group=group())
        check_equal(tensor, expected)


def whole_range(dtype, count):
    """Any bits of an integer type, or complex numbers whose sums are exact, different on each rank."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    if dtype.is_complex:
        pairs = torch.randint(-99, 99, (count, 2), generator=generator)
        return torch.view_as_complex(pairs.to(dtype.to_real()))
    bits = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return bits.view(dtype)


def check_bits(got, expected):
    assert got.dtype == expected.dtype and torch.equal(got.view(torch.uint8), expected.view(torch.uint8)), (
        got,
        expected,
    )


def gloo_reduces(tensor, op):
    """Reduce over Gloo, which has the types of complex numbers, but not those of integers: as int64 they wrap alike."""
    if tensor.dtype.is_complex:
        wide = tensor.clone()
    else:
        wide = tensor.view(torch.int64).clone() if tensor.dtype == torch.uint64 else tensor.to(torch.int64)
    turned = tensor.dtype == torch.uint64 and op in (ReduceOp.MIN, ReduceOp.MAX)  # to where int64 has that order
    dist.all_reduce(wide.bitwise_xor_(-(2**63)) if turned else wide, op, group=ranks.gloo)
    if turned:
        wide.bitwise_xor_(-(2**63))
    return wide.view(tensor.dtype) if tensor.dtype == torch.uint64 else wide.to(tensor.dtype)


def gloo_gathers(tensor):
    """Everybody's, over Gloo, as bytes."""
    gathered = [torch.empty_like(tensor.view(torch.uint8)) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor.view(torch.uint8), group=ranks.gloo)
    return [other.view(tensor.dtype) for other in gathered]


# Gloo does not know these types, nor complex numbers.
LATER = [*DTYPES[8:], torch.complex64, torch.complex128]


def test_reductions_of_the_whole_range_of_a_type():
    size, rank = dist.get_world_size(), dist.get_rank()
    every = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
    for dtype in LATER:
        for op in [ReduceOp.SUM] if dtype.is_complex else every:
            mine = whole_range(dtype, 5 * size)
            expected = gloo_reduces(mine, op)
            tensor = mine.clone()
            dist.all_reduce(tensor, op, group=group())
            check_bits(tensor, expected)
            tensor = mine.clone()
            dist.reduce(tensor, 1, op, group=group())
            check_bits(tensor, expected if rank == 1 else mine)
            own = expected[5 * rank : 5 * rank + 5]
            output = torch.empty(5, dtype=dtype)
            dist.reduce_scatter(output, list(mine.chunk(size)), op, group=group())
            check_bits(output, own)
            output = torch.empty(5, dtype=dtype)
            dist.reduce_scatter_tensor(output, mine, op, group=group())
            check_bits(output, own)
        tensor = mine.clone()
        dist.all_reduce(tensor, ReduceOp.AVG, group=group())
        sums = gloo_reduces(mine, ReduceOp.SUM).tolist()
        means = [value / size if dtype.is_complex else abs(value) // size * (1 if value > 0 else -1) for value in sums]
        assert tensor.tolist() == means, (dtype, tensor, means)


def test_movements_of_the_whole_range_of_a_type():
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype in LATER:
        mine = whole_range(dtype, 3 * size)
        theirs = gloo_gathers(mine)
        tensor = mine.clone()
        dist.broadcast(tensor, 1, group=group())
        check_bits(tensor, theirs[1])
        outputs = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(outputs, mine, group=group())
        check_bits(torch.cat(outputs), torch.cat(theirs))
        output = torch.empty(3 * size * size, dtype=dtype)
        dist.all_gather_into_tensor(output, mine, group=group())
        check_bits(output, torch.cat(theirs))
        dist.gather(mine, outputs if rank == 0 else None, 0, group=group())
        check_bits(torch.cat(outputs), torch.cat(theirs))
        output = torch.empty(3, dtype=dtype)
        dist.scatter(output, list(mine.chunk(size)) if rank == 1 else None, 1, group=group())
        check_bits(output, theirs[1].chunk(size)[rank])
        crossed = torch.cat([other.chunk(size)[rank] for other in theirs])
        outputs = [torch.empty(3, dtype=dtype) for _ in range(size)]
        dist.all_to_all(outputs, list(mine.chunk(size)), group=group())
        check_bits(torch.cat(outputs), crossed)
        output = torch.empty_like(mine)
        dist.all_to_all_single(output, mine, group=group())
        check_bits(output, crossed)
        sent = dist.isend(mine, (rank + 1) % size, group=group())
        dist.recv(output, (rank - 1) % size, group=group())
        sent.wait()
        check_bits(output, theirs[rank - 1])


def test_products_before_the_sum():
    """PREMUL_SUM, with a number and with a tensor: what is sent stays as it was."""
    size, rank = dist.get_world_size(), dist.get_rank()
    total = 0.5 * sum(range(1, size + 1))
    for factor, dtype in itertools.product((0.5, torch.tensor([0.5])), (torch.float32, torch.complex64)):
        op = dist._make_nccl_premul_sum(factor)

        def full(*shape):
            return torch.full(shape, rank + 1, dtype=dtype)

        for tensor in (full(4), full(4, 4).t()[::2]):
            dist.all_reduce(tensor, op, group=group())
            assert torch.all(tensor == total), tensor
        tensor = full(4)
        dist.reduce(tensor, 1, op, group=group())
        assert torch.all(tensor == (total if rank == 1 else rank + 1)), tensor
        inputs, out = [full(2) for _ in range(size)], torch.zeros(2, dtype=dtype)
        dist.reduce_scatter(out, inputs, op, group=group())
        assert out.tolist() == [total] * 2 and inputs[0].tolist() == [rank + 1] * 2
        dist.reduce_scatter_tensor(out.zero_(), whole := full(2 * size), op, group=group())
        assert out.tolist() == [total] * 2 and torch.all(whole == rank + 1)


def test_products_of_integers():
    """A factor that is a number of the tensor's type, whatever it is written as; another one is refused, and no tensor
    is changed."""
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype, factor in ((torch.int64, 2.0), (torch.int16, torch.tensor(2.0)), (torch.uint8, torch.tensor(2))):
        tensor = torch.full((4,), rank + 1, dtype=dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor), group=group())
        assert tensor.tolist() == [size * (size + 1)] * 4, tensor
    none = ((torch.int32, 0.5), (torch.uint8, 300.0), (torch.uint8, -1.0), (torch.bool, 1.0))
    none += ((torch.uint8, torch.tensor(300)), (torch.uint8, torch.tensor(-1)), (torch.int16, torch.tensor(1 << 20)))
    for dtype, factor in none:
        tensor = torch.ones(4, dtype=dtype)
        op = dist._make_nccl_premul_sum(factor)
        parts = [tensor] * size
        for call in (
            lambda: dist.all_reduce(tensor, op, group=group()),
            lambda: dist.reduce(tensor, 0, op, group=group()),
            lambda: dist.reduce_scatter(torch.empty_like(tensor), parts, op, group=group()),
        ):
            error = ranks.raises(errors.InvalidError, call)
            assert "PREMUL_SUM" in str(error), error
        assert torch.all(tensor == 1)


def test_average():
    tensor = values(torch.float32)
    expected = sum(everybody(tensor)).float() / dist.get_world_size()
    dist.all_reduce(tensor, ReduceOp.AVG, group=group())
    check_equal(tensor, expected)


def test_truth_values():
    size, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.tensor([False, True, rank == 0, rank != 0])
    expected = {
        ReduceOp.SUM: [False, True, True, size > 1],
        ReduceOp.MAX: [False, True, True, size > 1],
        ReduceOp.BOR: [False, True, True, size > 1],
        ReduceOp.PRODUCT: [False, True, False, False],
        ReduceOp.MIN: [False, True, False, False],
        ReduceOp.BAND: [False, True, False, False],
        ReduceOp.BXOR: [False, size % 2 == 1, True, size % 2 == 0],
    }
    for op, values_of_op in expected.items():
        tensor = mine.clone()
        dist.all_reduce(tensor, op, group=group())
        assert tensor.dtype == torch.bool and tensor.tolist() == values_of_op, (op, tensor)
        assert set(tensor.view(torch.uint8).tolist()) <= {0, 1}
    tensor = mine.clone()
    dist.broadcast(tensor, 0, group=group())
    assert tensor.tolist() == [False, True, True, False]


def test_truth_values_in_parts():
    size, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.tensor([rank == 0, True])
    outputs = [torch.empty(2, dtype=torch.bool) for _ in range(size)]
    dist.all_gather(outputs, mine, group=group())
    assert [output.tolist() for output in outputs] == [[other == 0, True] for other in range(size)]
    output = torch.empty(2, dtype=torch.bool)
    dist.reduce_scatter(output, [mine] * size, ReduceOp.MIN, group=group())
    assert output.tolist() == [False, True]
    dist.reduce_scatter(output, [mine] * size, group=group())
    assert output.tolist() == [True, True]


def test_complex_numbers():
    import shoal

    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.full((3, 2), complex(rank, 1), dtype=dtype).t()
        dist.all_reduce(tensor, group=group())
        assert torch.all(tensor == complex(sum(range(size)), size))
        outputs = [torch.empty(2, dtype=dtype) for _ in range(size)]
        reduced = torch.full((3, 2), complex(rank, 1), dtype=dtype)
        dist.reduce(reduced, 1, group=group())
        assert torch.all(reduced == (complex(sum(range(size)), size) if rank == 1 else complex(rank, 1)))
        part = torch.empty(2, dtype=dtype)
        for op, over in ((ReduceOp.SUM, 1), (ReduceOp.AVG, size)):
            given = [torch.full((2,), complex(rank, other), dtype=dtype) for other in range(size)]
            dist.reduce_scatter(part, given, op, group=group())
            assert torch.all(part == complex(sum(range(size)) / over, size * rank / over)), part
        ranks.raises(shoal.InvalidError, lambda: dist.reduce(reduced, 0, ReduceOp.PRODUCT, group=group()))
        dist.all_gather(outputs, torch.full((2,), complex(0, rank), dtype=dtype), group=group())
        for other, output in enumerate(outputs):
            assert torch.all(output == complex(0, other))


def test_complex_numbers_that_torch_has_conjugated_lazily():
    """Their memory is of other numbers: what is sent and what is received are the numbers."""
    if type(group()) is dist.ProcessGroup:
        raise unittest.SkipTest("torch's dispatcher gives a backend in C++ copies of them; broadcast refuses them")
    rank = dist.get_rank()
    for make, expected in (
        (lambda: torch.full((3,), complex(1, rank + 1)).conj(), complex(1, -1)),
        (lambda: torch.full((1,), complex(1, rank + 1)).conj().imag, -1),
    ):
        mixed = make() if rank % 2 == 0 else make().resolve_conj().resolve_neg()
        group().broadcast(mixed, 0).wait()  # dist.broadcast refuses it on any backend, from torch 2.13 on
        assert torch.all(mixed == expected), mixed
