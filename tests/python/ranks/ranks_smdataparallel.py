"""The interface of SMDDP's versions 1.0 to 1.3: its functions, and its wrapper beside torch's."""

import inspect
import logging
import os
import sys

import ranks
import shoal.smddp

shoal.smddp.install()  # as shoal-smddp does it when an interpreter starts

import shoal.torch  # noqa: E402
import smdistributed.dataparallel.torch.distributed as smdist  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel  # noqa: E402

# The published signatures: the arguments in their order, and the defaults of those that have one. A group of None is
# group.WORLD.
SIGNATURES = {
    "is_available": {},
    "is_initialized": {},
    "get_world_size": {"group": None},
    "get_rank": {"group": None},
    "get_local_rank": {},
    "all_reduce": {"tensor": ..., "op": "SUM", "group": None, "async_op": False},
    "broadcast": {"tensor": ..., "src": 0, "group": None, "async_op": False},
    "all_gather": {"tensor_list": ..., "tensor": ..., "group": None, "async_op": False},
    "all_to_all_single": {
        "output_t": ...,
        "input_t": ...,
        "output_split_sizes": None,
        "input_split_sizes": None,
        "group": None,
        "async_op": False,
    },
    "barrier": {"group": None, "async_op": False},
}
WRAPPER = {
    "module": ...,
    "device_ids": None,
    "output_device": None,
    "broadcast_buffers": True,
    "process_group": None,
    "bucket_cap_mb": None,
}


def own(*values):
    return torch.tensor([float(value) + dist.get_rank() for value in values])


def check_signature(function, expected):
    parameters = list(inspect.signature(function).parameters.values())[: len(expected)]
    assert [parameter.name for parameter in parameters] == list(expected), function
    for parameter in parameters:
        default = expected[parameter.name]
        if default is ...:
            assert parameter.default is parameter.empty, parameter
        elif default == "SUM":
            assert parameter.default == smdist.ReduceOp.SUM, parameter
        else:
            assert parameter.default is default, parameter


def test_signatures():
    for name, expected in SIGNATURES.items():
        check_signature(getattr(smdist, name), expected)
    check_signature(DistributedDataParallel, WRAPPER)
    check_signature(smdist.init_process_group, {"backend": None})  # all may be left out


def test_ranks():
    assert smdist.is_available() and smdist.is_initialized()
    assert smdist.get_rank() == smdist.get_rank(smdist.group.WORLD) == dist.get_rank()
    assert smdist.get_world_size() == dist.get_world_size()
    assert dist.get_backend() == "smddp"
    import smdistributed.dataparallel.torch as whole

    # The guides' text has these names.
    assert whole.get_rank() == dist.get_rank() and whole.distributed is smdist


def test_the_local_rank():
    """The local rank is the one that the launcher tells, on each of two nodes."""
    assert smdist.get_local_rank() == int(os.environ["LOCAL_RANK"]) == dist.get_rank() % 2


def test_the_group_is_made_once():
    smdist.init_process_group()
    smdist.init_process_group(backend="smddp")
    assert dist.get_backend() == "smddp"


def test_reductions():
    size = dist.get_world_size()
    total = sum(range(size))
    for op, expected in (
        (smdist.ReduceOp.SUM, total),
        (None, total),
        (smdist.ReduceOp.AVERAGE, total / size),
        (smdist.ReduceOp.MIN, 0),
        (smdist.ReduceOp.MAX, size - 1),
    ):
        tensor = own(0, 0)
        assert smdist.all_reduce(tensor, op=op) is None
        assert tensor.tolist() == [expected] * 2, op
        tensor = own(0)
        smdist.reduce(tensor, 1, op)
        assert tensor.item() == (expected if dist.get_rank() == 1 else dist.get_rank()), op
    tensor = own(0)
    work = smdist.all_reduce(tensor, async_op=True)
    work.wait()
    assert tensor.item() == total


def test_moves():
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = own(7)
    assert smdist.broadcast(tensor) is None and tensor.item() == 7
    tensor = own(7)
    smdist.broadcast(tensor, size - 1, smdist.group.WORLD, True).wait()
    assert tensor.item() == 7 + size - 1
    gathered = [torch.empty(2) for _ in range(size)]
    assert smdist.all_gather(gathered, own(1, 2)) is None
    assert [part.tolist() for part in gathered] == [[1.0 + r, 2.0 + r] for r in range(size)]
    received = torch.empty(size)
    smdist.all_to_all_single(received, torch.arange(float(size)) + 10 * rank)
    assert received.tolist() == [10.0 * other + rank for other in range(size)]
    received = torch.empty(size * (rank + 1))
    given = torch.arange(size * (size + 1) / 2)
    sizes = [other + 1 for other in range(size)]
    smdist.all_to_all_single(received, given, [rank + 1] * size, sizes)
    assert torch.equal(received, given.split(sizes)[rank].repeat(size))
    smdist.barrier()
    smdist.barrier(async_op=True).wait()


def test_a_group_of_torchs():
    group = dist.new_group([1, 2], timeout=ranks.TIMEOUT)
    if dist.get_rank() in (1, 2):
        tensor = torch.ones(1)
        smdist.all_reduce(tensor, group=group)
        assert tensor.item() == smdist.get_world_size(group) == 2


class Model(torch.nn.Module):
    """With a buffer of running figures."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 2)
        self.double()  # so that sums in another order make no difference

    def forward(self, inputs):
        return self.last(self.norm(torch.relu(self.first(inputs))))


def train(wrap, accumulate):
    """The state after some steps; the ranks' models differ at the start."""
    torch.manual_seed(dist.get_rank())
    wrapped = wrap(Model())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.5)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        if accumulate:
            with wrapped.no_sync():
                inputs = torch.randn(5, 6, generator=generator, dtype=torch.float64)
                wrapped(inputs).square().mean().backward()
        inputs = torch.randn(5, 6, generator=generator, dtype=torch.float64)
        wrapped(inputs).square().mean().backward()
        optimizer.step()
    return {name: tensor.clone() for name, tensor in wrapped.state_dict().items()}


def test_the_wrapper():
    """The wrapper trains like torch's on gloo: with and without broadcasts of buffers, with local passes."""
    torchs = torch.nn.parallel.DistributedDataParallel
    for broadcast in (True, False):
        for accumulate in (False, True):
            expected = train(
                lambda model: torchs(model, process_group=ranks.gloo, broadcast_buffers=broadcast), accumulate
            )
            # Theirs is by place, where torch's has another argument.
            got = train(lambda model: DistributedDataParallel(model, None, None, broadcast), accumulate)
            assert got.keys() == expected.keys()
            for name, tensor in expected.items():
                torch.testing.assert_close(got[name], tensor, rtol=1e-9, atol=1e-12, msg=name)


def test_arguments_of_the_wrapper():
    model = torch.nn.Linear(2, 2)
    wrapped = DistributedDataParallel(
        model,
        device_ids=[smdist.get_local_rank()],
        broadcast_buffers=False,
        process_group=smdist.group.WORLD,
        bucket_cap_mb=25,
        find_unused_parameters=True,
        gradient_accumulation_steps=1,
    )
    assert isinstance(wrapped, shoal.torch.DistributedDataParallel)
    wrapped(own(1, 1)).sum().backward()
    assert wrapped.gradient_as_bucket_view  # in memory of the group's, where torch asks for it
    refused = ranks.raises(
        shoal.UnsupportedError, lambda: DistributedDataParallel(model, gradient_accumulation_steps=2)
    )
    assert "gradient_accumulation_steps=2" in str(refused) and "no_sync()" in str(refused), refused
    unknown = ranks.raises(TypeError, lambda: DistributedDataParallel(model, bucket_cap=1))
    assert "bucket_cap" in str(unknown), unknown


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


lines = Lines()


def test_another_backends_name_is_logged_once():
    said = [line for line in lines.lines if "init_process_group" in line]
    wanted = ["init_process_group: the backend nccl is not asked here, it is smddp"]
    assert said == (wanted if dist.get_rank() == 0 else []), lines.lines


def print_local_rank():
    """Print the local rank where no launcher has told it."""
    for name in ("LOCAL_RANK", "SMDATAPARALLEL_LOCAL_RANK"):
        os.environ.pop(name, None)
    smdist.init_process_group(
        init_method=f"file://{os.environ['TEST_STORE']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    print("local rank", smdist.get_local_rank())
    smdist.barrier()


if __name__ == "__main__":
    if sys.argv[1:] == ["local rank"]:
        print_local_rank()
        sys.exit()
    assert smdist.is_available() and not smdist.is_initialized()
    logging.getLogger("shoal.smddp").addHandler(lines)
    ranks.start("nccl", smdist.init_process_group)  # as scripts that came from nccl have it
    ranks.run("__main__")
