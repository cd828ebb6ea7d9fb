"""Ranks of SHOAL_AS=gloo, which ask for gloo alone and import nothing of shoal's. The word that the script is given
says for what it asks; "spawn": it makes its ranks itself, with the path of
their store as second word. Another second word is where ranks meet, in place of what the environment says."""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZE = 2


def is_shoal(group):
    """Also where torch's own group has a backend of shoal's in it."""
    return "shoal" in group._get_backend(torch.device("cpu")).name()


def check_sum(group=None):
    tensor = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor, group=group)
    size = dist.get_world_size(group)
    assert torch.all(tensor == size * (size + 1) / 2), tensor


def kinds(asked):
    """Return what torch says of the groups that are made here, and whether they are shoal's."""
    groups = {"default": dist.group.WORLD, "whole": dist.new_group()}
    if asked != "shoal":
        groups["alone"] = dist.new_group([0, 1], backend="gloo")
    said = {}
    for name, group in groups.items():
        check_sum(group)
        config = dist.distributed_c10d.get_backend_config(group)
        said[name] = [str(dist.get_backend(group)), config, is_shoal(group)]
    if dist.get_backend() == "gloo":
        dist.monitored_barrier()
    return said


def tell(**what):
    if dist.is_initialized():
        what["rank"] = dist.get_rank()
    os.write(1, ("SAID " + json.dumps(what) + "\n").encode())  # at once: ranks have one pipe together


def leave_gloo(store, rank):
    """End this process once both ranks have told, with no group destroyed. On torch 2.6 a group of Gloo itself may be
    destroyed for ever: who destroys it holds Python's lock and waits for a thread of Gloo's, which frees a tensor and
    waits for the lock."""
    store.set(f"told/{rank}", "told")
    store.wait([f"told/{number}" for number in range(SIZE)])
    os._exit(0)


def spawned(rank, path):
    dist.init_process_group("gloo", store=dist.FileStore(path, SIZE), rank=rank, world_size=SIZE)
    check_sum()
    tell(shoal=is_shoal(dist.group.WORLD), name=dist.get_backend())
    dist.destroy_process_group()


def beside_another():
    """A stand-in for nccl is the default group, and gloo groups are beside it."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 - registers it

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["TEST_STORE"], size)
    dist.init_process_group("fake", store=store, rank=rank, world_size=size)
    groups = [dist.new_group(ranks, backend="gloo") for ranks in (None, [0], [0, 1])]
    for group in groups:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            check_sum(group)
    tell(default=dist.get_backend(), name=dist.get_backend(groups[0]), shoal=is_shoal(groups[0]))


def mixed():
    """Beside Gloo, since torch keeps one backend of each kind, and has one kind for all that are not its own."""
    dist.init_process_group("cpu:shoal,cuda:gloo")
    if type(dist.group.WORLD) is not dist.ProcessGroup:
        tell(skipped="the backend is a ProcessGroup in Python, which torch takes for all devices")
        return
    check_sum()
    names = {device: dist.group.WORLD._get_backend(torch.device(device)).name() for device in ("cpu", "cuda")}
    tell(names=names, config=dist.distributed_c10d.get_backend_config())


def by_hand():
    """A group of gloo that a program constructs itself stays gloo's."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["TEST_STORE"] + "-hand", size)
    gloo = dist.ProcessGroupGloo(store, rank, size)
    tensor = torch.ones(1)
    gloo.allreduce([tensor]).wait()
    tell(name=gloo.name(), sum=tensor.item(), rank=rank)
    leave_gloo(store, rank)


def main():
    what = sys.argv[1]
    if what in ("spawn", "fork", "forkserver"):
        mp.start_processes(spawned, args=(sys.argv[2],), nprocs=SIZE, start_method=what)
        return
    if what == "beside":
        beside_another()
    elif what == "mixed":
        mixed()
    elif what == "hand":
        by_hand()
    else:
        place = {}
        if len(sys.argv) > 2:
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            place = {"init_method": sys.argv[2], "rank": rank, "world_size": size}
        dist.init_process_group(None if what == "nothing" else what, **place)
        tell(kinds=kinds(what), imported="shoal.torch" in sys.modules)
        if place:
            leave_gloo(dist.distributed_c10d._get_default_store(), dist.get_rank())
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
