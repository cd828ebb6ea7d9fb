"""torch.sagemaker.utils.utils."""

import contextlib
import time

from shoal.smddp.smp.logger import get_logger

__all__ = ["timeit"]


@contextlib.contextmanager
def timeit(enabled=True, title="", rank=0):
    """Logs how long the block took: on rank 0, if enabled."""
    begin = time.monotonic()
    yield
    if enabled and rank == 0:
        get_logger().info("%s: %.3f s", title, time.monotonic() - begin)
