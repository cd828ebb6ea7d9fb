"""Training for the tests of sharding and division: small models, batches that ranks share, and one process's losses to
compare with."""

import functools

import torch
import torch.distributed as dist
from shoal.smddp.smp.moe_config import MoEConfig
from shoal.smddp.smp.moe_layer import MoELayer
from torch.nn import functional

WIDTH, HEADS, CHARACTERS, LENGTH, ROWS = 16, 4, 24, 6, 16


class Text(torch.nn.Module):
    """Torch's own layers; the head shares the embedding's weight."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embedding = torch.nn.Embedding(CHARACTERS, WIDTH)
        self.position = torch.nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                WIDTH, HEADS, 2 * WIDTH, dropout=dropout, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.head = torch.nn.Linear(WIDTH, CHARACTERS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))

    def reset_parameters(self):
        """Set the parameters of this module itself, for those who make the parameters later."""
        torch.nn.init.normal_(self.position, std=0.02)

    def forward(self, text):
        hidden = self.embedding(text) + self.position
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask)
        return self.head(hidden)


class Mixed(torch.nn.Module):
    """A mixture of experts between layers that all have."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(CHARACTERS, WIDTH)
        make_expert = functools.partial(torch.nn.Linear, WIDTH, WIDTH)
        config = MoEConfig(moe_load_balancing="none", moe_z_loss_coeff=0.0)
        self.mixture = MoELayer(WIDTH, make_expert, 4, config=config)
        self.head = torch.nn.Linear(WIDTH, CHARACTERS)

    def forward(self, text):
        hidden = self.embedding(text)
        return self.head(hidden + self.mixture(hidden))


def make(kind=Text, seed=5, **arguments):
    torch.manual_seed(seed)
    return kind(**arguments)


def batches(steps, first=0):
    """Whole batches, the same on all ranks."""
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(100 + step)
        rows = torch.randint(CHARACTERS, (ROWS, LENGTH + 1), generator=generator)
        yield rows[:, :-1], rows[:, 1:]


def loss_of(model, inputs, targets):
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps, *, first=0, rank=0, size=1, group=None, clip=None):
    """Losses of the whole batch, of which this rank has its share; group: of those that have the others."""
    losses = []
    for inputs, targets in batches(steps, first):
        loss = loss_of(model, inputs.chunk(size)[rank], targets.chunk(size)[rank])
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            clip(model)
        optimizer.step()
        mean = loss.detach().clone()
        if size > 1:
            dist.all_reduce(mean, group=group)
        losses.append(mean.item() / size)
    return losses


def of_one_process(steps, kind=Text, clip=None, **arguments):
    model = make(kind, **arguments)
    return train(model, adam(model), steps, clip=clip)


def check_close(got, expected, allowed):
    """Relative."""
    assert len(got) == len(expected)
    for step, (mine, other) in enumerate(zip(got, expected)):
        assert abs(mine - other) <= allowed * abs(other), (step, got, expected)
