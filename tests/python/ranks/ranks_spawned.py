"""A script that makes its ranks itself, as torch's tutorials do: spawned and forked, with a store at
localhost, one job after another. Its argument is the port of the store."""

import os
import sys
import tempfile

import shoal.torch  # noqa: F401
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

SIZE = 2


def set_up(rank, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = port
    more = {}
    # Scripts for nccl give a device_id. From 2.13 on torch takes none of a GPU where it was built without.
    if torch.cuda.is_available() or torch.__version__.split(".")[:2] == ["2", "6"]:
        more["device_id"] = torch.device("cuda", 0)
    dist.init_process_group("shoal", rank=rank, world_size=SIZE, **more)
    dist.barrier(device_ids=[0])
    torch.set_num_threads(1)
    torch.manual_seed(rank)


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 5))


def step(model, optimizer):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
    optimizer.step()


def say_parameters(model, what):
    total = sum(parameter.sum().item() for parameter in model.parameters())
    os.write(1, f"PARAMETERS {what} {total!r}\n".encode())  # at once: ranks have one pipe together


def train(rank, port, sharded):
    set_up(rank, port)
    model = DistributedDataParallel(make_model())
    if sharded:
        kind = {"optimizer_class": torch.optim.Adam}
        optimizer = ZeroRedundancyOptimizer(model.parameters(), lr=0.01, **kind)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        step(model, optimizer)
    say_parameters(model, "trained")
    dist.destroy_process_group()


def checkpoint(rank, port, path):
    set_up(rank, port)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    if rank == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    other = DistributedDataParallel(make_model())
    other.load_state_dict(torch.load(path))
    for mine, loaded in zip(model.parameters(), other.parameters()):
        assert torch.equal(mine, loaded)
    step(other, torch.optim.SGD(other.parameters(), lr=0.1))
    say_parameters(other, "loaded")
    dist.destroy_process_group()


def main():
    port = sys.argv[1]
    mp.spawn(train, args=(port, True), nprocs=SIZE, join=True)
    mp.start_processes(train, args=(port, False), nprocs=SIZE, start_method="fork")
    with tempfile.TemporaryDirectory(prefix="shoal-checkpoint-") as folder:
        path = os.path.join(folder, "model")
        mp.start_processes(checkpoint, args=(port, path), nprocs=SIZE, start_method="fork")


if __name__ == "__main__":
    main()
