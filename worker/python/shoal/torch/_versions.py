"""What differs between versions of torch, all of it: 1.13, 2.0 to 2.11, and the names after it."""

import datetime
import functools
import inspect

import torch.distributed as dist
from torch.distributed import distributed_c10d

# Methods of a ProcessGroup under the names that later versions call them by: later -> ours.
METHOD_NAMES = {
    "all_gather_into_tensor": "_allgather_base",
    "all_gather_single": "_allgather_base",
    "all_gather_into_tensor_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "reduce_scatter_single": "_reduce_scatter_base",
}


def register_backend(name, create):
    """Register create(options) -> ProcessGroup; options as torch's _DistributedBackendOptions."""
    register = dist.Backend.register_backend
    arguments = {"extended_api": True}
    if "devices" in inspect.signature(register).parameters:  # 2.0 and later
        arguments["devices"] = ["cpu", "cuda"]
    register(name, lambda options, _: create(options), **arguments)


def add_method_names(process_group_class):
    for name, ours in METHOD_NAMES.items():
        if not hasattr(process_group_class, name):
            setattr(process_group_class, name, getattr(process_group_class, ours))


def timeout_of(options):
    """The time that a call's options allow, or None when they leave it to the group."""
    timeout = getattr(options, "timeout", None)
    return timeout if timeout is not None and timeout > datetime.timedelta(0) else None


def patch_monitored_barrier(is_ours):
    """torch.distributed.monitored_barrier is for gloo's name alone; make it serve our groups."""
    original = dist.monitored_barrier
    if hasattr(original, "shoal"):
        return

    @functools.wraps(original)
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        member = group if group is not None else dist.GroupMember.WORLD
        if not is_ours(member):
            return original(group, timeout, wait_all_ranks)
        return member.monitored_barrier(timeout, wait_all_ranks)

    monitored_barrier.shoal = True
    dist.monitored_barrier = distributed_c10d.monitored_barrier = monitored_barrier
