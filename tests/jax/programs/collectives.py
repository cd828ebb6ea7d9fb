"""Each collective of shard_map in each type, compared with numpy. A line for each: CASE psum float32 well."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import job

ROWS = 12  # of each process; a multiple of 2 and 4
INTEGERS = [f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)]
REALS = ["float32", "float64"]
COMPLEX = ["complex64", "complex128"]
HALF = ["float16", "bfloat16"]
TYPES = ["bool", *INTEGERS, *REALS, *COMPLEX, *HALF]
# JAX has no sums of truth values.
NONE = {("psum", "bool"), ("psum_scatter", "bool")}


def values(dtype):
    """Return the whole array: small whole numbers, so that each sum and product is exact."""
    whole = np.random.default_rng(7).integers(0, 3, (job.SIZE * ROWS, 3))
    if dtype.startswith("complex"):
        return (whole + 1j * np.roll(whole, 1, axis=0)).astype(dtype)
    return whole.astype(jnp.dtype(dtype))


def factors(dtype):
    """Return values of which few are not 1, so that a product is exact."""
    whole = values(dtype) + jnp.dtype(dtype).type(1) if dtype != "bool" else ~values(dtype)
    whole[np.arange(len(whole)) % 6 > 0] = 1
    return whole


def parts(array):
    return array.reshape(job.SIZE, ROWS, 3)


def folded(array, function):
    return function.reduce(parts(array), axis=0, dtype=array.dtype)


def on_each(function, out):
    """Return a collective as each process calls it, of its rows."""

    def run(array, on):
        return jax.jit(jax.shard_map(function, mesh=on, in_specs=P("x"), out_specs=out, check_vma=False))(array)

    return run


AFTER = [(i, (i + 1) % job.SIZE) for i in range(job.SIZE)]
# Name: the collective, and this process's part of the result.
CASES = {
    "psum": (on_each(lambda a: jax.lax.psum(a, "x"), P()), lambda a: folded(a, np.add)),
    "pmax": (on_each(lambda a: jax.lax.pmax(a, "x"), P()), lambda a: folded(a, np.maximum)),
    "pmin": (on_each(lambda a: jax.lax.pmin(a, "x"), P()), lambda a: folded(a, np.minimum)),
    "all_gather": (on_each(lambda a: jax.lax.all_gather(a, "x", tiled=True), P()), lambda a: a),
    "psum_scatter": (
        on_each(lambda a: jax.lax.psum_scatter(a, "x", tiled=True), P("x")),
        lambda a: np.split(folded(a, np.add), job.SIZE)[job.RANK],
    ),
    "ppermute": (on_each(lambda a: jax.lax.ppermute(a, "x", AFTER), P("x")), lambda a: parts(a)[job.RANK - 1]),
    "all_to_all": (
        on_each(lambda a: jax.lax.all_to_all(a, "x", 0, 0, tiled=True), P("x")),
        lambda a: np.concatenate([np.split(part, job.SIZE)[job.RANK] for part in parts(a)]),
    ),
    # GSPMD makes an all-reduce of it.
    "prod": (lambda array, on: jax.jit(lambda a: jnp.prod(a, axis=0, dtype=a.dtype))(array),
             lambda a: np.multiply.reduce(a, axis=0, dtype=a.dtype)),
}


def outcome(name, dtype, on):
    collective, expected = CASES[name]
    whole = factors(dtype) if name == "prod" else values(dtype)
    try:
        result = job.mine(collective(job.put(whole, on, "x"), on))
    except Exception as error:
        return f"refused: {str(error).splitlines()[0]}"
    wanted = expected(whole)
    same = result.dtype == wanted.dtype and result.shape == wanted.shape and (result == wanted).all()
    return "well" if same else f"WRONG: {result.tolist()} for {wanted.tolist()}"


job.begin()
devices = job.mesh(job.SIZE, names=("x",))
for case in CASES:
    for of in [dtype for dtype in TYPES if (case, dtype) not in NONE]:
        print(f"CASE {case} {of} {outcome(case, of, devices)}\n", end="", flush=True)
