"""What of torch is changed here under private names: where a torch has none of them, that is said at once."""

import torch


def find(holder, *names):
    """The first of the names that torch's module or class has; they are one thing's, of different versions."""
    for name in names:
        if hasattr(holder, name):
            return name
    raise ImportError(
        f"torch {torch.__version__} has no {' or '.join(names)} in {holder.__name__}, and torch.sagemaker changes it"
    )
