"""Data-parallel training with gradients on a device that is a stand-in, as in memory."""

import fake_cuda
import ranks
from ranks_data_parallel import *  # noqa: F403

if __name__ == "__main__":
    fake_cuda.install()
    ranks.start("shoal")
    ranks.run("__main__")
