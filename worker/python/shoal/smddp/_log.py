"""The log `shoal.smddp`: what a script's author must see, said once. Python shows warnings by default, and no lines
of level INFO."""

import functools
import logging
import os

import torch.distributed as dist

__all__ = ["warn", "warn_on_rank_0"]


@functools.lru_cache(maxsize=None)
def warn(text):
    """A line, whoever calls how often."""
    logging.getLogger("shoal.smddp").warning("%s", text)


def warn_on_rank_0(text):
    """A line of the job, where all ranks call it; before the process group, the launcher's variables say the rank."""
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else os.environ.get("RANK")
    if rank in (None, 0, "0"):
        warn(text)
