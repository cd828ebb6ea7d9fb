"""Steps of which each is a sum over all processes. With TEST_END="1 killed" rank 1 kills itself in step 7, with
"1 raises" it has an exception of its own; the others write nothing for that, as a user's program."""

import os
import signal

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import job

END = os.environ.get("TEST_END")
job.begin()
on = job.mesh(-1, names=("x",))  # of one device for each process, or more
total = jax.jit(jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=on, in_specs=P("x"), out_specs=P()))
array = job.put(np.arange(job.SIZE * 1000.0), on, "x")
for step in range(20):
    if step == 7 and END == f"{job.RANK} killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 7 and END == f"{job.RANK} raises":
        raise ValueError("an error of its own")
    result = job.mine(total(array))
    if step % 5 == 0:
        print(f"STEP {step} {result.sum()}\n", end="", flush=True)
print("ENDED\n", end="", flush=True)
