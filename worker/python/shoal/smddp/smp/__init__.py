"""torch.sagemaker, the interface of Amazon's model parallelism library v2, over shoal's process group.

README.md in this folder says what is here; doc/smddp-model-parallel.md what is done and what is not."""

import functools
import os

import torch.distributed as dist

import shoal.torch  # noqa: F401 - registers the backend
from shoal import errors
from shoal.smddp import _settings
from shoal.smddp.smp import _configuration, _mixtures
from shoal.smddp.smp._state import state
from shoal.smddp.smp.checkpoint import _parts, full, optimizer
from shoal.smddp.smp.fsdp import _offloading, _own_groups, _sharding
from shoal.smddp.smp.moe_config import MoEConfig
from shoal.smddp.smp.tensor_parallel import _transform

__all__ = ["init", "is_initialized", "state", "transform"]

# Scripts import what these change from torch, after torch.sagemaker or before.
_sharding.install(state)
_own_groups.install(state)
_offloading.install(state)
full.install()
optimizer.install()
_parts.install()


def init(config=None):
    """Configure model parallelism and make its process groups; every rank calls it.

    config: a dict of keys, the path of a JSON file with them, or None. The keys that SageMaker sets in the environment
    (hyperparameter mp_parameters) go before it. Without a default process group, one of backend "shoal" is made first.
    Raises InvalidError, UnsupportedError, MismatchError (ranks differ), StateError (a second call with something else),
    OSError (no such file)."""
    if not dist.is_initialized():
        _settings.apply()  # which rank this is, too
    configuration = _configuration.read(config, os.environ, state.overrides)
    if state.is_initialized:
        _check_same(configuration)
        return
    if not dist.is_initialized():
        dist.init_process_group("shoal")
    state.start(configuration)


def is_initialized():
    """Whether init() has been called."""
    return state.is_initialized


def transform(
    model, device=None, dtype=None, config=None, load_state_dict_from_rank0=False, cp_comm_type="p2p"
):
    """Divide a model among the tensor parallel ranks, in place, before FSDP wraps it; returns it. With a
    tensor_parallel_degree of 1 nothing is divided.

    device, dtype: where the model goes, and as what; one that is on the meta device in part stays there.
    config: {"tensor_parallel_plan": {name pattern: style}}, which goes before the plan that the model has; styles are
    in tensor_parallel/_plan.py. Or a MoEConfig: mixtures of experts then become MoELayers, of which each rank keeps its
    experts. load_state_dict_from_rank0: the ranks of the first tensor parallel group get rank 0's weights and need have
    none; FSDP's sync_module_states=True then gives them to all others. Without it the weights are those that each
    group's first rank has. cp_comm_type means nothing without context parallelism. Raises StateError before init(), and
    what shoal.errors has where a model cannot be divided."""
    if not state.is_initialized:
        raise errors.StateError("torch.sagemaker.transform(): torch.sagemaker.init() has not been called")
    replace = None
    if isinstance(config, MoEConfig):
        replace = functools.partial(
            _mixtures.transform, config=config, load_state_dict_from_rank0=load_state_dict_from_rank0
        )
        config = None
    return _transform.transform(
        model, state, device, dtype, config, load_state_dict_from_rank0, cp_comm_type, replace
    )


def _check_same(configuration):
    for key in _configuration.KEYS:
        old, new = (getattr(c, key.name) for c in (state.configuration, configuration))
        if old != new:
            raise errors.StateError(
                f"torch.sagemaker.init() was called with {key.name} {old}, and now with {new}; "
                "torch.sagemaker.state.reset() goes before another configuration"
            )
