"""Tensor parallelism on 8 ranks, inside of hybrid sharding, equal to one process."""

import functools
import os
import warnings

import models
import ranks
import torch
import torch.distributed as dist
from shoal import errors
from shoal.smddp import smp
from shoal.smddp.smp.fsdp import delayed_param, grad_norm
from shoal.smddp.smp.checkpoint import filesystem, full, state_dict_loader, state_dict_saver
from shoal.smddp.smp.tensor_parallel import transformer
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed import DeviceMesh
from torch.distributed.fsdp import FullStateDictConfig, ShardingStrategy, StateDictType, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP

warnings.simplefilter("ignore")
FOLDER = os.environ["TEST_FOLDER"]
POLICY = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={transformer.TransformerLayer})
ALLOWED = 1e-5


def init(**configuration):
    smp.state.reset()
    smp.init(configuration)


def train(model, optimizer, steps, **how):
    return models.train(model, optimizer, steps, rank=smp.state.dp_rank, size=smp.state.dp_size, **how)


def make_divided(*arguments, **named):
    return smp.transform(models.make(*arguments, **named))


def check_training(model, steps=3, expected=None):
    expected = expected or models.of_one_process(steps)
    # Losses that dp ranks share are summed over all ranks: each loss is there as often as tensor parallel ranks are.
    losses = train(model, models.adam(model), steps, group=smp.state.dp_process_group)
    models.check_close(losses, expected, ALLOWED)


def test_division_alone():
    for degree in (2, 4):
        init(tensor_parallel_degree=degree, hybrid_shard_degree=1)
        model = make_divided()
        weight = model.layers[0].linear1.weight
        assert weight.shape == (2 * models.WIDTH // degree, models.WIDTH)
        assert model.head.weight is model.embedding.weight
        model = FSDP(model, auto_wrap_policy=POLICY)
        assert model.sharding_strategy.name == "NO_SHARD"
        check_training(model)


def test_division_inside_and_sharding_outside():
    """2 x 2 x 2: replicas, shards, parts of layers."""
    for use_orig_params in (False, True):
        init(tensor_parallel_degree=2, hybrid_shard_degree=2)
        model = FSDP(make_divided(), auto_wrap_policy=POLICY, use_orig_params=use_orig_params)
        assert isinstance(model.layers[0], FSDP)
        assert model.sharding_strategy.name == "HYBRID_SHARD"
        assert model.process_group.size() == 2 and model._inter_node_pg.size() == 2
        check_training(model)


def test_parts_and_shards_and_experts():
    """2 x 2 x 2: each rank has a part of the head, a shard of it, and half of the experts."""
    smp.state.reset()
    norms, expected_norms = [], []

    def clip_one(model):
        expected_norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())

    expected = models.of_one_process(3, models.Mixed, clip=clip_one)
    init(tensor_parallel_degree=2, hybrid_shard_degree=2, expert_parallel_degree=2)
    plan = {"embedding": "rowwise_rep", "head": "colwise_rep"}
    model = smp.transform(models.make(models.Mixed), config={"tensor_parallel_plan": plan})
    model = FSDP(model, use_orig_params=True)
    losses = train(
        model,
        models.adam(model),
        3,
        group=smp.state.dp_process_group,
        clip=lambda m: norms.append(grad_norm.clip_grad_norm_(m, 0.3).item()),
    )
    models.check_close(losses, expected, ALLOWED)
    models.check_close(norms, expected_norms, ALLOWED)


def test_clipping_by_the_whole_norm():
    norms, expected_norms = [], []

    def clip_one(model):
        expected_norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())

    expected = models.of_one_process(2, clip=clip_one)
    for use_orig_params, shard in ((False, 4), (True, 2), (True, 1)):
        init(tensor_parallel_degree=2, hybrid_shard_degree=shard)
        model = FSDP(make_divided(), auto_wrap_policy=POLICY, use_orig_params=use_orig_params)
        norms.clear()
        losses = train(
            model,
            models.adam(model),
            2,
            group=smp.state.dp_process_group,
            clip=lambda m: norms.append(grad_norm.clip_grad_norm_(m, 0.5).item()),
        )
        models.check_close(losses, expected, ALLOWED)
        models.check_close(norms, expected_norms, ALLOWED)


def test_full_checkpoints_are_those_of_the_whole_model():
    init(tensor_parallel_degree=2, hybrid_shard_degree=2)
    model = FSDP(make_divided(), auto_wrap_policy=POLICY)
    whole = models.make().state_dict()
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
        got = model.state_dict()
    assert bool(got) == (smp.state.shard_rank == 0)
    if got:
        assert set(got) == set(whole)
        assert all(torch.equal(got[name], whole[name]) for name in whole)
    configuration = FullStateDictConfig(translate_on_save=False)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, configuration):
        parts = model.state_dict()
    assert parts["layers.0.linear1.weight"].shape == (models.WIDTH, models.WIDTH)
    other = models.make(seed=9).state_dict()
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        model.load_state_dict(other)
        got = model.state_dict()
    assert all(torch.equal(got[name], other[name]) for name in other)


def test_weights_of_rank_0():
    init(tensor_parallel_degree=2, hybrid_shard_degree=2)
    with torch.device("cpu" if smp.state.rank == 0 else "meta"):
        model = models.make()
    model = smp.transform(model, load_state_dict_from_rank0=True)
    is_meta = [parameter.is_meta for parameter in model.parameters()]
    assert not any(is_meta) if smp.state.rank < 2 else all(is_meta)
    initer = delayed_param.DelayedParamIniter(model) if smp.state.rank > 1 else None
    model.register_buffer("mask", torch.full((models.LENGTH, models.LENGTH), float("-inf")).triu(1))
    model = FSDP(
        model,
        auto_wrap_policy=POLICY,
        sync_module_states=True,
        param_init_fn=initer.get_param_init_fn() if initer else None,
    )
    check_training(model)
    with torch.device("meta"):
        model = models.make()
    error = ranks.raises(errors.InvalidError, lambda: smp.transform(model, load_state_dict_from_rank0=True))
    assert "position is on its meta device" in str(error), error


def test_parts_are_of_one_model():
    """Each rank has seeded differently: the first tensor parallel rank's weights count."""
    init(tensor_parallel_degree=4)
    model = smp.transform(models.make(seed=5 + smp.state.rank))
    whole = full.join_parts(model, model.state_dict())
    expected = models.make(seed=5 + smp.state.rank // 4 * 4).state_dict()
    assert all(torch.equal(whole[name], expected[name]) for name in expected)


def test_checkpoints_of_parts_with_other_shards():
    """A script saves so: a folder for each tensor parallel rank, of which one sharding group saves."""
    expected = models.of_one_process(6)
    for step, shard in ((0, 2), (3, 4)):
        init(tensor_parallel_degree=2, hybrid_shard_degree=shard)
        model = FSDP(make_divided(seed=5 + step), auto_wrap_policy=POLICY)
        optimizer = models.adam(model)
        group = model.process_group
        where = {"process_group": group, "coordinator_rank": min(dist.get_process_group_ranks(group))}
        folder = f"{FOLDER}/tp{smp.state.tp_rank}_ep{smp.state.ep_rank}"
        reader = filesystem.DistributedFileSystemReader(folder)
        if step:
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                content = {"model": model.state_dict()}
                state_dict_loader.load(content, storage_reader=reader, **where)
                model.load_state_dict(content["model"])
                loaded = load_sharded_optimizer_state_dict(
                    content["model"], "optimizer", reader, process_group=group
                )
                flat = FSDP.optim_state_dict_to_load(model, optimizer, loaded["optimizer"], group=group)
            optimizer.load_state_dict(flat)
        losses = train(model, optimizer, 3, first=step, group=smp.state.dp_process_group)
        models.check_close(losses, expected[step : step + 3], ALLOWED)
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            content = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
        if smp.state.ranker.get_rep_rank(smp.state.rank) == 0:
            state_dict_saver.save(content, checkpoint_id=folder, **where)
        dist.barrier()


def test_a_checkpoint_that_would_lose_parts():
    init(tensor_parallel_degree=2, hybrid_shard_degree=2)
    model = FSDP(make_divided(), auto_wrap_policy=POLICY)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        content = {"model": model.state_dict()}
    save = state_dict_saver.save
    error = ranks.raises(errors.MismatchError, lambda: save(content, checkpoint_id=f"{FOLDER}/lost"))
    assert "part of the model on ranks 0 and 1, which differ in tp (0 and 1)" in str(error), error
    assert "torch.sagemaker.state.shard_process_group" in str(error), error
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        content = {"model": model.state_dict()}
    save(content, checkpoint_id=f"{FOLDER}/whole")  # nothing is lost of what all have
    loaded = {"model": {name: torch.zeros_like(tensor) for name, tensor in content["model"].items()}}
    state_dict_loader.load(loaded, checkpoint_id=f"{FOLDER}/whole")
    assert all(torch.equal(loaded["model"][name], tensor) for name, tensor in content["model"].items())


class Gated(torch.nn.Module):
    """A model that is built like those of Hugging Face's transformers, with a plan as they have it."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            width = models.WIDTH
            self.num_heads, self.num_key_value_heads, self.head_dim, self.hidden_size = 4, 2, width // 4, width
            self.q_proj = torch.nn.Linear(width, width, bias=False)
            self.k_proj = torch.nn.Linear(width, width // 2, bias=False)
            self.v_proj = torch.nn.Linear(width, width // 2, bias=False)
            self.o_proj = torch.nn.Linear(width, width, bias=False)
            self.up_proj = torch.nn.Linear(width, 2 * width)
            self.down_proj = torch.nn.Linear(2 * width, width)

        def forward(self, tensor):
            batch, length, _ = tensor.shape
            q, k, v = (
                project(tensor).view(batch, length, heads, self.head_dim).transpose(1, 2)
                for project, heads in (
                    (self.q_proj, self.num_heads),
                    (self.k_proj, self.num_key_value_heads),
                    (self.v_proj, self.num_key_value_heads),
                )
            )
            k, v = (t.repeat_interleave(self.num_heads // self.num_key_value_heads, 1) for t in (k, v))
            attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            tensor = tensor + self.o_proj(attended.transpose(1, 2).reshape(batch, length, self.hidden_size))
            return tensor + self.down_proj(self.between(tensor))

        def between(self, tensor):
            return torch.nn.functional.silu(self.up_proj(tensor))

    _tp_plan = {
        "embedding": "rowwise_rep",
        "layers.*.[qkv]_proj": "colwise",
        "layers.*.o_proj": "rowwise",
        "layers.*.up_proj": "colwise",
        "layers.*.down_proj": "rowwise",
        "head": "colwise_rep",
    }

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(models.CHARACTERS, models.WIDTH, padding_idx=3)
        self.layers = torch.nn.ModuleList(self.Block() for _ in range(2))
        self.head = torch.nn.Linear(models.WIDTH, models.CHARACTERS)

    def forward(self, text):
        hidden = self.embedding(text)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def test_a_model_with_a_plan_of_its_own():
    init(tensor_parallel_degree=2, hybrid_shard_degree=2)
    model = FSDP(make_divided(Gated), auto_wrap_policy=POLICY, use_orig_params=True)
    assert isinstance(model.layers[0], FSDP)
    check_training(model, expected=models.of_one_process(3, Gated))


class Named(Gated):
    """Without a plan, but with the names of such models."""

    _tp_plan = None

    class Block(Gated.Block):
        def __init__(self):
            super().__init__()
            self.gate_proj = torch.nn.Linear(models.WIDTH, 2 * models.WIDTH)

        def between(self, tensor):
            return torch.nn.functional.silu(self.gate_proj(tensor)) * self.up_proj(tensor)

    def __init__(self):
        super().__init__()
        self.lm_head = self.head
        del self.head
        self.wide = torch.nn.Embedding(models.CHARACTERS + 1, 4)  # no degree divides it

    def forward(self, text):
        hidden = self.embedding(text) + self.wide(text).sum(-1, keepdim=True)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.lm_head(hidden)


def test_a_model_with_known_names():
    init(tensor_parallel_degree=2, hybrid_shard_degree=2)
    model = make_divided(Named)
    assert model.layers[0].up_proj.weight.shape[0] == model.layers[0].gate_proj.weight.shape[0] == models.WIDTH
    assert model.lm_head.weight.shape[0] == models.CHARACTERS // 2
    assert model.wide.weight.shape[0] == models.CHARACTERS + 1
    model = FSDP(model, auto_wrap_policy=POLICY)
    assert isinstance(model.layers[1], FSDP)
    check_training(model, expected=models.of_one_process(3, Named))


def test_layers_are_known_without_parts():
    init(hybrid_shard_degree=2)
    model = smp.transform(models.make(Gated))
    assert isinstance(model.layers[0], transformer.TETransformerLayer)
    assert type(model.layers[0].q_proj) is torch.nn.Linear


def test_plans_that_do_not_fit():
    init(tensor_parallel_degree=4)

    def refused(kind, words, model=Gated, **arguments):
        error = ranks.raises(kind, lambda: smp.transform(models.make(model), **arguments))
        assert words in str(error), error

    refused(errors.InvalidError, "layers.0 has num_key_value_heads 2")
    plan = {"layers.*.gate": "colwise"}
    refused(errors.InvalidError, "layers.*.gate", config={"tensor_parallel_plan": plan})
    plan = {"head": "sideways"}
    refused(errors.UnsupportedError, "'sideways' for head", config={"tensor_parallel_plan": plan})
    refused(errors.InvalidError, "Embedding", config={"tensor_parallel_plan": {"embedding": "colwise"}})
    refused(errors.InvalidError, "'tp'", config={"tp": 2})
    refused(errors.InvalidError, "cp_comm_type is 'ring'", cp_comm_type="ring")
    refused(errors.UnsupportedError, "nothing in a Linear", model=lambda: torch.nn.Linear(2, 2))
    class Own(torch.nn.Linear):
        def forward(self, tensor):
            return super().forward(tensor) + 1

    plan = {"0": "colwise"}
    own = lambda: torch.nn.Sequential(Own(4, 4))  # noqa: E731
    refused(errors.UnsupportedError, "0 is a Own with a forward()", model=own, config={"tensor_parallel_plan": plan})
    shared = {"tensor_parallel_plan": {"embedding": "rowwise_rep"}}
    refused(errors.UnsupportedError, "head.weight is shared", model=models.Text, config=shared)
    init(tensor_parallel_degree=8)
    refused(errors.InvalidError, "layers.0.self_attn has 4 heads", model=models.Text)


def test_groups_of_the_script_that_overlap_wrongly():
    init(tensor_parallel_degree=2, hybrid_shard_degree=2)
    linear, world = torch.nn.Linear(2, 2), dist.GroupMember.WORLD
    state = smp.state
    flat = DeviceMesh.from_group(world, "cpu")
    crossed = (state.shard_process_group, state.dp_process_group)
    own = ranks_of(state.shard_process_group)
    for call, words in (
        (lambda: FSDP(linear, process_group=world), "FSDP's process_group has ranks 0 and 1, which differ in tp"),
        (lambda: FSDP(linear, device_mesh=flat), "FSDP's device_mesh has ranks 0 and 1, which differ in tp (0 and 1)"),
        (lambda: FSDP(linear, device_mesh=flat), "state.tp_process_group, which it may not overlap so, [0, 1]"),
        (lambda: fully_shard(torch.nn.Linear(2, 2), mesh=flat), "fully_shard's mesh has ranks 0 and 1"),
        (lambda: DDP(make_divided()), "process_group has ranks 0 and 1, which differ in tp"),
        (lambda: DDP(make_divided(), device_mesh=flat), "DistributedDataParallel's device_mesh has ranks 0 and 1"),
        (lambda: FSDP(linear, process_group=crossed), f"groups {own} and "),
        (lambda: FSDP(linear, process_group=crossed), f"overlap in ranks {own[0]} and {own[1]}"),
    ):
        error = ranks.raises(errors.InvalidError, call)
        assert words in str(error), (words, error)
    FSDP(torch.nn.Linear(2, 2), device_mesh=state.dp_device_mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)


def ranks_of(group):
    return dist.get_process_group_ranks(group)


def test_device_meshes():
    init(tensor_parallel_degree=2, hybrid_shard_degree=2)
    state = smp.state
    mesh = state.device_mesh
    assert mesh is state.device_mesh and mesh.mesh_dim_names == ("dp_replicate", "ep", "dp_shard", "tp")
    assert mesh.mesh.tolist() == torch.arange(8).reshape(2, 1, 2, 2).tolist()
    assert mesh["tp"].get_group() is state.tp_process_group and mesh["dp_shard"].size() == 2
    assert list(mesh.get_coordinate()) == [state.rep_rank, 0, state.shard_rank, state.tp_rank]
    assert state.dp_device_mesh.get_group("dp_replicate") is state.rep_process_group
    # Layers take such a mesh: by torch's own plan, and sharded over the rest.
    torch.manual_seed(7)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    rows = torch.randn(3, 4)
    wanted = layers(rows)
    parallelize_module(layers, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    assert layers[0].weight.to_local().shape == (4, 4)
    torch.testing.assert_close(layers(rows), wanted)
    init(tensor_parallel_degree=2, hybrid_shard_degree=2)
    strategy = ShardingStrategy.HYBRID_SHARD
    check_training(FSDP(make_divided(), device_mesh=smp.state.dp_device_mesh, sharding_strategy=strategy))
    init(hybrid_shard_degree=0)
    assert smp.state.device_mesh.mesh_dim_names == ("dp_shard",) and smp.state.dp_device_mesh.size() == 8


def test_fully_shard_has_the_groups_of_the_configuration():
    init(tensor_parallel_degree=2, hybrid_shard_degree=2)
    model = make_divided()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    assert model.position.device_mesh is smp.state.dp_device_mesh
    assert model.position.to_local().shape == (models.LENGTH // 2, models.WIDTH)
    # It trains on GPUs alone: torch 2.6's has no streams of the CPU.


if __name__ == "__main__":
    ranks.start("shoal")
    ranks.run("__main__")
