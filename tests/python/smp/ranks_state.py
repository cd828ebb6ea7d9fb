"""torch.sagemaker.state on 8 ranks: groups of every grid, what is refused, and reset."""

import sys
from unittest import mock

import ranks
import torch
import torch.distributed as dist
from shoal import errors
from shoal.smddp import smp
from shoal.smddp.smp import _ranker, _state


def init(**configuration):
    smp.state.reset()
    smp.init(configuration)


def members(group):
    """The ranks of a group, by a collective of it: its sum of powers of two says who took part."""
    mask = torch.tensor([1 << dist.get_rank()])
    dist.all_reduce(mask, group=group)
    return [rank for rank in range(dist.get_world_size()) if mask.item() >> rank & 1]


def check_groups(state):
    """Every group of state has this rank's ranks of the ranker, in rank order."""
    rank = dist.get_rank()
    for name, varying in (
        ("tp", ["tp"]),
        ("shard", ["shard"]),
        ("ep", ["ep"]),
        ("rep", ["rep"]),
        ("dense_rep", ["rep", "ep"]),
        ("dp", ["rep", "ep", "shard"]),
        ("rep_rank", ["ep", "shard", "tp"]),
    ):
        (wanted,) = (group for group in state.ranker.groups(*varying) if rank in group)
        group = getattr(state, f"{name}_process_group")
        assert members(group) == wanted, (name, wanted)
        assert dist.get_rank(group) == wanted.index(rank), name


def test_before_init():
    assert not smp.is_initialized()
    for name in ("tp_rank", "world_size", "ranker", "rep_rank_process_group", "hybrid_shard_degree"):
        error = ranks.raises(errors.StateError, lambda name=name: getattr(smp.state, name))
        assert f"torch.sagemaker.state.{name}" in str(error), error


def test_two_by_two_by_two():
    init(hybrid_shard_degree=2, tensor_parallel_degree=2, expert_parallel_degree=2)
    state, rank = smp.state, dist.get_rank()
    assert smp.is_initialized() and not state.is_native
    assert (state.rank, state.world_size) == (rank, 8)
    assert (state.tp_size, state.shard_size, state.ep_size, state.rep_size) == (2, 2, 2, 1)
    assert (state.tp_rank, state.shard_rank, state.ep_rank) == (rank % 2, rank // 2 % 2, rank // 4)
    assert (state.dp_rank, state.dp_size, state.rep_rank) == (rank // 2, 4, 0)
    assert state.rep_rank_process_group is state.world_process_group is dist.GroupMember.WORLD
    check_groups(state)


def test_other_grids():
    for shard, tp, ep in ((2, 1, 1), (8, 1, 1), (1, 2, 1), (0, 4, 1), (1, 1, 4), (1, 8, 1)):
        init(hybrid_shard_degree=shard, tensor_parallel_degree=tp, expert_parallel_degree=ep)
        state = smp.state
        assert state.hybrid_shard_degree == shard  # as configured
        assert state.shard_size == (shard or 8 // (tp * ep))
        check_groups(state)


def test_how_groups_are_made():
    """Groups are made with the default group's timeout, by their members alone. Groups that are made again have other
    names, since torch's store keeps things by a group's name."""
    smp.state.reset()
    configuration = {"hybrid_shard_degree": 2, "tensor_parallel_degree": 2}
    names = []
    smp.state._made_alone = (None, set())  # whatever the cases before have made
    every = 4 + 4 + 8 + 4 + 2 + 2  # tp, shard, ep, rep, dp, rep_rank
    for count in (6, every):
        groups = []

        def new_group(*given, call=dist.new_group, **named):
            groups.append(call(*given, **named))
            return groups[-1]

        with mock.patch.object(dist, "new_group", new_group):
            smp.init(configuration)
        assert len(groups) == count, (len(groups), count)
        names.append(dist.distributed_c10d._world.pg_names[smp.state.tp_process_group])
        for name in ("tp", "shard", "rep", "dense_rep", "dp", "rep_rank", "world"):
            assert _state._timeout_of(getattr(smp.state, f"{name}_process_group")) == ranks.TIMEOUT, name
        smp.state.reset()
    assert names[0] != names[1], names
    assert _state._timeout_of(ranks.gloo) == ranks.TIMEOUT


def test_the_scripts_own_sharding():
    for degree in (0, 1):
        init(hybrid_shard_degree=degree)
        state = smp.state
        assert state.is_native
        for name in ("tp", "rep_rank", "shard", "ep", "rep", "dense_rep"):
            assert getattr(state, f"{name}_process_group") is None, name
        assert state.dp_process_group is state.world_process_group is dist.GroupMember.WORLD
        assert (state.tp_rank, state.ep_rank, state.cp_rank, state.tp_size, state.cp_size) == (0, 0, 0, 1, 1)
        assert state.ranker.get_rep_rank(7) == 0  # FSDP's group is the whole world
        assert len(state.ranker.get_rep_groups()) == 8


def test_a_second_init():
    init(tensor_parallel_degree=2)
    group = smp.state.tp_process_group
    smp.init({"tensor_parallel_degree": 2})
    assert smp.state.tp_process_group is group
    error = ranks.raises(errors.StateError, lambda: smp.init({"tensor_parallel_degree": 4}))
    assert "tensor_parallel_degree 2, and now with 4" in str(error), error
    assert smp.state.tp_size == 2


def test_degrees_set_by_the_script():
    smp.state.reset()
    smp.state.tensor_parallel_degree = 1
    assert smp.state.tensor_parallel_degree == 1
    smp.init({"tensor_parallel_degree": 4, "hybrid_shard_degree": 2})
    assert smp.state.tp_size == 1
    smp.state.tensor_parallel_degree = 1  # as it is
    error = ranks.raises(errors.StateError, lambda: setattr(smp.state, "tensor_parallel_degree", 2))
    assert "tensor_parallel_degree is 1 since torch.sagemaker.init()" in str(error), error
    assert ranks.raises(AttributeError, lambda: setattr(smp.state, "random_seed", 2))


def test_reset():
    init(tensor_parallel_degree=2)
    smp.state.reset()
    assert not smp.is_initialized()
    smp.state.reset()  # once more does nothing
    for _ in range(20):  # the groups are given back: a job may have 256 open
        init(hybrid_shard_degree=2, tensor_parallel_degree=2)
    check_groups(smp.state)


def test_what_is_refused_leaves_nothing_behind():
    smp.state.reset()
    for configuration in ({"tensor_parallel_degree": 3}, {"hybrid_shard_degree": 16}, {"fp8": True}, {"degree": 1}):
        ranks.raises(errors.ShoalError, lambda c=configuration: smp.init(c))
        assert not smp.is_initialized()
    smp.init({"tensor_parallel_degree": 2})
    check_groups(smp.state)


def test_ranks_that_are_configured_differently():
    smp.state.reset()
    seed = 2 if dist.get_rank() == 5 else 1
    error = ranks.raises(errors.MismatchError, lambda: smp.init({"random_seed": seed}))
    assert "random_seed is 1 on rank 0 and 2 on rank 5" in str(error), error
    assert not smp.is_initialized()


def test_the_ranks_of_a_group_are_checked():
    init(hybrid_shard_degree=2, tensor_parallel_degree=2)
    check = smp.state.ranker.check_members
    check(members(smp.state.shard_process_group), "shard")
    error = ranks.raises(errors.InvalidError, lambda: check(range(8), "shard", what="FSDP's group"))
    assert "FSDP's group has ranks 0 and 1, which differ in tp" in str(error), error
    assert set(_ranker.DIMENSIONS) == set(smp.state.ranker.sizes)


def alone():
    """init() before anything else, configured by the environment; and again, for another process group."""
    for _ in range(2):
        smp.init()
        assert members(smp.state.shard_process_group) == [0, 1]
        size = smp.state.shard_size
        dist.destroy_process_group()
        assert not smp.is_initialized()
        error = ranks.raises(errors.StateError, lambda: smp.state.tp_rank)
        assert "since the process group ended" in str(error), error
    smp.state.reset()  # what there is no more is left alone
    sys.stdout.write(f"sharded over {size}\n")  # one write: ranks share the output
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:] == ["alone"]:
        alone()
    else:
        ranks.start("shoal")
        ranks.run("__main__")
