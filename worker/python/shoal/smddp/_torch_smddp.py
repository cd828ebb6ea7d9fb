"""smdistributed.dataparallel.torch.torch_smddp: importing it gives torch.distributed the backend
`smddp`, which is the backend `shoal` by another name, and the environment what scripts look for."""

import shoal.torch  # noqa: F401
import torch.distributed as dist
from shoal import _autoload
from shoal.smddp import _settings

__all__ = []

_settings.apply()
_autoload.register_backend(dist.Backend, "smddp", ["cpu", "cuda"])
