"""The programs share this: a job of one process for each rank, begun as a user begins it, and its mesh."""

import os

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def begin():
    jax.config.update("jax_enable_x64", True)
    if SIZE > 1:
        jax.distributed.initialize(f"127.0.0.1:{os.environ['TEST_PORT']}", SIZE, RANK)


def mesh(*shape, names):
    """Return a mesh of all devices, one of each process."""
    return Mesh(np.array(jax.devices()).reshape(shape), names)


def put(array, on, *axes):
    """Return an array that every process has, sharded by these axes of a mesh."""
    sharding = NamedSharding(on, PartitionSpec(*axes))
    return jax.make_array_from_callback(array.shape, sharding, lambda place: array[place])


def mine(array):
    """Return this process's part of an array."""
    return np.asarray(array.addressable_data(0))
