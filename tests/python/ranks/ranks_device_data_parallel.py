"""Data-parallel training with gradients on a device that is a stand-in, as in memory."""

import fake_cuda
import ranks
from ranks_data_parallel import *  # noqa: F403

# Nothing is in the arena, and steps that streams wait for have no times.
del test_gradients_lie_in_the_arena  # noqa: F821

if __name__ == "__main__":
    fake_cuda.install()
    ranks.start("shoal")
    ranks.run("__main__")
