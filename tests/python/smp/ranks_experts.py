"""A mixture of experts over expert parallel ranks, beside the whole of it in one process."""

import copy

import ranks
import torch
import torch.distributed as dist
from shoal import errors
from shoal.smddp import smp
from shoal.smddp.smp import _random, _token_exchange, moe_layer
from shoal.smddp.smp.moe_config import MoEConfig
from shoal.smddp.smp.moe_layer import MoELayer
from torch.utils.checkpoint import checkpoint

WIDTH, EXPERTS = 6, 8
COUNTS = [5, 0, 3, 8, 1, 7, 2, 6]  # tokens of each rank
CLOSE = {"rtol": 1e-12, "atol": 1e-12}  # in f64


def make_expert():
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 10), torch.nn.GELU(), torch.nn.Linear(10, WIDTH)).double()


def make_layer(top_k, balancing, **more):
    layer = MoELayer(WIDTH, make_expert, EXPERTS, top_k, MoEConfig(moe_load_balancing=balancing, **more))
    return layer.double()


def inputs_of(rank, step=0):
    """(tokens, wanted outputs) of a rank, that every rank can work out."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    shape = (2, COUNTS[rank], WIDTH, 1)
    both = torch.randn(shape, generator=generator, dtype=torch.float64)[..., 0]
    return both[0].requires_grad_(), both[1]


def step_of_whole(layer, step):
    """One process: the gradients of the mean over the ranks; returns each rank's loss and input gradient."""
    results = []
    for rank in range(len(COUNTS)):
        tokens, wanted = inputs_of(rank, step)
        loss = (layer(tokens) - wanted).square().sum()
        loss.backward()
        results.append((loss.item(), tokens.grad))
    for parameter in layer.parameters():
        parameter.grad /= len(COUNTS)
    return results


def step_of_parts(layer, step):
    """This rank's part; returns its loss and its input's gradient."""
    tokens, wanted = inputs_of(dist.get_rank(), step)
    loss = (layer(tokens) - wanted).square().sum()
    loss.backward()
    state = smp.state
    for parameter in layer.router.parameters():
        take_mean(parameter.grad, state.dp_process_group)
    for parameter in layer.experts.parameters():
        take_mean(parameter.grad, state.dp_process_group if state.ep_size == 1 else state.rep_process_group)
    return loss.item(), tokens.grad


def take_mean(tensor, group):
    dist.all_reduce(tensor, group=group)
    tensor /= dist.get_world_size(group)


def in_whole(whole, parts, name):
    """The parameter of the whole layer that one of a part is."""
    words = name.split(".")
    if words[0] == "experts":
        words[1] = str(int(words[1]) + parts.first_expert)
    return whole.get_parameter(".".join(words))


def check_training(degree, top_k, balancing, **more):
    """Some steps of both: losses, gradients, and weights in the end."""
    smp.state.reset()
    whole = make_layer(top_k, balancing, **more)
    smp.init({"expert_parallel_degree": degree, "hybrid_shard_degree": 1})
    parts = make_layer(top_k, balancing, **more)
    assert len(parts.experts) == EXPERTS // degree
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.02) for layer in (whole, parts)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss, gradient = step_of_whole(whole, step)[dist.get_rank()]
        own_loss, own_gradient = step_of_parts(parts, step)
        torch.testing.assert_close(own_loss, loss, **CLOSE)
        torch.testing.assert_close(own_gradient, gradient, **CLOSE)
        for name, parameter in parts.named_parameters():
            torch.testing.assert_close(parameter.grad, in_whole(whole, parts, name).grad, **CLOSE)
        for optimizer in optimizers:
            optimizer.step()
    for name, parameter in parts.named_parameters():
        torch.testing.assert_close(parameter, in_whole(whole, parts, name), **CLOSE)


def test_every_degree_is_equal_to_one_process():
    for degree in (1, 2, 4, 8):
        check_training(degree, 2, "none")


def test_every_way_of_balancing_is_equal_to_one_process():
    for balancing in ("sinkhorn", "aux_loss", "balanced"):
        check_training(4, 2, balancing, moe_aux_loss_coeff=0.1)


def test_one_expert_a_token_and_all():
    check_training(8, 1, "aux_loss")
    check_training(2, EXPERTS, "none")


def test_all_tokens_to_one_expert():
    """Seven ranks' experts get nothing, and have gradients of zero all the same."""
    smp.state.reset()
    smp.init({"expert_parallel_degree": 8, "hybrid_shard_degree": 1})
    layer = make_layer(1, "none")
    with torch.no_grad():
        layer.router.gate.weight.zero_()  # of equals, topk takes the same one everywhere
    tokens, _ = inputs_of(3)
    made = layer(tokens)
    made.sum().backward()
    gradients = [p.grad.abs().sum().item() for p in layer.experts.parameters()]
    busy = torch.tensor([float(any(gradients))])
    dist.all_reduce(busy)
    assert busy.item() == 1
    assert made.shape == tokens.shape and tokens.grad.abs().sum() > 0


def test_two_by_two_by_two():
    """Beside sharding and tensor parallelism: ranks that differ in tp have the same tokens and experts."""
    smp.state.reset()
    whole = make_layer(2, "none")
    smp.init({"expert_parallel_degree": 2, "hybrid_shard_degree": 2, "tensor_parallel_degree": 2})
    state = smp.state
    layer = make_layer(2, "none")
    assert (len(layer.experts), layer.first_expert) == (4, 4 * state.ep_rank)
    tokens, _ = inputs_of(state.dp_rank)
    other = tokens.detach().clone().requires_grad_()
    layer(tokens).square().sum().backward()
    for rank in range(state.dp_size):
        mine = other if rank == state.dp_rank else inputs_of(rank)[0]
        whole(mine).square().sum().backward()
    torch.testing.assert_close(tokens.grad, other.grad, **CLOSE)
    for name, parameter in layer.named_parameters():
        group = state.shard_process_group if name.startswith("experts") else state.dp_process_group
        take_mean(parameter.grad, group)
        wanted = in_whole(whole, layer, name).grad / state.dp_size
        torch.testing.assert_close(parameter.grad, wanted, **CLOSE)


def test_tokens_come_back_where_they_were():
    smp.state.reset()
    smp.init({"expert_parallel_degree": 4, "hybrid_shard_degree": 2})
    rank = dist.get_rank()
    for counts in (COUNTS, [0] * 8, [0] * 7 + [1]):
        count = counts[rank]
        way = _token_exchange.Exchange(EXPERTS, smp.state.ep_process_group)
        tokens = torch.arange(count * 2).reshape(count, 2) + 1000 * rank
        generator = torch.Generator().manual_seed(rank)
        experts = torch.randint(EXPERTS, (count, 3), generator=generator)
        rows, numbers = way.dispatch(tokens, experts)
        assert len(numbers) == EXPERTS // 4 and sum(numbers) == len(rows)
        first = smp.state.ep_rank * len(numbers)
        marks = torch.repeat_interleave(torch.arange(first, first + len(numbers)), torch.tensor(numbers))
        back = way.combine(torch.cat([rows, marks[:, None]], 1))
        assert torch.equal(back[..., :2], tokens[:, None].expand(count, 3, 2))
        assert torch.equal(back[..., 2], experts)


def test_an_exchange_by_itself():
    """Rows that ranks send each other, and their gradients, with ranks that send or get none."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = [(rank + other) % 3 for other in range(size)]  # the same both ways
    rows = torch.full((sum(sent), 2), float(rank), requires_grad=True)
    got = _token_exchange.exchange(rows, sent, sent, None)
    wanted = torch.repeat_interleave(torch.arange(size), torch.tensor(sent)).float()
    assert torch.equal(got, wanted[:, None].expand(-1, 2))
    (got * (rank + 1)).sum().backward()
    assert torch.equal(rows.grad, (wanted + 1)[:, None].expand(-1, 2))
    single = torch.ones(3, 2, requires_grad=True)
    empty = _token_exchange.exchange(single[:0], [0] * size, [0] * size, None)
    empty.sum().backward()
    assert torch.equal(single.grad, torch.zeros(3, 2))


def test_what_is_refused():
    smp.state.reset()
    smp.init({"expert_parallel_degree": 4, "tensor_parallel_degree": 2})
    error = ranks.raises(errors.InvalidError, lambda: MoELayer(WIDTH, make_expert, 6))
    assert "degree 4 does not divide 6 experts" in str(error), error
    wrong = smp.state.tp_process_group
    error = ranks.raises(errors.InvalidError, lambda: MoELayer(WIDTH, make_expert, 8, group=wrong))
    assert "which differ in tp" in str(error) and "in ep only" in str(error), error
    MoELayer(WIDTH, make_expert, 8, group=smp.state.ep_process_group)


def test_a_copy_is_in_the_same_place():
    """Code that averages weights makes such copies."""
    smp.state.reset()
    smp.init({"expert_parallel_degree": 4, "hybrid_shard_degree": 1})
    layer = make_layer(2, "none")
    tokens, _ = inputs_of(dist.get_rank())
    torch.testing.assert_close(copy.deepcopy(layer)(tokens), layer(tokens))
    place = moe_layer.place_of(layer.experts)
    assert place.group is smp.state.ep_process_group and moe_layer.place_of(layer.router) is None
    assert all(moe_layer.place_of(module) is place for module in layer.experts.modules())


class Mixtral(torch.nn.Module):
    """Mixtral as Hugging Face's transformers build it."""

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = torch.nn.ModuleList(make_expert() for _ in range(EXPERTS))
        self.top_k = 2

    def forward(self, hidden):
        tokens = hidden.reshape(-1, WIDTH)
        logits = self.gate(tokens)
        weights, experts = logits.softmax(-1).topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        made = torch.stack([expert(tokens) for expert in self.experts], 1)
        chosen = made.gather(1, experts[..., None].expand(-1, -1, WIDTH))
        return (chosen * weights[..., None]).sum(1).reshape(hidden.shape), logits


class Block(torch.nn.Module):
    """With a plan of its own for tensor parallelism, by the names that it has."""

    _tp_plan = {
        "mixture.gate": "colwise_rep",
        "mixture.experts.*.0": "colwise",
        "mixture.experts.*.2": "rowwise",
    }

    def __init__(self):
        super().__init__()
        self.mixture = Mixtral()

    def forward(self, hidden):
        made, logits = self.mixture(hidden)
        return hidden + made, logits


def check_transformed(degrees):
    """tsm.transform with a MoEConfig: the mixture that the model has, over 4 ranks."""
    smp.state.reset()
    smp.init(degrees)
    torch.manual_seed(3)
    whole = Block().double()
    parts = smp.transform(copy.deepcopy(whole), config=MoEConfig(moe_load_balancing="none", moe_z_loss_coeff=0))
    mine, _ = inputs_of(smp.state.dp_rank)
    other = mine.detach().clone().requires_grad_()
    for got, wanted in zip(parts(mine[None]), whole(other[None])):
        torch.testing.assert_close(got, wanted, **CLOSE)
    parts(mine[None])[0].square().sum().backward()
    whole(other[None])[0].square().sum().backward()
    torch.testing.assert_close(mine.grad, other.grad, **CLOSE)
    return parts.mixture, whole.mixture


def test_a_transformed_model():
    parts, whole = check_transformed({"expert_parallel_degree": 4, "hybrid_shard_degree": 1})
    torch.testing.assert_close(parts.router.gate.weight.grad, whole.gate.weight.grad, **CLOSE)
    assert len(parts.experts) == 2 and parts.experts[0][0].weight.shape == (10, WIDTH)
    error = ranks.raises(
        errors.UnsupportedError, lambda: smp.transform(torch.nn.Linear(2, 2), config=MoEConfig())
    )
    assert "nothing in a Linear is a known mixture" in str(error), error


def test_a_transformed_model_in_parts():
    """Its plan is for the names before, and divides the gate and the experts that a rank keeps."""
    parts, whole = check_transformed({"expert_parallel_degree": 4, "tensor_parallel_degree": 2})
    assert parts.router.gate.weight.shape == (EXPERTS // 2, WIDTH)
    assert parts.experts[1][0].weight.shape == (5, WIDTH) and parts.experts[1][2].weight.shape == (WIDTH, 5)
    wanted = whole.gate.weight.grad.chunk(2)[smp.state.tp_rank]
    torch.testing.assert_close(parts.router.gate.weight.grad, wanted, **CLOSE)


def test_a_plan_that_comes_with_a_model_where_nothing_is_divided():
    """It may have styles that are not known here, and names that the model has no more."""
    smp.state.reset()
    smp.init({"expert_parallel_degree": 2})
    model = Block()
    model._tp_plan = {**Block._tp_plan, "mixture": "ep_router", "lm_head": "colwise_rep"}
    model = smp.transform(model, config=MoEConfig())
    assert len(model.mixture.experts) == EXPERTS // 2
    plan = {"tensor_parallel_plan": {"other": "colwise"}}
    error = ranks.raises(errors.InvalidError, lambda: smp.transform(Block(), config=plan))
    assert "names other, which the model does not have" in str(error), error


def test_activations_that_are_made_again():
    """The backward pass makes the exchange of the forward pass once more, in the same order on all ranks."""
    smp.state.reset()
    smp.init({"expert_parallel_degree": 4, "hybrid_shard_degree": 1})
    gradients = []
    for forward in (
        lambda layer, tokens: layer(tokens),
        lambda layer, tokens: checkpoint(layer, tokens, use_reentrant=True),
        lambda layer, tokens: checkpoint(layer, tokens, use_reentrant=False),
    ):
        layer = make_layer(2, "aux_loss", moe_aux_loss_coeff=0.1)
        tokens, _ = inputs_of(dist.get_rank())
        forward(layer, tokens).square().sum().backward()
        gradients.append([tokens.grad, *(parameter.grad for parameter in layer.parameters())])
    for other in gradients[1:]:
        assert all(map(torch.equal, gradients[0], other))


def test_half_precision():
    """The router works in f32, tokens travel as they are."""
    smp.state.reset()
    whole = make_layer(2, "none").bfloat16()
    smp.init({"expert_parallel_degree": 8, "hybrid_shard_degree": 1})
    layer = make_layer(2, "none").bfloat16()
    tokens = inputs_of(dist.get_rank())[0].detach().bfloat16().requires_grad_()
    made = layer(tokens)
    made.sum().backward()
    assert made.dtype == tokens.grad.dtype == torch.bfloat16
    torch.testing.assert_close(made, whole(tokens))
    with torch.no_grad():
        assert torch.equal(layer.eval()(tokens), made)


def test_random_states_of_a_rank():
    smp.state.reset()
    smp.init({"expert_parallel_degree": 2, "tensor_parallel_degree": 2, "random_seed": 3})
    tracker = smp.state.get_rng_state_tracker()
    drawn = torch.zeros(8, 2)
    for i, name in enumerate((_random.MODEL_PARALLEL, _random.EXPERT_PARALLEL)):
        with tracker.fork(name):
            drawn[dist.get_rank(), i] = torch.rand(1)
    dist.all_reduce(drawn)
    model, expert = drawn[:, 0].tolist(), drawn[:, 1].tolist()
    ranker = smp.state.ranker
    for rank in range(8):
        tp, ep = ranker.get_tp_rank(rank), ranker.get_ep_rank(rank)
        assert model[rank] == model[tp]
        assert expert[rank] == expert[next(r for r in range(8) if ranker.coordinates(r)["ep"] == ep and r % 2 == tp)]
    assert len(set(model)) == 2 and len(set(expert)) == 4


if __name__ == "__main__":
    ranks.start("shoal")
    ranks.run("__main__")
