"""torch.distributed.checkpoint, which torch has from 2.0 on."""

import torch

try:
    from torch.distributed import checkpoint
except ImportError:
    raise ImportError(
        "torch.sagemaker.distributed.checkpoint rests on torch.distributed.checkpoint, which torch has from 2.0 on; "
        f"this is torch {torch.__version__}"
    ) from None

__all__ = ["checkpoint"]
