"""torch.sagemaker, the interface of Amazon's model parallelism library v2, over shoal's process group.

README.md in this folder says what is here; doc/smddp-model-parallel.md what is done and what is not."""

import os

import torch.distributed as dist

import shoal.torch  # noqa: F401 - registers the backend
from shoal import errors
from shoal.smddp import _settings
from shoal.smddp.smp import _configuration
from shoal.smddp.smp._state import state

__all__ = ["init", "is_initialized", "state"]


def init(config=None):
    """Configure model parallelism and make its process groups; every rank calls it.

    config: a dict of keys, the path of a JSON file with them, or None. What SageMaker sets in the environment
    (hyperparameter mp_parameters) goes before it. Without a default process group, one of backend "shoal" is
    made first. Raises InvalidError, UnsupportedError, MismatchError (ranks differ), StateError (a second call
    with something else), OSError (no such file)."""
    configuration = _configuration.read(config, os.environ, state.overrides)
    if state.is_initialized:
        _check_same(configuration)
        return
    if not dist.is_initialized():
        _settings.apply()
        dist.init_process_group("shoal")
    state.start(configuration)


def is_initialized():
    """Whether init() has been called."""
    return state.is_initialized


def _check_same(configuration):
    for key in _configuration.KEYS:
        old, new = (getattr(c, key.name) for c in (state.configuration, configuration))
        if old != new:
            raise errors.StateError(
                f"torch.sagemaker.init() was called with {key.name} {old}, and now with {new}; "
                "torch.sagemaker.state.reset() goes before another configuration"
            )
