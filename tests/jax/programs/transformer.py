"""A small transformer that GSPMD shards in some ways for so many processes. Prints of each way the losses, and
which collectives XLA has made: LOSSES {"way": "data", "losses": [...], "collectives": [...]}."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np

import job

WORDS, WIDTH, HEADS, LAYERS, LENGTH, BATCH, STEPS = 32, 16, 4, 1, 8, 8, 5
# Way: the mesh's shape; axes of the batch, of what goes into a layer's middle, and of what comes out of it.
WAYS = {
    "data": ((job.SIZE,), ("x",), (), ()),
    "tensor": ((job.SIZE,), (), (None, "x"), ("x", None)),
    "sharded": ((job.SIZE,), ("x",), ("x", None), ("x", None)),
    "data and tensor": ((job.SIZE // 2, 2), ("x",), (None, "y"), ("y", None)),
}

# Each way once: XLA's compiler takes seconds.
SHOWN = {1: ["data"], 2: ["data", "tensor", "sharded"], 4: ["sharded", "data and tensor"]}


def parameters():
    random = np.random.default_rng(3)
    shapes = {"words": (WORDS, WIDTH), "places": (LENGTH, WIDTH), "answer": (WIDTH, WORDS)}
    for i in range(LAYERS):
        shapes |= {f"q{i}": (WIDTH, WIDTH), f"k{i}": (WIDTH, WIDTH), f"v{i}": (WIDTH, WIDTH), f"up{i}": (WIDTH, 64)}
        shapes |= {f"o{i}": (WIDTH, WIDTH), f"down{i}": (64, WIDTH)}
    return {name: random.normal(0, 0.2, shape) for name, shape in shapes.items()}


def normed(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(p, i, x):
    split = lambda a: a.reshape(*a.shape[:2], HEADS, -1)  # noqa: E731
    q, k, v = (split(normed(x) @ p[f"{name}{i}"]) for name in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape) @ p[f"o{i}"]


def loss_of(p, tokens):
    x = p["words"][tokens[:, :-1]] + p["places"]
    for i in range(LAYERS):
        x = x + attention(p, i, x)
        x = x + jax.nn.gelu(normed(x) @ p[f"up{i}"]) @ p[f"down{i}"]
    told = jax.nn.log_softmax(normed(x) @ p["answer"])
    return -jnp.take_along_axis(told, tokens[:, 1:, None], -1).mean()


def step(p, tokens):
    loss, slopes = jax.value_and_grad(loss_of)(p, tokens)
    return loss, jax.tree.map(lambda a, slope: a - 0.5 * slope, p, slopes)


def train(way):
    shape, batch, into, out = WAYS[way]
    on = job.mesh(*shape, names=("x", "y")[: len(shape)])
    axes = lambda name: out if re.match(r"(o|down)\d", name) else into  # noqa: E731
    p = {name: job.put(array, on, *axes(name)) for name, array in parameters().items()}
    tokens = np.random.default_rng(5).integers(0, WORDS, (BATCH, LENGTH + 1))
    tokens = job.put(tokens, on, *batch)
    kept = (None, {name: array.sharding for name, array in p.items()})
    run = jax.jit(step, out_shardings=kept).lower(p, tokens).compile()
    made = re.findall(r" (all-\w+|reduce-scatter|collective-permute)\(", run.as_text())
    losses = []
    for _ in range(STEPS):
        loss, p = run(p, tokens)
        losses.append(float(loss))
    return {"way": way, "losses": losses, "collectives": sorted(set(made))}


job.begin()
for one, how in WAYS.items():
    if one in SHOWN[job.SIZE]:
        print(f"LOSSES {json.dumps(train(one))}\n", end="", flush=True)
