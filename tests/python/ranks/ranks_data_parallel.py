"""Data-parallel training three ways (torch's wrapper on gloo, on shoal with its hook, shoal's own
wrapper): the same parameters after the same steps."""

import contextlib
import gc
import inspect

import ranks
import shoal.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchWrapper


class Model(torch.nn.Module):
    """Layers of which a call uses some; a buffer; a parameter of another type."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.often = torch.nn.Linear(8, 8)
        self.never = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 2)
        self.double()  # so that sums in another order make no difference
        self.scale = torch.nn.Parameter(torch.ones(2, dtype=torch.float32))
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, inputs, use_often=True):
        hidden = self.norm(torch.relu(self.first(inputs)))
        if use_often:
            hidden = hidden + self.often(hidden)
        return self.last(hidden) * self.scale


def wrap_gloo(model, **options):
    return TorchWrapper(model, process_group=ranks.gloo, **options)


def wrap_hook(model, **options):
    wrapped = TorchWrapper(model, process_group=ranks.shoal_group, **options)
    wrapped.register_comm_hook(None, shoal.torch.allreduce_hook)
    return wrapped


def wrap_shoal(model, **options):
    return shoal.torch.DistributedDataParallel(model, **options)


def inputs_of(step):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(5, 6, generator=generator, dtype=torch.float64)


def train(wrap, step_of, steps=4, **options):
    """The parameters and gradients after some steps; the ranks' models differ at the start."""
    torch.manual_seed(dist.get_rank())
    wrapped = wrap(Model(), **options)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.5)
    for step in range(steps):
        step_of(wrapped, optimizer, step)
        optimizer.step()
    state = {name: tensor.clone() for name, tensor in wrapped.module.state_dict().items()}
    for name, parameter in wrapped.module.named_parameters():
        if parameter.grad is not None:
            state[name + ".grad"] = parameter.grad.clone()
    return state


def without_never(wrap):
    """Every parameter is one that a call may use."""

    def wrap_without_never(model, **options):
        model.never.requires_grad_(False)
        return wrap(model, **options)

    return wrap_without_never


def check_same(step_of, prepared=lambda wrap: wrap, **options):
    expected = train(prepared(wrap_gloo), step_of, **options)
    for wrap in (wrap_hook, wrap_shoal):
        got = train(prepared(wrap), step_of, **options)
        assert got.keys() == expected.keys(), (wrap, got.keys() ^ expected.keys())
        for name, tensor in expected.items():
            assert got[name].dtype == tensor.dtype
            torch.testing.assert_close(got[name], tensor, rtol=1e-6, atol=1e-7, msg=name)


def one_backward(wrapped, step, **arguments):
    wrapped(inputs_of(step), **arguments).square().mean().backward()


def test_steps():
    def step_of(wrapped, optimizer, step):
        optimizer.zero_grad(set_to_none=False)
        one_backward(wrapped, step)

    check_same(step_of, prepared=without_never)


def test_parameters_that_nobody_uses():
    def step_of(wrapped, optimizer, step):
        optimizer.zero_grad(set_to_none=True)
        one_backward(wrapped, step)

    check_same(step_of, find_unused_parameters=True)


def test_parameters_that_some_ranks_use():
    def step_of(wrapped, optimizer, step):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        one_backward(wrapped, step, use_often=dist.get_rank() == step % 4)

    check_same(step_of, find_unused_parameters=True)


def test_parameters_that_all_ranks_but_one_use():
    """The ranks that use them send them in the backward pass already."""

    def step_of(wrapped, optimizer, step):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        one_backward(wrapped, step, use_often=dist.get_rank() != step % 4)

    check_same(step_of, prepared=without_never, find_unused_parameters=True)


def test_gradients_forgotten_between_the_passes():
    """By zero_grad() after the forward pass, as many scripts have it."""

    def step_of(wrapped, optimizer, step):
        loss = wrapped(inputs_of(step), use_often=dist.get_rank() == step % 4).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()

    check_same(step_of, find_unused_parameters=True)


def test_accumulation():
    def step_of(wrapped, optimizer, step):
        optimizer.zero_grad(set_to_none=step % 2 == 1)
        with wrapped.no_sync():
            one_backward(wrapped, 10 * step)
            one_backward(wrapped, 10 * step + 1)
        one_backward(wrapped, 10 * step + 2)

    check_same(step_of, find_unused_parameters=True)


def test_gradients_that_stay():
    """Without zero_grad the next average is of what has accumulated, as torch has it."""

    def step_of(wrapped, optimizer, step):
        one_backward(wrapped, step)

    check_same(step_of, find_unused_parameters=True)


def test_gradients_outlive_the_wrapper():
    model = torch.nn.Linear(3, 3)
    wrapped = shoal.torch.DistributedDataParallel(model)
    wrapped(torch.ones(1, 3)).sum().backward()
    del wrapped
    gc.collect()
    assert torch.all(model.weight.grad == 1) and torch.all(model.bias.grad == 1)
    model(torch.ones(1, 3)).sum().backward()  # no hook of the wrapper is left
    assert torch.all(model.weight.grad == 2)


def test_buffers_come_from_rank_0():
    model = torch.nn.BatchNorm1d(6).double()
    wrapped = shoal.torch.DistributedDataParallel(model)
    for step in range(2):
        wrapped(inputs_of(step)).sum().backward()
    wrapped(inputs_of(3))
    mean = model.running_mean.clone()
    with contextlib.suppress(Exception):
        wrapped(inputs_of(4))
    means = [torch.empty(6, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(means, mean, group=ranks.gloo)
    assert not all(torch.equal(other, means[0]) for other in means)  # each its own batch ...
    dist._broadcast_coalesced(ranks.shoal_group, [mean], 1000, 0)
    assert torch.equal(mean, means[0])


def test_what_it_does_not_take():
    raised = ranks.raises(
        shoal.InvalidError,
        lambda: shoal.torch.DistributedDataParallel(
            torch.nn.Linear(2, 2), process_group=ranks.gloo
        ),
    )
    assert "not of shoal" in str(raised)


def test_parameters_that_nobody_looks_for():
    """Without find_unused_parameters: as torch has it, the next step raises."""
    wrapped = shoal.torch.DistributedDataParallel(Model())
    one_backward(wrapped, 0)
    error = ranks.raises(RuntimeError, lambda: one_backward(wrapped, 1))
    assert "find_unused_parameters" in str(error), error


def test_arguments_of_torchs_class():
    """By place and by name, with their defaults; and no others."""
    linear = torch.nn.Linear(2, 2)
    here = {
        name: parameter.default
        for name, parameter in inspect.signature(TorchWrapper).parameters.items()
        if name not in ("module", "gradient_as_bucket_view")
    }
    for given, named in (((), here), ((None, None, 0), {}), ((), {"gradient_as_bucket_view": False})):
        wrapped = shoal.torch.DistributedDataParallel(linear, *given, **named)
        assert wrapped.gradient_as_bucket_view is named.get("gradient_as_bucket_view", True)
        wrapped(torch.ones(1, 2)).sum().backward()
        assert torch.all(linear.weight.grad == 1)
        del wrapped
        gc.collect()
        linear.zero_grad(set_to_none=True)
    ranks.raises(TypeError, lambda: shoal.torch.DistributedDataParallel(linear, bucket_cap=1))
    if "init_sync" not in here:  # a torch before it
        return
    torch.manual_seed(dist.get_rank())
    mine = torch.nn.Linear(2, 2)
    before = mine.weight.detach().clone()
    shoal.torch.DistributedDataParallel(mine, init_sync=False)
    assert torch.equal(mine.weight, before)  # nobody has sent it rank 0's


def test_statistics():
    model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(3)])
    wrapped = shoal.torch.DistributedDataParallel(model, bucket_cap_mb=0.25)
    assert set(wrapped.statistics().values()) == {0}
    for _ in range(3):
        wrapped(torch.ones(2, 300)).sum().backward()
    statistics = wrapped.statistics()
    assert statistics["bytes"] == 3 * 4 * (300 * 300 + 300) and statistics["buffers"] == 3, statistics
    assert statistics["communication_ns"] >= max(1, statistics["exposed_ns"]), statistics


def test_after_the_group_is_destroyed():
    """The last case: gradients are still there without the arena."""
    model = torch.nn.Linear(3, 3)
    wrapped = shoal.torch.DistributedDataParallel(model)
    wrapped(torch.ones(1, 3)).sum().backward()
    ranks.member(wrapped.process_group).session.close()
    assert torch.all(model.weight.grad == 1)
    error = ranks.raises(shoal.StateError, lambda: dist.all_reduce(torch.ones(1)))
    assert "destroyed" in str(error), error


if __name__ == "__main__":
    ranks.start("shoal")
    ranks.run("__main__")
