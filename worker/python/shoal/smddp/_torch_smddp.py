"""smdistributed.dataparallel.torch.torch_smddp: importing it gives torch.distributed the backend
`smddp`, which is the backend `shoal` by another name, and the environment what scripts look for."""

import shoal.torch  # noqa: F401
from shoal.smddp import _settings
from shoal.torch import _process_group, _versions

__all__ = []

_settings.apply()
_versions.register_backend("smddp", _process_group.create)
