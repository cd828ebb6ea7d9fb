"""torch.sagemaker.distributed.checkpoint.state_dict_loader: loading what state_dict_saver, or
torch.distributed.checkpoint, has saved, on as many ranks and with as many shards as there are now."""

from shoal import errors
from shoal.smddp.smp.checkpoint import filesystem
from shoal.smddp.smp.checkpoint._agreement import Together
from shoal.smddp.smp.checkpoint.state_dict_saver import as_state_dict, check_storage
from torch.distributed import checkpoint


def load(
    state_dict,
    *,
    checkpoint_id=None,
    storage_reader=None,
    planner=None,
    process_group=None,
    check_keys_matched=True,
    coordinator_rank=0,
    s3_region=None,
    s3client_config=None,
):
    """Fill a state dict, in place, from a checkpoint; every rank of the process group calls it. Tensors are
    read into those that are there; other values are replaced; an object with a load_state_dict() is given what
    is its own. check_keys_matched: raise MismatchError where ranks want different things. Raises what
    shoal.errors has, on all ranks when on one."""
    check_storage(s3_region, s3client_config)
    together = Together(process_group, coordinator_rank)
    reader = _reader(storage_reader, checkpoint_id)
    planner = planner or checkpoint.DefaultLoadPlanner()
    if check_keys_matched:
        _check_keys(together, state_dict)
    plain = {key: as_state_dict(value) for key, value in state_dict.items()}

    def plan():
        metadata = reader.read_metadata()
        planner.set_up_planner(plain, metadata, together.is_coordinator)
        reader.set_up_storage_reader(metadata, together.is_coordinator)
        return reader.prepare_local_plan(planner.create_local_plan())

    plans = together.gather("plan to load a checkpoint", plan)
    plans = together.ask_coordinator(
        "plan to load a checkpoint", lambda: reader.prepare_global_plan(planner.create_global_plan(plans))
    )
    mine = planner.finish_plan(plans[together.index])
    together.gather("read a checkpoint", lambda: reader.read_data(mine, planner).wait())
    for key, value in state_dict.items():
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            value.load_state_dict(plain[key])
        else:
            state_dict[key] = plain[key]


def _check_keys(together, state_dict):
    everyone = together.gather("say what it loads", lambda: sorted(state_dict))
    for rank, keys in zip(together.ranks, everyone):
        for key in set(keys) ^ set(everyone[0]):
            first, other = ("has", "has not") if key in everyone[0] else ("has not", "has")
            raise errors.MismatchError(
                f"checkpoint: rank {together.ranks[0]} {first} {key!r} in its state dict, rank {rank} {other}"
            )


def _reader(storage_reader, checkpoint_id):
    if storage_reader is None:
        if checkpoint_id is None:
            raise errors.InvalidError("checkpoint: checkpoint_id or storage_reader is wanted")
        return filesystem.DistributedFileSystemReader(checkpoint_id)
    if checkpoint_id is not None:
        storage_reader.reset(filesystem.folder(checkpoint_id))
    return storage_reader
