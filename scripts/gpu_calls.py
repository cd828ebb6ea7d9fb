#!/usr/bin/env python3
"""One rank of two (scripts/check-gpu.sh starts them): every kind of call of torch on CUDA tensors. Each comes behind
work that takes the GPU a while, and its result is looked at as soon as the call says that it is there, by Python and
by those parts of torch that wait in C++. Prints a line for each call; the exit status is 1 when one failed."""

import os
import sys
import traceback

import torch
import torch.distributed as dist

import shoal.torch

CYCLES = 20_000_000  # of the GPU, some 10 ms


def filled(count, value=None):
    """On the GPU, late: whoever reads it without waiting for its stream finds something else."""
    torch.cuda._sleep(CYCLES)
    return torch.full((count,), float(dist.get_rank() + 1 if value is None else value), device="cuda")


def expect(tensor, value):
    assert torch.all(tensor == value), f"{tensor} instead of {value}"


def other():
    return 1 - dist.get_rank()


def all_reduce():
    for count in (1, 1000, 5_000_000):
        tensor = filled(count)
        dist.all_reduce(tensor)
        expect(tensor, 3)


def all_reduce_later():
    tensor = filled(1000)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    expect(tensor, 3)
    work = dist.all_reduce(tensor, async_op=True)
    work.get_future().wait()
    expect(tensor, 6)


def broadcast():
    tensor = filled(1000)
    dist.broadcast(tensor, 0)
    expect(tensor, 1)


def reduce():
    tensor = filled(1000)
    dist.reduce(tensor, 0)
    if dist.get_rank() == 0:
        expect(tensor, 3)


def all_gather():
    parts = [filled(1000, 0) for _ in range(2)]
    dist.all_gather(parts, filled(1000))
    for number, part in enumerate(parts):
        expect(part, number + 1)
    whole = filled(2000, 0)
    dist.all_gather_into_tensor(whole, filled(1000))
    expect(whole[:1000], 1)
    expect(whole[1000:], 2)


def reduce_scatter():
    part = filled(1000, 0)
    dist.reduce_scatter_tensor(part, filled(2000))
    expect(part, 3)


def all_to_all():
    got = filled(2000, 0)
    dist.all_to_all_single(got, filled(2000))
    expect(got[:1000], 1)
    expect(got[1000:], 2)


def gather_and_scatter():
    first = dist.get_rank() == 0
    parts = [filled(1000, 0) for _ in range(2)] if first else None
    dist.gather(filled(1000), parts, 0)
    for number, part in enumerate(parts or ()):
        expect(part, number + 1)
    got = filled(1000, 0)
    dist.scatter(got, [filled(1000, 7), filled(1000, 8)] if first else None, 0)
    expect(got, 7 + dist.get_rank())


def strided():
    tensor = filled(6000).reshape(60, 100).t()
    dist.all_reduce(tensor)
    expect(tensor, 3)


def barrier():
    dist.barrier()
    dist.barrier(device_ids=[torch.cuda.current_device()])


def objects():
    got = [None] * 2
    dist.all_gather_object(got, {"rank": dist.get_rank()})
    assert got == [{"rank": 0}, {"rank": 1}], got


def send_and_receive():
    if dist.get_rank() == 1:
        dist.send(filled(1000), 0)
        dist.send(filled(5_000_000), 0)
    else:
        got, large = filled(1000, 0), filled(5_000_000, 0)
        assert dist.recv(got) == 1  # from any rank
        dist.recv(large, 1)
        expect(got, 2)
        expect(large, 2)


def batch():
    for count in (1, 1000, 5_000_000):
        sent, got = filled(count), filled(count, 0)
        both = [dist.P2POp(dist.isend, sent, other()), dist.P2POp(dist.irecv, got, other())]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        expect(got, other() + 1)


def coalesced():
    tensors = [filled(1000) for _ in range(3)]
    with dist._coalescing_manager(device=torch.device("cuda")):
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        expect(tensor, 3)


def another_group():
    tensor = filled(1000)
    dist.all_reduce(tensor, group=dist.new_group([0, 1]))
    expect(tensor, 3)


def another_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = filled(1000)
        dist.all_reduce(tensor)
        expect(tensor, 3)


def a_new_kernel():
    """One that is not loaded is launched while the other rank has not come: loading it waits for streams, with a
    lock without which nothing could be copied."""
    if dist.get_rank() == 1:
        torch.cuda._sleep(50 * CYCLES)
        torch.cuda.synchronize()
    tensor = filled(1000)
    dist.all_reduce(tensor)
    torch.special.bessel_j0(tensor.double())
    expect(tensor, 3)


def parameters_are_verified():
    """torch's C++ waits, and looks at once."""
    from torch.distributed.utils import _verify_param_shape_across_processes

    _verify_param_shape_across_processes(dist.group.WORLD, [filled(3), filled(4)])
    tensors = [filled(3), filled(4)]
    dist._broadcast_coalesced(dist.group.WORLD, tensors, 250 << 20, 0)
    for tensor in tensors:
        expect(tensor, 1)


def functional():
    from torch.distributed import _functional_collectives

    expect(_functional_collectives.all_reduce(filled(1000), "sum", dist.group.WORLD) * 1, 3)


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()


def losses(wrapped, make_optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1)):
    """Train three steps, and return the losses of the mean over both ranks, which have half of the data each."""
    optimizer, found = make_optimizer(wrapped.parameters()), []
    for step in range(3):
        torch.manual_seed(step)
        mine = torch.randn(2, 16, 64)[dist.get_rank()].cuda()
        loss = wrapped(mine).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach_(), group=dist.group.WORLD)
        found.append(loss.item() / 2)
    return found


def wrappers():
    """All train alike."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def sharded(parameters):
        return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)

    torchs = torch.nn.parallel.DistributedDataParallel
    found = {
        "torch's": losses(torchs(model())),
        "shoal's": losses(shoal.torch.DistributedDataParallel(model())),
        "ZeRO": losses(torchs(model()), sharded),
        "FSDP": losses(FullyShardedDataParallel(model(), device_id=torch.cuda.current_device(), use_orig_params=True)),
    }
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        pass
    else:
        sharded_model = model()
        fully_shard(sharded_model)
        found["fully_shard"] = losses(sharded_model)
    wanted = found["torch's"]
    assert wanted[0] > wanted[-1], found
    for values in found.values():
        assert all(abs(a - b) < 1e-5 for a, b in zip(values, wanted)), found


CALLS = [
    all_reduce,
    all_reduce_later,
    broadcast,
    reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    gather_and_scatter,
    strided,
    barrier,
    objects,
    send_and_receive,
    batch,
    coalesced,
    another_group,
    another_stream,
    a_new_kernel,
    parameters_are_verified,
    functional,
    wrappers,
]


def main():
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("shoal")
    failed = 0
    for call in CALLS:
        try:
            call()
            torch.cuda.synchronize()
            print(f"ok {call.__name__}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {call.__name__}\n{traceback.format_exc()}", flush=True)
    if dist.get_rank() == 1:  # what is not waited for is there in the end
        dist.send(filled(5_000_000, 9), 0)
    else:
        got = filled(5_000_000, 0)
        dist.recv(got, 1)
        expect(got, 9)
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
