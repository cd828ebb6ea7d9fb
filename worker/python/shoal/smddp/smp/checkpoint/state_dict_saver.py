"""torch.sagemaker.distributed.checkpoint.state_dict_saver: checkpoints in torch.distributed.checkpoint's
format, written at once or while the training goes on.

Ranks agree with each other only in the calls, in the script's own thread; another thread only writes files. In this way
no collective of a checkpoint can meet one of the training.
"""

import threading

import torch

from shoal import errors
from shoal.smddp.smp.checkpoint import _parts, filesystem
from shoal.smddp.smp.checkpoint._agreement import Together
from torch.distributed import checkpoint


def save(
    state_dict,
    *,
    checkpoint_id=None,
    storage_writer=None,
    planner=None,
    process_group=None,
    coordinator_rank=0,
    wait_error_handling=True,
    force_check_all_plans=True,
    s3_region=None,
    s3client_config=None,
):
    """Save a state dict; every rank of the process group calls it, and has its part of it. The checkpoint is
    complete on return. wait_error_handling and force_check_all_plans change nothing: errors and plans are
    always agreed on. Raises what shoal.errors has, on all ranks when on one."""
    check_storage(s3_region, s3client_config)
    together = Together(process_group, coordinator_rank)
    one = _Save(state_dict, _writer(storage_writer, checkpoint_id), planner, together)
    one.write()
    one.finish()


def async_save(
    state_dict,
    *,
    checkpoint_id=None,
    storage_writer=None,
    planner=None,
    process_group=None,
    coordinator_rank=0,
    queue=None,
    sharded_strategy=None,
    wait_error_handling=True,
    force_check_all_plans=True,
    s3_region=None,
    s3client_config=None,
):
    """Save like save(), but return when this rank's part is copied and its writing has begun: then the state may
    change. The checkpoint is complete after maybe_finalize_async_calls(). queue: an AsyncCallsQueue other than the
    default one. sharded_strategy: a PyTorchDistSaveShardedStrategy, ("torch_dist", 1), or None; all mean the same."""
    check_storage(s3_region, s3client_config)
    _check_strategy(sharded_strategy)
    together = Together(process_group, coordinator_rank)
    one = _Save(state_dict, _writer(storage_writer, checkpoint_id), planner, together)
    one.stage()
    (queue or DEFAULT_ASYNC_REQUEST_QUEUE).start(one)


def maybe_finalize_async_calls(blocking=True, process_group=None):
    """Complete the saves of the default queue: all of them, or, unless blocking, those that all of their ranks
    have written. Every rank that has begun them calls it. process_group is not needed: a save has its own.
    Returns the numbers of those that are complete now, counted from 1. Raises what went wrong with one."""
    return DEFAULT_ASYNC_REQUEST_QUEUE.maybe_finalize_async_calls(blocking, process_group)


class PyTorchDistSaveShardedStrategy:
    """The one way in which checkpoints are written here, and the default: in torch.distributed.checkpoint's format.
    backend, version: the format's name and version, as Megatron's strategies of this kind are made."""

    def __init__(self, backend="torch_dist", version=1):
        _check_format("PyTorchDistSaveShardedStrategy", backend, version)
        self.backend, self.version = backend, version


def _check_strategy(strategy):
    if strategy is None or isinstance(strategy, PyTorchDistSaveShardedStrategy):
        return
    if not isinstance(strategy, (tuple, list)) or len(strategy) != 2:
        raise errors.UnsupportedError(
            f"async_save: sharded_strategy is a {type(strategy).__name__}, and not a PyTorchDistSaveShardedStrategy"
        )
    _check_format("async_save: sharded_strategy", *strategy)


def _check_format(where, backend, version):
    if (backend, version) != ("torch_dist", 1):
        raise errors.UnsupportedError(
            f"{where}: {backend!r}, {version!r} is not done here; torch.distributed.checkpoint's, 'torch_dist', 1, is"
        )


class AsyncCallsQueue:
    """Saves that are under way, in the order in which they began. torch.sagemaker.distributed.checkpoint.
    async_utils has it by this name."""

    def __init__(self):
        self._under_way = []  # (number, save, thread)
        self._count = 0

    def start(self, one):
        """Begin to write a _Save."""
        self._count += 1
        thread = threading.Thread(target=one.write, name=f"shoal-checkpoint-{self._count}")
        thread.start()
        self._under_way.append((self._count, one, thread))

    def maybe_finalize_async_calls(self, blocking=True, process_group=None, skip_sync=False):
        """See the function. skip_sync changes nothing: what is agreed on is agreed on with what is exchanged
        anyway."""
        finished = []
        while self._under_way:
            number, one, thread = self._under_way[0]
            if not blocking and not all(one.together.gather("say", lambda: not thread.is_alive())):
                break
            thread.join()
            del self._under_way[0]
            one.finish()
            finished.append(number)
        return finished

    def get_num_unfinalized_calls(self):
        return len(self._under_way)


DEFAULT_ASYNC_REQUEST_QUEUE = AsyncCallsQueue()


class _Save:
    """One save: planned together, written by each, finished together."""

    def __init__(self, state_dict, writer, planner, together):
        self.writer, self.together = writer, together
        self.source = planner or checkpoint.DefaultSavePlanner()  # where what is written comes from
        self.failure = self.results = None
        plans = together.gather("plan a checkpoint", lambda: self._plan(state_dict))
        _parts.check_nothing_is_lost(together, plans, self.source.resolve_data, state_dict)
        plans, self.metadata = together.ask_coordinator("plan a checkpoint", lambda: self._plan_all(plans))
        self.plan = self.source.finish_plan(plans[together.index])

    def _plan(self, state_dict):
        state_dict = {key: as_state_dict(value) for key, value in state_dict.items()}
        storage_meta = self.writer.storage_meta()
        self.source.set_up_planner(state_dict, storage_meta, is_coordinator=self.together.is_coordinator)
        self.writer.set_up_storage_writer(self.together.is_coordinator)
        return self.writer.prepare_local_plan(self.source.create_local_plan())

    def _plan_all(self, plans):
        plans, metadata = self.source.create_global_plan(plans)
        return self.writer.prepare_global_plan(plans), metadata

    def stage(self):
        """Copy what this rank writes to the CPU."""
        copies = {item.index: _copy(self.source.resolve_data(item)) for item in self.plan.items}
        self.source = _Staged(copies)

    def write(self):
        try:
            written = self.writer.write_data(self.plan, self.source)
            written.wait()
            self.results = written.value()
        except Exception as failure:  # finish() says it to all
            self.failure = failure
        self.source = None  # and the copies with it

    def finish(self):
        results = self.together.gather("write a checkpoint", self._result)
        self.together.ask_coordinator(
            "write a checkpoint's metadata", lambda: self.writer.finish(self.metadata, results)
        )

    def _result(self):
        if self.failure is not None:
            raise self.failure
        return self.results


class _Staged:
    """Stands in for a planner where data is written."""

    def __init__(self, copies):
        self.copies = copies

    def resolve_data(self, item):
        return self.copies.pop(item.index)


def _copy(data):
    if not isinstance(data, torch.Tensor):
        return data  # bytes, made for this save
    return data.detach().to("cpu", copy=True)


def as_state_dict(value):
    """Return what is to be saved of a value: the state_dict() of an object that has one, else the value."""
    stateful = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    return value.state_dict() if stateful else value


def _writer(storage_writer, checkpoint_id):
    if storage_writer is None:
        if checkpoint_id is None:
            raise errors.InvalidError("checkpoint: checkpoint_id or storage_writer is wanted")
        return filesystem.DistributedFileSystemWriter(checkpoint_id)
    if checkpoint_id is not None:
        storage_writer.reset(filesystem.folder(checkpoint_id))
    return storage_writer


def check_storage(s3_region, s3client_config):
    for name, value in (("s3_region", s3_region), ("s3client_config", s3client_config)):
        if value is not None:
            raise errors.UnsupportedError(f"checkpoint: {name} is given, but checkpoints are files in folders")
