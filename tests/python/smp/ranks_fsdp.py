"""Hybrid sharding on 8 ranks: every degree trains as one process does, and goes on with another's checkpoint."""

import functools
import importlib
import os
import threading
import warnings
from unittest import mock

import models
import ranks
import torch
import torch.distributed as dist
from shoal import errors
from shoal.smddp import smp
from shoal.smddp.smp.fsdp import _offloading, delayed_param, grad_norm, module_utils
from shoal.smddp.smp.checkpoint import filesystem, state_dict_loader, state_dict_saver, state_dict_utils
from shoal.smddp.smp.checkpoint import optimizer as optimizer_states
from shoal.smddp.smp.checkpoint.state_dict_utils import SMStateDictType
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy

warnings.simplefilter("ignore")
DEGREES = (1, 2, 4, 8)
FOLDER = os.environ["TEST_FOLDER"]
POLICY = functools.partial(
    transformer_auto_wrap_policy, transformer_layer_cls={torch.nn.TransformerEncoderLayer}
)


def init(**configuration):
    smp.state.reset()
    smp.init(configuration)


def wrapped(model, **arguments):
    return FSDP(model, auto_wrap_policy=POLICY, **arguments)


def train(model, optimizer, steps, **how):
    return models.train(model, optimizer, steps, rank=smp.state.dp_rank, size=smp.state.dp_size, **how)


def save(model, optimizer, folder):
    """Save like a script, by one sharding group alone."""
    state, group = smp.state, model.process_group
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        content = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer), "steps": 3}
    if state.ranker.get_rep_rank(state.rank) == 0:
        coordinator = min(dist.get_process_group_ranks(group))
        state_dict_saver.async_save(
            content, checkpoint_id=folder, process_group=group, coordinator_rank=coordinator
        )
    state_dict_saver.maybe_finalize_async_calls(blocking=True, process_group=group)
    dist.barrier()


def load(model, optimizer, folder):
    group = model.process_group
    reader = filesystem.DistributedFileSystemReader(folder)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        content = {"model": model.state_dict(), "steps": 0}
        state_dict_loader.load(
            content,
            storage_reader=reader,
            process_group=group,
            coordinator_rank=min(dist.get_process_group_ranks(group)),
        )
        model.load_state_dict(content["model"])
        loaded = optimizer_states.load_for_group("optimizer", reader, None, group)
        flat = FSDP.optim_state_dict_to_load(model, optimizer, loaded["optimizer"], group=group)
        optimizer.load_state_dict(flat)
    assert content["steps"] == 3


def test_degrees_train_as_one_process():
    expected = models.of_one_process(4)
    assert min(expected) < expected[0]
    for degree in DEGREES:
        init(hybrid_shard_degree=degree)
        model = wrapped(models.make())
        kind = {1: "NO_SHARD", 8: "FULL_SHARD"}.get(degree, "HYBRID_SHARD")
        assert model.sharding_strategy.name == kind
        assert model.process_group.size() == (8 if degree == 1 else degree)
        models.check_close(train(model, models.adam(model), 4), expected, 1e-6)


def test_a_checkpoint_of_any_degree_on_any_other():
    expected = models.of_one_process(12)
    step = 0
    before = None
    for degree in (2, 8, 1, 4):
        init(hybrid_shard_degree=degree)
        model = wrapped(models.make(seed=5 if before is None else 77))
        optimizer = models.adam(model)
        if before is not None:
            load(model, optimizer, before)
        models.check_close(train(model, optimizer, 3, first=step), expected[step : step + 3], 1e-6)
        step += 3
        before = f"{FOLDER}/degree{degree}"
        save(model, optimizer, before)


def test_replaced_strategies():
    for degree, asked, kind in (
        (2, ShardingStrategy._HYBRID_SHARD_ZERO2, "_HYBRID_SHARD_ZERO2"),
        (8, ShardingStrategy._HYBRID_SHARD_ZERO2, "SHARD_GRAD_OP"),
        (4, ShardingStrategy.NO_SHARD, "HYBRID_SHARD"),
        (0, ShardingStrategy.SHARD_GRAD_OP, "SHARD_GRAD_OP"),
    ):
        init(hybrid_shard_degree=degree)
        assert wrapped(torch.nn.Linear(4, 4), sharding_strategy=asked).sharding_strategy.name == kind
    init(hybrid_shard_degree=4)  # a group that the script names is its own
    assert wrapped(torch.nn.Linear(4, 4), process_group=dist.GroupMember.WORLD).process_group.size() == 8


def test_local_state_dicts():
    """A script saves so: each shard saves its own, its replicas share the work."""
    init(hybrid_shard_degree=4)
    ranker, rank = smp.state.ranker, smp.state.rank
    (replicas,) = (group for group in ranker.get_rep_groups() if rank in group)
    groups = [dist.new_group(members) for members in ranker.get_rep_groups()]
    group = groups[ranker.get_rep_groups().index(replicas)]
    how = {"process_group": group, "coordinator_rank": min(replicas)}
    expected = models.of_one_process(6)

    def content_of(model, optimizer):
        with state_dict_utils.sm_state_dict_type(model, SMStateDictType.SM_LOCAL_STATE_DICT):
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rows": 4}

    for use_orig_params in (False, True):
        model = wrapped(models.make(), use_orig_params=use_orig_params)
        optimizer = models.adam(model)
        models.check_close(train(model, optimizer, 3), expected[:3], 1e-6)
        folder = f"{FOLDER}/local{use_orig_params}/fsdp{model.rank}"
        state_dict_saver.async_save(content_of(model, optimizer), checkpoint_id=folder, **how)
        train(model, optimizer, 1, first=3)  # what is saved is what was there
        assert state_dict_saver.maybe_finalize_async_calls(blocking=True, process_group=group)
        model = wrapped(models.make(seed=77), use_orig_params=use_orig_params)
        optimizer = models.adam(model)
        state_dict_utils.init_optim_state(optimizer, skip_empty_param=True)
        content = content_of(model, optimizer)
        state_dict_loader.load(content, checkpoint_id=folder, **how)
        models.check_close(train(model, optimizer, 3, first=3), expected[3:], 1e-6)


def test_local_shards_in_one_checkpoint():
    """They have one name, and are others."""
    init(hybrid_shard_degree=2)
    model = wrapped(models.make())
    with state_dict_utils.sm_state_dict_type(model, SMStateDictType.SM_LOCAL_STATE_DICT):
        content = {"model": model.state_dict()}
    save = lambda: state_dict_saver.save(content, checkpoint_id=f"{FOLDER}/lost")  # noqa: E731
    error = ranks.raises(errors.MismatchError, save)
    assert "on ranks 0 and 1, which differ in shard (0 and 1), and one would be lost" in str(error), error


def test_what_cannot_be_saved_or_loaded_is_heard_of_by_all():
    rank = dist.get_rank()
    bad = f"{FOLDER}/file"
    if rank == 0:
        with open(bad, "w"):
            pass
    dist.barrier()
    folder = f"{bad}/below" if rank == 3 else f"{FOLDER}/good"
    error = ranks.raises(
        errors.ShoalError, lambda: state_dict_saver.save({"a": torch.ones(3)}, checkpoint_id=folder)
    )
    assert "rank 3 could not" in str(error), error
    error = ranks.raises(
        errors.ShoalError, lambda: state_dict_loader.load({"a": torch.ones(3)}, checkpoint_id=f"{FOLDER}/nowhere")
    )
    assert "rank 0 could not" in str(error), error
    wanted = {"a": torch.ones(3)} if rank else {"a": torch.ones(3), "b": 1}
    error = ranks.raises(
        errors.MismatchError, lambda: state_dict_loader.load(wanted, checkpoint_id=f"{FOLDER}/nowhere")
    )
    assert "rank 0 has 'b' in its state dict, rank 1 has not" in str(error), error


def whole(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return model.state_dict()


def on_meta(kind=models.Text):
    with torch.device("meta"):
        model = kind()
    model.register_buffer("mask", torch.full((models.LENGTH, models.LENGTH), float("-inf")).triu(1))
    return model


def test_delayed_parameters():
    init(hybrid_shard_degree=2)
    model = on_meta()
    initer = delayed_param.DelayedParamIniter(model)
    torch.manual_seed(3)
    with initer.validate_params_and_buffers_inited():
        model = wrapped(model, param_init_fn=initer.get_param_init_fn())
    got = whole(model)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {name: tensor.sum().item() for name, tensor in got.items()})
    assert all(other == everyone[0] for other in everyone)
    assert torch.equal(got["head.weight"], got["embedding.weight"])
    assert all(torch.isfinite(tensor).all() for name, tensor in got.items() if name != "mask")
    assert 0.5 < got["embedding.weight"].std() < 1.5 and torch.all(got["layers.1.norm2.weight"] == 1)
    losses = train(model, models.adam(model), 4)
    assert losses[-1] < losses[0]


def test_delayed_parameters_that_nobody_makes():
    init(hybrid_shard_degree=2)

    class Silent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(4))

    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), Silent())
    initer = delayed_param.DelayedParamIniter(model)
    error = ranks.raises(
        errors.InvalidError, lambda: wrapped(model, param_init_fn=initer.get_param_init_fn())
    )
    assert "nothing initializes scale of a Silent" in str(error), error

    def validate():
        with initer.validate_params_and_buffers_inited():
            pass

    error = ranks.raises(AssertionError, validate)
    assert isinstance(error, errors.InvalidError) and "1.scale" in str(error), error


def test_shared_weights_that_a_script_initializes():
    """Its function makes two of them; post_param_init_fn, which torch's FSDP does not have, one again."""
    init(hybrid_shard_degree=4)

    class Tied(models.Text):
        def tie_weights(self):
            self.head.weight = self.embedding.weight

    model = on_meta(Tied)

    def initialize(module):
        module_utils.empty_module_params(module, device="cpu")
        for parameter in module.parameters(recurse=False):
            parameter.data.normal_(std=0.1)

    initer = delayed_param.DelayedParamIniter(model, init_method_using_config=initialize)
    torch.manual_seed(4)
    model = wrapped(
        model,
        param_init_fn=initer.get_param_init_fn(),
        post_param_init_fn=initer.get_post_param_init_fn(),
    )
    got = whole(model)
    assert torch.equal(got["head.weight"], got["embedding.weight"])
    assert sum(parameter.numel() for parameter in models.make().parameters()) == sum(
        tensor.numel() for name, tensor in got.items() if name not in ("mask", "head.weight")
    )


class HostCopies:
    """Takes activations to another place in the host's memory, in place of a GPU's copies; counts them."""

    count = 0

    def has(self, tensor):
        return tensor.dim() == 3  # what the layers hand on

    def to_host(self, tensor):
        HostCopies.count += 1
        return tensor.numpy().copy()

    def to_device(self, hosted):
        return torch.from_numpy(hosted)

    def wait(self, on_device):
        return on_device


@mock.patch.object(_offloading, "CudaCopies", HostCopies)
def test_activation_checkpoints_and_offloading():
    expected = models.of_one_process(3)
    for on in (True, False):
        HostCopies.count = 0
        init(hybrid_shard_degree=2, sm_activation_offloading=on, activation_loading_horizon=1)
        model = wrapped(models.make())
        checkpoint_wrapper.apply_activation_checkpointing(
            model, check_fn=lambda module: isinstance(module, torch.nn.TransformerEncoderLayer)
        )
        model = checkpoint_wrapper.offload_wrapper(model)
        assert model.process_group.size() == 2
        models.check_close(train(model, models.adam(model), 3), expected, 1e-6)
        # In each step, of each of the layers but for the last one.
        assert (HostCopies.count >= 3) if on else (HostCopies.count == 0), HostCopies.count


def test_experts():
    """Each is in one place; all the rest is shared by all."""
    smp.state.reset()
    norms, expected_norms = [], []

    def clip_one(model):
        expected_norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())

    expected = models.of_one_process(4, models.Mixed, clip=clip_one)
    policy = ModuleWrapPolicy({torch.nn.Embedding})
    for shard, expert, wrap, kinds in (
        (2, 2, None, ("HYBRID_SHARD", "HYBRID_SHARD")),
        (4, 2, policy, ("HYBRID_SHARD", "FULL_SHARD")),
        (2, 4, POLICY, ("HYBRID_SHARD", "FULL_SHARD")),
        (1, 2, None, ("NO_SHARD", "NO_SHARD")),
    ):
        init(hybrid_shard_degree=shard, expert_parallel_degree=expert)
        model = FSDP(models.make(models.Mixed), auto_wrap_policy=wrap)
        assert isinstance(model.mixture.experts, FSDP)
        assert (model.sharding_strategy.name, model.mixture.experts.sharding_strategy.name) == kinds
        norms.clear()
        clip = lambda m: norms.append(grad_norm.clip_grad_norm_(m, 0.3).item())  # noqa: E731
        losses = train(model, models.adam(model), 4, clip=clip)
        models.check_close(losses, expected, 1e-5)
        models.check_close(norms, expected_norms, 1e-5)


def test_what_is_being_written_is_not_complete():
    """A writer that waits: until it has written nothing is, on no rank; what fails on one fails on all."""
    go, rank = threading.Event(), dist.get_rank()

    def wait(writer):
        assert go.wait(60)
        if rank == 5 and writer.path.name == "bad":
            raise OSError("the disk is full")

    queue = state_dict_saver.AsyncCallsQueue()
    for name in ("good", "bad"):
        writer = filesystem.DistributedFileSystemWriter(f"{FOLDER}/written/{name}", pre_write_hooks=[wait])
        state_dict_saver.async_save({f"a{rank}": torch.full((3,), rank)}, storage_writer=writer, queue=queue)
    assert queue.maybe_finalize_async_calls(blocking=False) == []
    assert not os.path.exists(f"{FOLDER}/written/good/.metadata")
    dist.barrier()
    go.set()
    error = ranks.raises(errors.ShoalError, queue.maybe_finalize_async_calls)
    assert "rank 5 could not write a checkpoint: OSError: the disk is full" in str(error), error
    assert queue.get_num_unfinalized_calls() == 0
    loaded = {"a3": torch.zeros(3, dtype=torch.int64)}
    state_dict_loader.load(loaded, checkpoint_id=f"{FOLDER}/written/good")
    assert torch.all(loaded["a3"] == 3)
    assert not os.path.exists(f"{FOLDER}/written/bad/.metadata")


def test_the_names_that_scripts_import():
    from shoal.smddp import _names, install

    install()
    names = [name for name in _names.MODULES if name.startswith("torch.sagemaker")]
    for name in names:
        importlib.import_module(name)
    from torch.sagemaker.distributed.checkpoint import async_utils, state_dict_loader
    from torch.sagemaker.distributed.checkpoint.state_dict_utils import init_optim_state  # noqa: F401

    assert async_utils.AsyncCallsQueue is state_dict_saver.AsyncCallsQueue
    assert state_dict_loader.load.__module__.startswith("shoal.")
    assert torch.sagemaker.transform is smp.transform and torch.sagemaker.state is smp.state


if __name__ == "__main__":
    ranks.start("shoal")
    ranks.run("__main__")
