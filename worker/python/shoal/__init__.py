"""shoal: gradient reduction by daemons on the CPUs. `import shoal.torch` is the PyTorch backend."""

from shoal.errors import (
    DisconnectedError,
    InvalidError,
    MismatchError,
    OutOfMemoryError,
    ProtocolError,
    RankLostError,
    RecoverableError,
    RefusedError,
    ShoalError,
    StateError,
    SystemCallError,
    TimeoutError,
    UnsupportedError,
)

__version__ = "0.1.0"

__all__ = [
    "DisconnectedError",
    "InvalidError",
    "MismatchError",
    "OutOfMemoryError",
    "ProtocolError",
    "RankLostError",
    "RecoverableError",
    "RefusedError",
    "ShoalError",
    "StateError",
    "SystemCallError",
    "TimeoutError",
    "UnsupportedError",
]
