"""torch.sagemaker.utils.process_group_utils."""

import torch.distributed as dist

__all__ = ["get_global_ranks"]


def get_global_ranks(process_group):
    """The ranks of a group as the default group numbers them, in the group's order."""
    return dist.get_process_group_ranks(process_group)
