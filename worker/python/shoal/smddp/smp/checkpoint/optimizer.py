"""torch.distributed.checkpoint.optimizer.load_sharded_optimizer_state_dict, for the ranks of one group.

torch's own shards an optimizer's state over all ranks. With replicas, or where tensor parallel ranks have
checkpoints of their own, those that share the state are the ranks of the model's group; scripts name it with
an argument that torch's does not have.
"""

import functools
import types

import torch
import torch.distributed as dist

from shoal.smddp.smp import _hooks
from shoal.smddp.smp.checkpoint import _parts
from shoal.smddp.smp.fsdp import module_utils


def install():
    """Let torch's function take a process_group."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import optimizer

    function = optimizer.load_sharded_optimizer_state_dict
    if hasattr(function, "shoal_original"):
        return
    code, named = function.__code__, function.__globals__
    original = types.FunctionType(code, named, function.__name__, function.__defaults__, function.__closure__)
    if code.co_freevars:  # one that torch has wrapped: by its names
        optimizer.load_sharded_optimizer_state_dict = checkpoint.load_sharded_optimizer_state_dict = function = _load
    else:  # the function itself, which a script may have imported before
        original.__kwdefaults__, function.__kwdefaults__ = function.__kwdefaults__, None
        function.__code__, function.__defaults__ = _load.__code__, None
    function.shoal_original = original
    _give_empty_shards_a_device()


def _load(*given, **named):
    """torch's function, which gets this code: names of this module are not there by themselves."""
    from shoal.smddp.smp.checkpoint.optimizer import load

    return load(*given, **named)


def load(*given, **named):
    from torch.distributed.checkpoint import optimizer

    original = optimizer.load_sharded_optimizer_state_dict.shoal_original
    arguments = _hooks.binder(original, process_group=None)(*given, **named)
    process_group = arguments.pop("process_group")
    if process_group is not None:
        return load_for_group(*(arguments[name] for name in ("optimizer_key", "storage_reader", "planner")), process_group)
    if dist.is_initialized():
        _parts.check_group(dist.GroupMember.WORLD, "load_sharded_optimizer_state_dict() without a process_group")
    return original(**arguments)


def _give_empty_shards_a_device():
    """torch asks a ShardedTensor of which this rank has nothing for CUDA's device, unless its group is gloo's;
    where there is no CUDA, that fails. A tensor with fewer rows than there are ranks is such a one."""
    from torch.distributed._shard.sharded_tensor import api

    key = torch.Tensor.device.__get__
    if torch.cuda.is_available():
        return
    if key not in api._SHARDED_OPS:
        raise _hooks.refusal("device of a ShardedTensor")
    original = api._SHARDED_OPS[key]
    bind = _hooks.binder(original)

    @functools.wraps(original)
    def device(*given, **named):
        if not bind(*given, **named)["args"][0]._local_shards:
            return torch.device("cpu")
        return original(*given, **named)

    api._SHARDED_OPS[key] = device


def load_for_group(optimizer_key, storage_reader, planner, group):
    """{optimizer_key: state} of a checkpoint, each tensor sharded over the group by its first dimension, as
    FSDP.optim_state_dict_to_load() takes it."""
    from shoal.smddp.smp.checkpoint import state_dict_loader
    from torch.distributed.checkpoint import _nested_dict
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    _parts.check_group(group, "load_sharded_optimizer_state_dict(): the process_group")
    metadata = storage_reader.read_metadata()
    flat = {}
    for key, value in metadata.state_dict_metadata.items():
        path = metadata.planner_data[key]
        if path[0] != optimizer_key:
            continue
        if not isinstance(value, TensorStorageMetadata):
            flat[key] = None
        elif value.size.numel() == 1:
            flat[key] = torch.empty(value.size, dtype=value.properties.dtype)
        else:
            flat[key] = _shards(value, group)
    state_dict_loader.load(flat, storage_reader=storage_reader, planner=planner, process_group=group)
    return _nested_dict.unflatten_state_dict(flat, metadata.planner_data)


def _shards(value, group):
    """An empty ShardedTensor with an equal share of rows on each rank of the group, as FSDP has them."""
    from torch.distributed.fsdp import _shard_utils

    size, rank = group.size(), group.rank()
    device = module_utils.default_device()
    # torch's function makes a share out of the whole, of which a view of one element has the shape.
    whole = torch.empty(1, dtype=value.properties.dtype, device=device).expand(value.size)
    return _shard_utils._create_chunk_sharded_tensor(whole, rank, size, max(1, torch.cuda.device_count()), group)
