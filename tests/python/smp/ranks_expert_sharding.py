"""Mixtures of experts in FSDP on 8 ranks: every grid trains as one process does."""

import functools
import os
import warnings

import ranks
import shoal.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint.optimizer
from shoal import errors
from shoal.smddp import smp
from shoal.smddp.smp.checkpoint import filesystem, state_dict_loader, state_dict_saver
from shoal.smddp.smp.checkpoint import optimizer as optimizer_states
from shoal.smddp.smp.fsdp.grad_norm import clip_grad_norm_
from shoal.smddp.smp.moe_config import MoEConfig
from shoal.smddp.smp.moe_layer import MoELayer
from torch.distributed import checkpoint
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import FullStateDictConfig, ShardingStrategy, StateDictType, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

warnings.simplefilter("ignore")
FOLDER = os.environ["TEST_FOLDER"]
WIDTH, EXPERTS, ROWS = 6, 8, 16


class Block(torch.nn.Module):
    """A mixture beside what every rank has."""

    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(WIDTH, WIDTH)
        config = MoEConfig(moe_load_balancing="none", moe_z_loss_coeff=0)
        self.mixture = MoELayer(WIDTH, make_expert, EXPERTS, 2, config)

    def forward(self, hidden):
        return hidden + self.mixture(self.dense(hidden).relu())


def make_expert():
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 10), torch.nn.GELU(), torch.nn.Linear(10, WIDTH))


def make_model():
    torch.manual_seed(5)
    return torch.nn.Sequential(Block(), Block(), torch.nn.Linear(WIDTH, 3))


def wrap_whole(model, **more):
    return FSDP(model, **more)


def wrap_blocks(model, **more):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FSDP(model, auto_wrap_policy=policy, **more)


def wrap_layers(model, **more):
    """Mixtures and linear layers by themselves, those of experts too."""
    kinds = {MoELayer, torch.nn.Linear}
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=kinds)
    return FSDP(model, auto_wrap_policy=policy, **more)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, rank, size, *, steps=range(4), optimizer=None, clip=None):
    """The mean loss of each step, and the norm of each gradient, of all rows; this rank has its share."""
    optimizer = optimizer or adam(model)
    losses, norms = [], []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        rows = torch.randn(ROWS, WIDTH + 3, generator=generator).chunk(size)[rank]
        loss = (model(rows[:, :WIDTH]) - rows[:, WIDTH:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if clip:
            norms.append(clip(model).item())
        optimizer.step()
        mean = loss.detach().clone()
        if size > 1:
            dist.all_reduce(mean, group=smp.state.dp_process_group)
        losses.append(mean.item() / size)
    return losses, norms


def init(shard, ep):
    smp.state.reset()
    smp.init({"hybrid_shard_degree": shard, "expert_parallel_degree": ep})


def check(shard, ep, wrap, **more):
    """Beside a model of one process."""
    smp.state.reset()
    norm = {"max_norm": 0.1}
    wanted = train(make_model(), 0, 1, clip=lambda m: torch.nn.utils.clip_grad_norm_(m.parameters(), **norm))
    init(shard, ep)
    model = wrap(make_model(), **more)
    got = train(model, smp.state.dp_rank, smp.state.dp_size, clip=lambda m: clip_grad_norm_(m, **norm))
    for mine, whole in zip(got, wanted):
        torch.testing.assert_close(mine, whole, rtol=1e-5, atol=0)
    return model


def test_every_grid():
    for shard, ep in ((1, 2), (2, 2), (2, 4), (4, 2), (1, 8)):
        check(shard, ep, wrap_whole)


def test_wrapped_in_other_ways():
    check(2, 2, wrap_blocks)
    check(2, 2, wrap_layers, use_orig_params=True)
    check(2, 4, wrap_blocks, use_orig_params=True, sync_module_states=True)


def test_experts_have_groups_of_their_own():
    init(2, 2)
    model = wrap_blocks(make_model())
    state = smp.state
    for block in model.module[:2]:
        experts = block.module.mixture.experts
        assert isinstance(experts, FSDP)
        assert experts.process_group is state.shard_process_group
        assert experts._inter_node_pg is state.rep_process_group
        assert block._inter_node_pg is state.dense_rep_process_group
    count = sum(p.numel() for p in model.parameters())
    model_of_zero2 = FSDP(make_model(), sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2)
    experts = model_of_zero2.module[0].mixture.experts
    assert experts.sharding_strategy == ShardingStrategy._HYBRID_SHARD_ZERO2
    whole = sum(p.numel() for p in make_model().parameters())  # half of the experts
    assert whole / 2 <= count < whole / 2 + 20, (count, whole)  # 20: padding


def content_of(model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        return {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}


def check_checkpoint(shard):
    """Save and load like SMP's scripts: a folder for each expert parallel rank, by the first replica."""
    smp.state.reset()
    wanted, _ = train(make_model(), 0, 1, steps=range(5))
    init(shard, 2)
    state = smp.state
    folder = f"{FOLDER}/shard{shard}/ep{state.ep_size}-{state.ep_rank}"
    model = wrap_blocks(make_model())
    group = model.process_group
    place = {"process_group": group, "coordinator_rank": min(dist.get_process_group_ranks(group))}
    optimizer = adam(model)
    train(model, state.dp_rank, state.dp_size, steps=range(3), optimizer=optimizer)
    content = content_of(model, optimizer)
    if state.ranker.get_rep_rank(state.rank) == 0:
        state_dict_saver.save(content, checkpoint_id=folder, **place)
    dist.barrier()
    model = wrap_blocks(make_model())
    optimizer = adam(model)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        content = {"model": model.state_dict()}
        state_dict_loader.load(content, checkpoint_id=folder, **place)
        model.load_state_dict(content["model"])
        reader = filesystem.DistributedFileSystemReader(folder)
        loaded = optimizer_states.load_for_group("optimizer", reader, None, group)
        flat = FSDP.optim_state_dict_to_load(model, optimizer, loaded["optimizer"], group=group)
        optimizer.load_state_dict(flat)
    got, _ = train(model, state.dp_rank, state.dp_size, steps=range(3, 5), optimizer=optimizer)
    torch.testing.assert_close(got, wanted[3:], rtol=1e-5, atol=0)


def test_checkpoints():
    for shard in (2, 1):
        check_checkpoint(shard)


def test_what_is_not_sharded_has_a_group_without_other_experts():
    """Means are taken over all that have the same, whoever is named as FSDP's group."""
    init(1, 2)
    model = wrap_blocks(make_model())
    for module in FSDP.fsdp_modules(model):
        assert module.process_group is smp.state.rep_process_group
        assert (module.rank, module.world_size) == (smp.state.rep_rank, 4)
    assert model._comm_hook_state.process_group is smp.state.dense_rep_process_group


def test_a_checkpoint_that_would_lose_experts():
    init(1, 2)
    model = wrap_blocks(make_model())
    optimizer = adam(model)
    train(model, smp.state.dp_rank, smp.state.dp_size, steps=range(1), optimizer=optimizer)
    content = content_of(model, optimizer)
    folder = f"{FOLDER}/lost"
    for save in (state_dict_saver.save, state_dict_saver.async_save, checkpoint.save):
        for group in (None, smp.state.dense_rep_process_group):
            error = ranks.raises(
                errors.MismatchError,
                lambda s=save, g=group: s(content, checkpoint_id=folder, process_group=g),
            )
            assert "is another part of the model on ranks 0 and 1, which differ in ep (0 and 1)" in str(error), error
            assert "experts.0" in str(error) and "state.rep_process_group" in str(error), error
    assert not os.path.exists(f"{folder}/.metadata")
    whole = {"model": make_model()[2].state_dict(), "steps": 7}
    state_dict_saver.save(whole, checkpoint_id=folder)  # the same on all
    checkpoint.save(whole, checkpoint_id=folder)
    for load in (
        lambda: optimizer_states.load_for_group("optimizer", None, None, smp.state.dp_process_group),
        lambda: checkpoint.optimizer.load_sharded_optimizer_state_dict(content["model"], "optimizer", None),
    ):
        error = ranks.raises(errors.InvalidError, load)
        assert "has ranks 0 and 1, which differ in ep (0 and 1)" in str(error), error


def full(model, **how):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(**how)):
        return model.state_dict()


def test_full_state_dicts_have_all_experts():
    smp.state.reset()
    whole = make_model().state_dict()
    other = {name: torch.full_like(tensor, i) for i, (name, tensor) in enumerate(whole.items())}
    for shard, ep in ((2, 2), (1, 2), (1, 8)):
        init(shard, ep)
        model = wrap_blocks(make_model())
        got = full(model)
        bad = [n for n in whole if n not in got or not torch.equal(got[n], whole[n])]
        assert set(got) == set(whole), set(got) ^ set(whole)
        assert not bad, bad
        got = full(model, rank0_only=True)  # which for NO_SHARD means nothing to torch
        assert set(got) == (set(whole) if shard == 1 or model.rank == 0 else set()), sorted(got)
        parts = full(model, translate_on_save=False)
        assert len(parts) < len(whole) and "0.mixture.experts.0.0.weight" in parts
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            model.load_state_dict(other)
        got = full(model)
        assert all(torch.equal(got[name], other[name]) for name in other)
    one = make_model()[0].mixture  # without FSDP
    number = one.first_expert
    one.load_state_dict({name[10:]: other[name] for name in other if name.startswith("0.mixture.")})
    assert torch.equal(one.experts[0][0].bias, other[f"0.mixture.experts.{number}.0.bias"])


def test_full_states_of_an_optimizer():
    init(2, 2)
    model = wrap_blocks(make_model())
    optimizer = adam(model)
    train(model, smp.state.dp_rank, smp.state.dp_size, steps=range(1), optimizer=optimizer)
    for call in (FSDP.optim_state_dict, FSDP.full_optim_state_dict):
        error = ranks.raises(errors.UnsupportedError, lambda c=call: c(model, optimizer))
        assert "take StateDictType.SHARDED_STATE_DICT" in str(error), error
    state = {"state": {"1.mixture.experts.4.0.weight": {}}, "param_groups": []}
    error = ranks.raises(
        errors.UnsupportedError, lambda: FSDP.optim_state_dict_to_load(model, optimizer, state)
    )
    assert "experts.4.0.weight is of all experts, and this rank has 4" in str(error), error


def test_other_arguments():
    """A module that the script ignores itself stays ignored, and a layer that it has wrapped itself is left alone."""
    init(2, 2)
    for key in ("ignored_modules", "ignored_states"):
        model = make_model()
        wrapped = FSDP(model, **{key: [model[2]]})
        assert model[2].weight.shape == (3, WIDTH)
        assert isinstance(wrapped.module[0].mixture.experts, FSDP)
    model = make_model()
    wrapped = FSDP(model, ignored_states=[model[2].weight, model[2].bias])
    assert model[2].weight.shape == (3, WIDTH)
    assert isinstance(wrapped.module[1].mixture.experts, FSDP)
    model = make_model()
    own = model[0].mixture.experts = FSDP(model[0].mixture.experts)
    assert FSDP(model).module[0].mixture.experts is own
    assert own._inter_node_pg is smp.state.rep_process_group


def test_a_group_that_joins_other_experts():
    init(2, 2)
    layer = make_model()[0].mixture
    for group in (dist.GroupMember.WORLD, smp.state.ep_process_group):
        error = ranks.raises(errors.InvalidError, lambda g=group: FSDP(layer.experts, process_group=g))
        assert "FSDP's process_group has ranks" in str(error) and "differ in ep" in str(error), error


def test_what_knows_nothing_of_experts():
    init(2, 2)
    for call in (
        lambda: torch.nn.parallel.DistributedDataParallel(make_model()),
        lambda: shoal.torch.DistributedDataParallel(make_model(), process_group=smp.state.dp_process_group),
    ):
        error = ranks.raises(errors.UnsupportedError, call)
        rep, rest = map(
            dist.get_process_group_ranks, (smp.state.rep_process_group, smp.state.dense_rep_process_group)
        )
        assert f"experts, with replicas on ranks {rep} (rep_process_group)" in str(error), error
        assert f"on {rest} (dense_rep_process_group)" in str(error) and "use FSDP" in str(error), error
    experts = make_model()[0].mixture.experts
    ddp = torch.nn.parallel.DistributedDataParallel
    error = ranks.raises(errors.InvalidError, lambda: ddp(experts))
    assert "process_group has ranks 0 and 2, which differ in ep (0 and 1)" in str(error), error
    ddp(experts, process_group=smp.state.rep_process_group)
    error = ranks.raises(errors.InvalidError, lambda: fully_shard(make_model()))
    assert "fully_shard's mesh has ranks" in str(error) and "differ in ep" in str(error), error
    ddp(torch.nn.Linear(2, 2))


if __name__ == "__main__":
    ranks.start("shoal")
    ranks.run("__main__")
