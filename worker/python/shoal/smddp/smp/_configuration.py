"""The configuration of SMP v2: its keys, what each may hold, and where it comes from.

Keys, ranges and defaults are those of the public reference of SMP v2 ("SMP v2 core feature configuration
parameters"). doc/smddp-model-parallel.md has the same table in words; a test compares them.
"""

import dataclasses
import difflib
import json
import numbers
import os
from collections.abc import Mapping
from typing import Optional

from shoal import errors
from shoal.smddp import _log

@dataclasses.dataclass(frozen=True)
class Key:
    """One key. `only` is the one value that is possible here, where something is not done; `idle` says why
    another value than the default changes nothing."""

    name: str
    kind: type  # int or bool
    default: object
    least: int = 0
    only: Optional[tuple] = None  # (value, what is not done)
    idle: str = ""


KEYS = (
    Key("hybrid_shard_degree", int, 0),
    Key("tensor_parallel_degree", int, 1, least=1),
    Key("expert_parallel_degree", int, 1, least=1),
    Key("context_parallel_degree", int, 1, least=1, only=(1, "context parallelism")),
    Key("sm_activation_offloading", bool, True),
    Key("activation_loading_horizon", int, 2, least=1),
    Key("random_seed", int, 12345),
    Key("fp8", bool, False, only=(False, "8-bit floating point (Transformer Engine)")),
    Key("fsdp_cache_flush_warnings", bool, True, idle="the memory manager of torch is not watched"),
    Key("allow_empty_shards", bool, False, idle="torch's own sharding allows empty shards"),
)
_BY_NAME = {key.name: key for key in KEYS}

# Keys of SMP v1 (smdistributed.modelparallel), which splits a model by layers: another interface.
VERSION_1_KEYS = frozenset(
    """active_microbatches auto_partition bf16 checkpoint_attentions contiguous ddp ddp_dist_backend ddp_port
    default_partition delayed_parameter_initialization deterministic_server fp16 fp16_params horovod
    memory_weight microbatches offload_activations optimize partitions pipeline pipeline_parallel_degree
    placement_strategy prescaled_batch sharded_data_parallel_degree shard_optimizer_state skip_tracing""".split()
)

# A seed has ranks and experts added to it, and torch takes 64 bits.
SEED_MOST = 2**62


# Checked values, frozen: one field for each key.
Configuration = dataclasses.make_dataclass(
    "Configuration", [(key.name, key.kind, key.default) for key in KEYS], frozen=True
)


def read(given, environment, overrides=None):
    """The Configuration out of what init() was given (None, a dict, or the path of a JSON file), what
    SageMaker sets in the environment, which goes before it, and what the script has set in
    torch.sagemaker.state, which goes before both. Raises what shoal.errors has, and OSError for a file."""
    values = {}
    for where, mapping in (
        _from_argument(given),
        *_from_environment(environment),
        ("torch.sagemaker.state", overrides or {}),
    ):
        for name, value in _check(where, mapping).items():
            if values.get(name, value) != value:
                _log.warn_on_rank_0(f"{where} sets {name} to {value}, in place of {values[name]}")
            values[name] = value
    return Configuration(**values)


def _from_argument(given):
    if given is None:
        return "torch.sagemaker.init()", {}
    if isinstance(given, Mapping):
        return "torch.sagemaker.init()", given
    if isinstance(given, (str, os.PathLike)):
        with open(given, encoding="utf-8") as file:
            return os.fspath(given), _parse(os.fspath(given), file.read())
    kind = type(given).__name__
    raise errors.InvalidError(
        f"torch.sagemaker.init(): the configuration is a {kind}, but a dict or the path of a JSON file is wanted"
    )


def _from_environment(environment):
    """Hyperparameter mp_parameters, as SageMaker's toolkit hands it over: twice."""
    found = []
    text = environment.get("SM_HP_MP_PARAMETERS")
    if text:
        found.append(("SM_HP_MP_PARAMETERS", _parse("SM_HP_MP_PARAMETERS", text)))
    text = environment.get("SM_HPS")
    if text:
        value = _parse("SM_HPS", text).get("mp_parameters")
        where = "SM_HPS, mp_parameters"
        if isinstance(value, str):  # a hyperparameter is JSON in JSON unless the toolkit has decoded it
            value = _parse(where, value)
        elif value is not None and not isinstance(value, Mapping):
            raise errors.InvalidError(f"{where}: {value!r} is not an object")
        if value is not None:
            found.append((where, value))
    if len(found) == 2 and found[0][1] != found[1][1]:
        (first, one), (second, other) = found
        name = min(name for name in {*one, *other} if one.get(name) != other.get(name))
        raise errors.InvalidError(
            f"{first} and {second} contradict each other: {name} is "
            f"{_in_words(one, name)} in the first and {_in_words(other, name)} in the second"
        )
    return found[:1]


def _in_words(mapping, name):
    return repr(mapping[name]) if name in mapping else "not there"


def _parse(where, text):
    """A JSON object; a key that is there twice is an error, for json would take the last one silently."""

    def unique(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise errors.InvalidError(f"{where}: {twice[0]} is there twice")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise errors.InvalidError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise errors.InvalidError(f"{where} is not a JSON object")
    return value


def _check(where, mapping):
    """Name: value of the keys that are set; None is "not set"."""
    checked = {}
    for name, value in mapping.items():
        key = _BY_NAME.get(name)
        if key is None:
            raise _unknown(where, name)
        if value is not None:
            checked[name] = _check_value(where, key, value)
    return checked


def _unknown(where, name):
    if name in VERSION_1_KEYS:
        return errors.UnsupportedError(
            f"{where}: {name} is a key of SMP v1; only the interface of v2 (torch.sagemaker) is here"
        )
    near = difflib.get_close_matches(str(name), _BY_NAME, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; the keys are {', '.join(_BY_NAME)}"
    return errors.InvalidError(f"{where}: there is no key {name!r}{hint}")


def _check_value(where, key, value):
    if key.kind is bool:
        if not isinstance(value, (bool, numbers.Integral)) or value not in (0, 1):
            raise errors.InvalidError(f"{where}: {key.name} is {value!r}, but true or false is wanted")
        value = bool(value)
    else:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise errors.InvalidError(f"{where}: {key.name} is {value!r}, but an integer is wanted")
        value = int(value)
        if value < key.least:
            raise errors.InvalidError(f"{where}: {key.name} is {value}, and {key.least} is the least")
        if key.name == "random_seed" and value > SEED_MOST:
            raise errors.InvalidError(f"{where}: {key.name} is {value}, and {SEED_MOST} is the most")
    if key.only and value != key.only[0]:
        raise errors.UnsupportedError(
            f"{where}: {key.name} is {value}, but {key.only[1]} is not done here: {key.only[0]} is the only value"
        )
    if key.idle and value:
        _log.warn_on_rank_0(f"{where}: {key.name} changes nothing here: {key.idle}")
    return value
