"""shoal's wrapper beside torch's own on gloo where training is out of the ordinary: both end with the same numbers, or
both raise. And where its gradients lie."""

import collections
import contextlib
import copy
import datetime
import functools
import gc
import inspect
import io
import os
import unittest
import warnings
import weakref

import ranks
import shoal.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchWrapper

STEPS = 4


class Model(torch.nn.Module):
    """Two layers and a head."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, 2)

    def forward(self, inputs):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(inputs)))))


def make(kind=Model):
    torch.manual_seed(3)
    return kind().double()


def inputs_of(step):
    """Other ones on each rank."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(3, 4, generator=generator, dtype=torch.float64)


def loss_of(model, step):
    return model(inputs_of(step)).square().mean()


def train(wrapped, steps=range(STEPS), optimizer=None):
    optimizer = optimizer or torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.5)
    for step in steps:
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss_of(wrapped, step).backward()
        optimizer.step()
    return wrapped


def outcome_of(case, wrap):
    """({name: parameter}, None), or (None, the kind of what it raised)."""
    try:
        return {name: p.detach().clone() for name, p in case(wrap).named_parameters()}, None
    except RuntimeError as error:
        return None, type(error)


def check(case):
    expected, raised = outcome_of(case, lambda module, **more: TorchWrapper(module, process_group=ranks.gloo, **more))
    gc.collect()
    got, raised_here = outcome_of(case, shoal.torch.DistributedDataParallel)
    gc.collect()
    assert (raised is None) == (raised_here is None), (raised, raised_here)
    for name, tensor in (expected or {}).items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-9, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}")


def beside_gloo(case):
    """The case is run with torch's wrapper on gloo, and with shoal's."""
    return functools.wraps(case)(lambda: check(case))


# --- cases: each trains a module in a wrapper, and returns the module


@beside_gloo
def test_two_wrappers(wrap):
    """Two wrappers of one module are there at once, and are used in turns."""
    module = make()
    for wrapped in (wrap(module), wrap(module)):
        train(wrapped, range(2))
    return module


@beside_gloo
def test_an_old_wrapper_in_a_cycle(wrap):
    module = make()
    old = wrap(module)
    train(old, range(2))
    old.cycle = [old]
    del old
    train(wrap(module), range(2, 4))
    return module


@beside_gloo
def test_a_backward_pass_that_raised(wrap):
    """On all ranks, when the last layers' gradients are there, and was caught."""
    module = make()
    wrapped = wrap(module, bucket_cap_mb=0.0001)
    train(wrapped, range(2))

    def refuse(gradient):
        raise ArithmeticError("refused")

    with contextlib.suppress(ArithmeticError):
        hook = module.second.register_forward_pre_hook(lambda _, given: given[0].register_hook(refuse) and None)
        try:
            loss_of(wrapped, 2).backward()
        finally:
            hook.remove()
    train(wrapped, range(3, 5))
    return module


@beside_gloo
def test_parameters_to_ignore(wrap):
    """A rank's own, as experts are."""
    module = make()
    with torch.no_grad():
        module.second.weight.add_(dist.get_rank())
    TorchWrapper._set_params_and_buffers_to_ignore_for_model(module, ["second.weight", "second.bias"])
    train(wrap(module))
    return module


@beside_gloo
def test_optimizers_in_the_backward_pass(wrap):
    from torch.distributed.optim import _apply_optimizer_in_backward

    module = make()
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
    wrapped = wrap(module)
    for step in range(STEPS):
        loss_of(wrapped, step).backward()
    return module


@beside_gloo
def test_frozen_layers_under_adamw(wrap):
    """Frozen before, and during, what decays all parameters that have gradients."""
    module = make()
    module.first.requires_grad_(False)
    wrapped = wrap(module, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.5)
    train(wrapped, range(2), optimizer)
    module.second.requires_grad_(False)
    optimizer.zero_grad(set_to_none=True)
    train(wrapped, range(2, 4), optimizer)
    return module


@beside_gloo
def test_a_replaced_head(wrap):
    """The new one is not the wrapper's, as torch's papers have it; the old one is used no more."""
    module = make()
    wrapped = wrap(module, find_unused_parameters=True)
    train(wrapped, range(2))
    module.head = torch.nn.Linear(6, 2).double()
    train(wrapped, range(2, 4))
    return module


@beside_gloo
def test_a_replaced_head_that_nobody_looks_for(wrap):
    module = make()
    wrapped = wrap(module)
    train(wrapped, range(2))
    module.head = torch.nn.Linear(6, 2).double()
    return train(wrapped, range(2, 4)).module


@beside_gloo
def test_gradients_with_graphs(wrap):
    """create_graph; the wrapper is gone after it."""
    module = make()
    wrapped = wrap(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss_of(wrapped, step).backward(create_graph=True)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    gone = weakref.ref(wrapped)
    del wrapped
    gc.collect()
    assert gone() is None
    return module


def in_default_group(wrapped):
    return wrapped.process_group is dist.GroupMember.WORLD


@beside_gloo
def test_a_copy(wrap):
    """torch copies wrappers in the default group alone. The wrapper and its copy both train."""
    wrapped = train(wrap(make()), range(2))
    other = copy.deepcopy(wrapped) if in_default_group(wrapped) else wrap(copy.deepcopy(wrapped.module))
    train(wrapped, range(2))
    train(other, range(2, 4))
    return torch.nn.ModuleList([wrapped.module, other.module])


@beside_gloo
def test_a_saved_one(wrap):
    wrapped = train(wrap(make()), range(2))
    file = io.BytesIO()
    if in_default_group(wrapped):
        torch.save(wrapped, file)
        file.seek(0)
        wrapped = torch.load(file, weights_only=False)
    return train(wrapped, range(2, 4)).module


@beside_gloo
def test_uneven_inputs(wrap):
    """Rank 0 has fewest."""
    wrapped = wrap(make())
    with wrapped.join():
        train(wrapped, range(1 + 2 * dist.get_rank()))
    return wrapped.module


@beside_gloo
def test_uneven_inputs_divided_by_those_left(wrap):
    wrapped = wrap(make())
    with wrapped.join(divide_by_initial_world_size=False):
        train(wrapped, range(1 + 2 * dist.get_rank()))
    return wrapped.module


@beside_gloo
def test_several_sizes_of_buckets(wrap):
    if "bucket_cap_mb_list" not in inspect.signature(TorchWrapper).parameters:
        raise unittest.SkipTest(f"torch {torch.__version__} has no bucket_cap_mb_list")
    return train(wrap(make(), bucket_cap_mb_list=[1, 2])).module


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = torch.nn.Embedding(50, 4, sparse=True), torch.nn.Linear(4, 2)

    def forward(self, inputs):
        return self.last(self.words((inputs * 10).long().abs() % 50))


@beside_gloo
def test_sparse_gradients(wrap):
    """They stay sparse."""
    module = make(Words)
    wrapped = wrap(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    train(wrapped, optimizer=optimizer)
    assert module.words.weight.grad.is_sparse
    return module


@beside_gloo
def test_compiled(wrap):
    wrapped = wrap(make())
    train(torch.compile(wrapped, backend="eager"))
    return wrapped.module


@beside_gloo
def test_a_hook_of_its_own(wrap):
    """The script has one, which doubles."""
    wrapped = wrap(make())
    wrapped.register_comm_hook(wrapped.process_group, doubling)
    train(wrapped)
    if isinstance(wrapped, shoal.torch.DistributedDataParallel):
        ranks.raises(shoal.StateError, wrapped.statistics)
    return wrapped.module


def doubling(group, bucket):
    work = dist.all_reduce(bucket.buffer().mul_(2), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


@beside_gloo
def test_a_hook_after_the_first_pass(wrap):
    """Its averages are the script's from then on; a second one is refused, as torch refuses it."""
    wrapped = train(wrap(make()), range(2))
    wrapped.register_comm_hook(wrapped.process_group, doubling)
    train(wrapped, range(2, 4))
    ranks.raises(RuntimeError, lambda: wrapped.register_comm_hook(wrapped.process_group, doubling))
    if isinstance(wrapped, shoal.torch.DistributedDataParallel):
        ranks.raises(shoal.StateError, wrapped.statistics)
    return train(wrapped, range(4, 5)).module


def test_a_hook_of_torchs_own_after_the_first_pass():
    """It cannot be taken any more: that is said, and training goes on."""
    wrapped = train(shoal.torch.DistributedDataParallel(make()), range(1))
    late = ranks.raises(
        shoal.UnsupportedError,
        lambda: wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
    )
    assert "before the first forward pass" in str(late), late
    train(wrapped, range(1, 2))
    assert wrapped.statistics()["buffers"] == 1


def test_late_averages_of_a_pass_that_raised():
    """Rank 0 has raised and goes on while rank 1 has not yet come to the same averages: they do not come into what rank
    0 does next."""
    module, store = make(), dist.PrefixStore("late", dist.distributed_c10d._get_default_store())
    wrapped = train(shoal.torch.DistributedDataParallel(module, bucket_cap_mb=0.0001), range(2))
    wait_for_rank_0 = functools.partial(store.wait, ["went on"], datetime.timedelta(seconds=1))

    def refuse(gradient):
        raise ArithmeticError("refused")

    def be_late(gradient):
        with contextlib.suppress(RuntimeError):  # rank 0 waits for these averages, so it has not gone on
            wait_for_rank_0()

    outputs = wrapped(inputs_of(2))
    if dist.get_rank() == 1:
        outputs.register_hook(be_late)
    module.second.bias.register_hook(refuse)
    ranks.raises(ArithmeticError, outputs.square().mean().backward)
    ranks.raises(RuntimeError, lambda: wrapped(inputs_of(3)))  # torch wants another wrapper
    wrapped.zero_grad(set_to_none=False)
    if dist.get_rank() == 0:
        store.set("went on", "")
    dist.barrier(group=ranks.gloo)
    del wrapped
    gc.collect()
    dist.barrier(group=ranks.shoal_group)  # what was asked for before is over with it
    assert not any(parameter.grad.any() for parameter in module.parameters())


@beside_gloo
def test_a_forward_within_a_backward_pass(wrap):
    """A forward pass without gradients, as an evaluation in a hook, leaves the averages under way alone."""
    module = make()
    wrapped = wrap(module, bucket_cap_mb=0.0001)

    def evaluate(gradient):
        with torch.no_grad():
            wrapped(inputs_of(7))

    module.first.weight.register_hook(evaluate)
    return train(wrapped).module


@beside_gloo
def test_a_static_graph(wrap):
    return train(wrap(make(), static_graph=True)).module


# --- where the gradients lie


def arenas():
    """[(first address, the one behind the last)]"""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if "shoal-arena" in line]
    return [tuple(int(end, 16) for end in words[0].split("-")) for words in lines]


def in_arena(tensor):
    return any(start <= tensor.data_ptr() < end for start, end in arenas())


def takes_from_the_group():
    backend = None if os.environ.get("SHOAL_NATIVE") == "0" else ranks.shoal_group._get_backend(torch.device("cpu"))
    if not hasattr(backend, "allocate_tensor"):
        raise unittest.SkipTest("this torch takes no memory from a group, or the group is in Python")
    return backend


def take(backend, size, dtype=torch.uint8, device="cpu"):
    return backend.allocate_tensor(size, dtype=dtype, device=torch.device(device))


def test_tensors_of_the_group():
    """In the arena while there is room, in ordinary memory else, and beyond the end of the group."""
    backend = takes_from_the_group()
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    assert not backend.supports_tensor_alloc(torch.device("cuda", 0))
    tensor = take(backend, 1000, torch.float64)
    assert tensor.shape == (1000,) and tensor.dtype == torch.float64 and in_arena(tensor)
    address = tensor.data_ptr()
    del tensor
    assert take(backend, 1000, torch.float64).data_ptr() == address  # given back
    assert take(backend, 0).numel() == 0
    assert take(backend, 3, device="meta").device.type == "meta"


# Operators that would be a pass over a bucket.
PASSES = ("aten::clone", "aten::copy_", "aten::div", "aten::div_", "aten::mul", "aten::mul_")


def passes_of(loss):
    """How many passes over tensors a backward pass makes, beside the sums of gradients; and how many collectives."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        loss.backward()
    counts = collections.Counter({event.key: event.count for event in profiled.key_averages()})
    return {name: counts[name] for name in PASSES}, sum(counts[name] for name in counts if "allreduce" in name)


def test_buckets_are_in_the_arena():
    """torch takes their memory from the group, also when it lays them out anew, and makes no pass over one to divide or
    to copy it: a backward pass has as many as without the wrapper."""
    takes_from_the_group()
    model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(3)])
    model(torch.ones(2, 300)).sum().backward()
    alone, _ = passes_of(model(torch.ones(2, 300)).sum())
    wrapped = shoal.torch.DistributedDataParallel(model, bucket_cap_mb=0.25)
    assert wrapped.statistics()["buffers"] == 0 and "DDP_DISABLE_COMM_MEM" not in os.environ
    for step in range(4):
        wrapped.zero_grad(set_to_none=step == 1)
        passes, collectives = passes_of(wrapped(torch.ones(2, 300)).sum())
        assert all(in_arena(parameter.grad) for parameter in model.parameters()), step
        if step > 1:
            assert (passes, collectives) == (alone, 3), (passes, alone, collectives)
    statistics = wrapped.statistics()
    assert statistics["bytes"] == 3 * 4 * (300 * 300 + 300) and statistics["buffers"] == 3, statistics
    assert statistics["communication_ns"] >= max(1, statistics["exposed_ns"]), statistics
    gradients = [parameter.grad for parameter in model.parameters()]
    before = [gradient.clone() for gradient in gradients]
    del wrapped, model
    gc.collect()
    assert all(in_arena(g) and torch.equal(g, b) for g, b in zip(gradients, before))


def test_a_user_may_forbid_it():
    takes_from_the_group()
    os.environ["DDP_DISABLE_COMM_MEM"] = "1"
    try:
        wrapped = train(shoal.torch.DistributedDataParallel(make()))
        assert not any(in_arena(parameter.grad) for parameter in wrapped.parameters())
        assert os.environ["DDP_DISABLE_COMM_MEM"] == "1"
    finally:
        del os.environ["DDP_DISABLE_COMM_MEM"]


def test_fsdp_takes_from_the_group():
    """Whatever fully_shard gathers, scatters and sums lies in the arena."""
    takes_from_the_group()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, given=(), named=None):
            if function.namespace == "c10d" and "base" in function.__name__:
                seen.extend((function.__name__, in_arena(t)) for t in given if isinstance(t, torch.Tensor))
            return function(*given, **(named or {}))

    losses = {}
    for from_group in (False, True):
        module = make().float()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (module.first, module.second, module):
            fully_shard(layer, mesh=mesh)
            layer.set_allocate_memory_from_process_group_for_comm(from_group)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        seen.clear()
        with Watch():
            for step in range(STEPS):
                loss = module(inputs_of(step).float()).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        losses[from_group] = loss.item()
        names = {name for name, _ in seen}
        assert any("gather" in name for name in names) and any("scatter" in name for name in names), names
        assert all(place for _, place in seen) == from_group, seen
    assert losses[False] == losses[True], losses


def test_the_arena_is_full():
    """torch gets ordinary memory, and is told once what to set."""
    backend = takes_from_the_group()
    pieces, size = [], 64 << 20
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        while len(pieces) < 1 << 12:
            pieces.append(take(backend, size))
            if not in_arena(pieces[-1]):
                break
        pieces.append(take(backend, size))
    assert not in_arena(pieces[-1]) and len(said) <= 1, (len(pieces), said)
    assert not said or "SHOAL_ARENA_BYTES" in str(said[0].message), said
    assert len(pieces) > 2


def test_tensors_outlive_the_group():
    """And hold its arena, which other processes see no more, and children get as other memory."""
    takes_from_the_group()
    others = arenas()
    store = dist.PrefixStore("outlive", dist.distributed_c10d._get_default_store())
    group = shoal.torch.make_group(store, dist.get_rank(), dist.get_world_size(), ranks.TIMEOUT)
    model = make()
    wrapped = train(shoal.torch.DistributedDataParallel(model, process_group=group))
    gradients = [parameter.grad for parameter in model.parameters()]
    before = [gradient.clone() for gradient in gradients]
    dist.barrier(group=ranks.gloo)
    ranks.member(group).session.close()
    assert all(torch.equal(gradient, old) for gradient, old in zip(gradients, before))
    error = ranks.raises(shoal.StateError, lambda: group.allreduce(torch.ones(1)))
    assert "destroyed" in str(error), error
    before = [gradient.add_(1).clone() for gradient in gradients]
    assert len(arenas()) == len(others) + 1 and in_arena(gradients[0])
    child = os.fork()
    if child == 0:
        os._exit(0 if all(torch.equal(gradient, old) for gradient, old in zip(gradients, before)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del gradients, wrapped, model
    gc.collect()
    assert arenas() == others


if __name__ == "__main__":
    ranks.start("shoal")
    ranks.run("__main__")
