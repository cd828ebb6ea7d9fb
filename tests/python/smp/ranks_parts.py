"""Divided modules by themselves on 4 ranks: what they give, and their gradients, beside whole ones."""

import itertools

import models
import ranks
import shoal.torch
import torch
import torch.distributed as dist
from shoal import errors
from shoal.smddp import smp
from shoal.smddp.smp.checkpoint import full
from shoal.smddp.smp.fsdp import delayed_param
from shoal.smddp.smp.tensor_parallel import _functions, _modules
from shoal.smddp.smp.tensor_parallel._divided import TensorParallel
from torch.utils.checkpoint import checkpoint

WIDTH, LENGTH, BATCH = 16, 5, 3


def init(degree):
    smp.state.reset()
    smp.init({"tensor_parallel_degree": degree})
    return TensorParallel(smp.state.tp_process_group, smp.state.tp_rank, smp.state.tp_size)


def seeded(make):
    torch.manual_seed(11)
    return make()


def divided(make, plan):
    return smp.transform(seeded(make), config={"tensor_parallel_plan": plan})


def check(got, expected):
    # Parts are summed in another order than a whole: with torch 2.13's attention 1.04e-6 has been seen.
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)


def check_gradients(part, whole):
    """Gradients of parts are parts of the gradients of whole parameters; a parameter that is not divided has the same
    gradient."""
    gradients = {name: parameter.grad.clone() for name, parameter in part.named_parameters()}
    for name, gradient in full.join_parts(part, gradients).items():
        check(gradient, whole.get_parameter(name).grad)


def check_alike(part, whole, *inputs, **named):
    """Outputs, gradients of inputs and of parameters."""
    inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) for shape in inputs]
    results = []
    for model in (part, whole):
        own = [tensor.clone().requires_grad_() for tensor in inputs]
        output = model(*own, **named)
        outputs = output if isinstance(output, tuple) else (output,)
        sum((o * torch.arange(o.shape[-1])).sum() for o in outputs if o is not None).backward()
        results.append((outputs, [tensor.grad for tensor in own]))
    for (got, expected) in zip(*(list(itertools.chain(*result)) for result in results)):
        assert (got is None) == (expected is None)
        if got is not None:
            check(got.detach(), expected.detach())
    check_gradients(part, whole)


def test_what_ranks_exchange():
    tp = init(4)
    everyone = torch.arange(4.0) + 1
    for call, expected, gradient in (
        (_functions.copy, lambda t: t, 10.0),  # each rank's gradient is its number
        (_functions.add_up, lambda t: t * 10, tp.rank + 1.0),
    ):
        tensor = torch.ones(2, 4, requires_grad=True)
        output = call(tensor * (tp.rank + 1) if call is _functions.add_up else tensor, tp)
        assert torch.equal(output, expected(torch.ones(2, 4)))
        (output * (tp.rank + 1 if call is _functions.copy else 1)).sum().backward()
        assert torch.all(tensor.grad == gradient), (call, tensor.grad)
    part = torch.full((2, 1), tp.rank + 1.0, requires_grad=True)
    whole = _functions.gather(part, tp)
    assert torch.equal(whole, everyone.expand(2, 4))
    (whole * everyone).sum().backward()
    assert torch.all(part.grad == tp.rank + 1)
    whole = everyone.repeat(2, 1).requires_grad_()
    part = _functions.scatter(whole, tp)
    assert torch.all(part == tp.rank + 1)
    (part * (tp.rank + 1)).sum().backward()
    assert torch.equal(whole.grad, everyone.expand(2, 4))


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.joined = torch.nn.Linear(WIDTH, 8, bias=False)
        self.taken = torch.nn.Linear(8, 4)

    def forward(self, tensor):
        return self.taken(self.joined(self.down(self.up(tensor).relu())))


def test_linear_layers():
    for degree in (2, 4):
        init(degree)
        plan = {"up": "colwise", "down": "rowwise", "joined": "colwise_rep", "taken": "rowwise_rep"}
        part = divided(Layers, plan)
        assert part.up.weight.shape == (2 * WIDTH // degree, WIDTH)
        assert part.taken.weight.shape == (4, 8 // degree) and part.taken.bias.shape == (4,)
        check_alike(part, seeded(Layers), (BATCH, LENGTH, WIDTH))


def test_embeddings():
    init(4)
    indices = torch.tensor([[0, 5, 11, 3], [7, 7, 3, 2]])
    for padding in (None, 3):
        make = lambda padding=padding: torch.nn.Sequential(torch.nn.Embedding(12, 6, padding_idx=padding))  # noqa: E731
        part, whole = divided(make, {"0": "rowwise_rep"}), seeded(make)
        assert part[0].weight.shape == (3, 6)
        weights = torch.arange(6.0)
        for model in (part, whole):
            (model(indices) * weights).sum().backward()
        check(part(indices).detach(), whole(indices).detach())
        check_gradients(part, whole)
        for index in (-1, 12):  # torch's own raises the same
            error = ranks.raises(IndexError, lambda part=part, index=index: part(torch.tensor([[0, index]])))
            assert f"index {index} is out of range in a divided Embedding of 12 rows" in str(error), error
    refused = lambda: divided(  # noqa: E731
        lambda: torch.nn.Sequential(torch.nn.Embedding(12, 6, max_norm=1.0)), {"0": "rowwise_rep"}
    )
    assert "max_norm" in str(ranks.raises(errors.UnsupportedError, refused))


def attentions(**arguments):
    make = lambda: torch.nn.ModuleList([torch.nn.MultiheadAttention(WIDTH, 4, **arguments)])  # noqa: E731
    return divided(make, {"0": "attention"})[0], seeded(make)[0]


class Once(torch.nn.Module):
    """Attention of a tensor to itself."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, tensor, **named):
        return self.attention(tensor, tensor, tensor, **named)


def test_attention_to_itself():
    init(4)
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    addend = torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(2))
    by_head = torch.randn(BATCH * 4, LENGTH, LENGTH, generator=torch.Generator().manual_seed(3))
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[:, -1] = True
    for named in (
        {"need_weights": False},
        {},
        {"attn_mask": causal, "need_weights": False},
        {"attn_mask": addend},
        {"attn_mask": by_head, "need_weights": False},
        {"key_padding_mask": padding},
        {"attn_mask": causal, "key_padding_mask": padding, "need_weights": False},
    ):
        part, whole = attentions(batch_first=True)
        check_alike(Once(part), Once(whole), (BATCH, LENGTH, WIDTH), **named)
    for arguments, shape in (({}, (LENGTH, BATCH, WIDTH)), ({}, (LENGTH, WIDTH)), ({"bias": False}, (LENGTH, WIDTH))):
        part, whole = attentions(**arguments)
        check_alike(Once(part), Once(whole), shape)


def test_attention_to_others():
    init(2)
    for arguments, widths in (({}, (WIDTH, WIDTH)), ({"kdim": 6, "vdim": 10}, (6, 10))):
        part, whole = attentions(batch_first=True, **arguments)
        shapes = [(BATCH, LENGTH, WIDTH), *((BATCH, LENGTH + 2, width) for width in widths)]
        check_alike(part, whole, *shapes)


def test_attention_that_cannot_be_divided():
    init(2)
    for arguments in ({"add_bias_kv": True}, {"add_zero_attn": True}):
        error = ranks.raises(errors.UnsupportedError, lambda a=arguments: attentions(**a))
        assert "add_bias_kv and add_zero_attn" in str(error), error
    part, _ = attentions()
    tensor = torch.ones(LENGTH, BATCH, WIDTH)
    ranks.raises(errors.UnsupportedError, lambda: part(tensor, tensor, tensor, average_attn_weights=False))
    error = ranks.raises(RuntimeError, lambda: part(tensor, tensor, tensor, is_causal=True))
    assert "is_causal says what attn_mask is" in str(error), error


class GPTNeoXAttention(torch.nn.Module):
    """Attention as in transformers: queries, keys and values of a head lie together."""

    def __init__(self):
        super().__init__()
        self.num_attention_heads, self.hidden_size, self.head_size = 4, WIDTH, WIDTH // 4
        self.query_key_value = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.dense = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, tensor):
        both = tensor.shape[:2]
        qkv = self.query_key_value(tensor).view(*both, self.num_attention_heads, 3 * self.head_size)
        q, k, v = (part.transpose(1, 2) for part in qkv.chunk(3, -1))
        attended = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.dense(attended.transpose(1, 2).reshape(*both, self.num_attention_heads * self.head_size))


def test_heads_that_lie_together():
    init(4)
    part, whole = (make(lambda: torch.nn.Sequential(GPTNeoXAttention())) for make in (seeded, seeded))
    check_alike(smp.transform(part), whole, (BATCH, LENGTH, WIDTH))

    class FalconAttention(GPTNeoXAttention):
        pass

    refused = lambda: smp.transform(torch.nn.Sequential(FalconAttention()))  # noqa: E731
    assert "nothing in a Sequential" in str(ranks.raises(errors.UnsupportedError, refused))


def test_inference():
    """torch's layers have a faster way for it, which reads whole weights."""
    init(2)
    text = next(models.batches(1))[0]
    part, whole = smp.transform(models.make()).eval(), models.make().eval()
    with torch.no_grad():
        torch.testing.assert_close(part(text), whole(text), rtol=1e-4, atol=1e-5)
    make = lambda: torch.nn.TransformerEncoder(  # noqa: E731
        torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True), 2
    )
    part, whole = smp.transform(seeded(make)).eval(), seeded(make).eval()
    rows = torch.randn((BATCH, LENGTH, WIDTH), generator=torch.Generator().manual_seed(4))
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[:2, -2:] = True
    with torch.no_grad():
        got, expected = (model(rows, src_key_padding_mask=padding) for model in (part, whole))
    check(got[~padding], expected[~padding])


def test_dropped_parts():
    """Ranks drop different things of parts, and the same of what all have; a checkpoint drops them again."""
    tp = init(4)
    torch.manual_seed(21)
    kept = _modules.drop_of_part(torch.ones(1000), 0.25, tp)
    assert 0.6 < (kept > 0).float().mean() < 0.9 and torch.all((kept == 0) | (kept == 1 / 0.75))
    everyone = [torch.empty(1000) for _ in range(4)]
    dist.all_gather(everyone, kept, group=tp.group)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(everyone, 2))
    text, _ = next(models.batches(1))
    model = smp.transform(models.make(dropout=0.3))
    gradients = []
    again = lambda layer: lambda *a, **n: checkpoint(layer, *a, use_reentrant=False, **n)  # noqa: E731
    for layer_of in (lambda layer: layer, again):
        torch.manual_seed(22)
        hidden = model.embedding(text)
        for layer in model.layers:
            hidden = layer_of(layer)(hidden, src_mask=model.mask)
        everyone = [torch.empty_like(hidden) for _ in range(4)]
        dist.all_gather(everyone, hidden.detach(), group=tp.group)
        assert all(torch.equal(other, hidden) for other in everyone)
        model.zero_grad()
        hidden.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients))
    torch.manual_seed(23)
    assert not torch.equal(model.layers[0](hidden.detach()), model.layers[0](hidden.detach()))


def test_weights_that_are_made_later():
    """The weights are those of one process, whatever the degree."""
    def make_later(degree):
        init(degree)
        with torch.device("meta"):
            model = models.Text()
        model = smp.transform(model)
        initer = delayed_param.DelayedParamIniter(model)
        torch.manual_seed(31)
        for module in model.modules():
            initer.get_param_init_fn()(module)
        assert model.head.weight is model.embedding.weight
        model.register_buffer("mask", torch.zeros(1))
        with initer.validate_params_and_buffers_inited():
            pass
        return full.join_parts(model, {name: p.detach().clone() for name, p in model.named_parameters()})

    expected = make_later(1)
    for degree in (2, 4):
        got = make_later(degree)
        assert set(got) == set(expected)
        for name, tensor in expected.items():
            assert torch.equal(got[name], tensor), name


def test_models_that_are_not_the_same():
    tp = init(2)
    make = lambda: torch.nn.Sequential(torch.nn.Linear(4, 4 + 2 * tp.rank))  # noqa: E731
    error = ranks.raises(errors.MismatchError, lambda: divided(make, {"0": "colwise"}))
    assert "tensor parallel ranks 0 and 1 have different models" in str(error), error
    model = seeded(lambda: torch.nn.Sequential(torch.nn.Linear(4, 4)))
    if tp.rank == 1:
        model = model.to("meta")
    error = ranks.raises(
        errors.MismatchError, lambda: smp.transform(model, config={"tensor_parallel_plan": {"0": "colwise"}})
    )
    assert "0.weight is on the meta device of one of" in str(error), error
    make = lambda: torch.nn.Sequential(torch.nn.Linear(4, 5))  # noqa: E731
    error = ranks.raises(errors.InvalidError, lambda: divided(make, {"0": "colwise"}))
    assert "0.weight has 5 along dimension 0, which tensor_parallel_degree 2" in str(error), error


def test_a_degree_of_one_divides_nothing():
    init(1)
    model = smp.transform(models.make(), dtype=torch.float64)
    assert type(model.layers[0].linear1) is torch.nn.Linear and model.position.dtype == torch.float64


def test_parts_in_ddp():
    """Both wrappers take means over the ranks with the same parts, and no other ones."""
    init(2)
    text, targets = next(models.batches(1))
    whole = models.make()
    models.loss_of(whole, text, targets).backward()
    group = smp.state.dp_process_group
    for kind in (torch.nn.parallel.DistributedDataParallel, shoal.torch.DistributedDataParallel):
        error = ranks.raises(errors.InvalidError, lambda k=kind: k(smp.transform(models.make())))
        assert "process_group has ranks 0 and 1, which differ in tp (0 and 1)" in str(error), error
        assert "It has ranks [0, 1, 2, 3], and torch.sagemaker.state.tp_process_group" in str(error), error
        part = kind(smp.transform(models.make()), process_group=group)
        mine = [rows.chunk(2)[smp.state.dp_rank] for rows in (text, targets)]
        models.loss_of(part, *mine).backward()
        check_gradients(part.module, whole)


def test_before_init():
    smp.state.reset()
    assert "transform()" in str(ranks.raises(errors.StateError, lambda: smp.transform(models.make())))


if __name__ == "__main__":
    ranks.start("shoal")
    ranks.run("__main__")
