"""SHOAL_AS=gloo: a group for which a program asks Gloo is shoal's, and torch goes on calling it "gloo".

Programs that know no other backend compare names, so the names that torch keeps of a group are those that it
would keep on Gloo.
"""

import functools
import inspect
import sys

from shoal import errors

HELPER = "_new_process_group_helper"


def instead_of(asked, accelerator):
    """The backend to make where `asked` was asked for, None: that one. accelerator: the type of device that torch
    has found, "cpu" without any."""
    asked = str(asked).lower()
    if asked == "gloo" or (asked == "undefined" and accelerator == "cpu"):
        return "shoal"
    if ":" not in asked:
        return None
    pairs = [pair.strip().split(":") for pair in asked.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        return None  # torch says what is wrong with it
    if all(backend == "gloo" for _, backend in pairs):
        return "shoal"
    turned = [(device, "shoal" if (device, backend) == ("cpu", "gloo") else backend) for device, backend in pairs]
    return ",".join(f"{device}:{backend}" for device, backend in turned) if ("cpu", "shoal") in turned else None


def install(c10d):
    """Into torch.distributed.distributed_c10d. UnsupportedError where this torch has not what it needs."""
    helper = getattr(c10d, HELPER, None)
    if hasattr(helper, "shoal"):
        return
    parameters = inspect.signature(helper).parameters if callable(helper) else {}
    kept = all(hasattr(getattr(c10d, "_world", None), name) for name in ("pg_map", "pg_backend_config"))
    if not {"backend", "group_rank", "global_ranks_in_group"} <= set(parameters) or not kept:
        raise errors.UnsupportedError(
            f"SHOAL_AS: this torch ({sys.modules['torch'].__version__}) makes its groups in another way than"
            f" {HELPER}, so that none would be shoal's: unset SHOAL_AS, and ask for the backend shoal by name"
        )
    setattr(c10d, HELPER, _wrap(c10d, helper))


def _wrap(c10d, helper):
    torch = sys.modules["torch"]
    signature = inspect.signature(helper)
    said = False

    def say_once(group_rank, is_default):
        nonlocal said
        rank = group_rank if is_default else c10d.get_rank()
        if not said and rank == 0:
            print("shoal: this job's gloo groups are shoal's (SHOAL_AS=gloo)", file=sys.stderr, flush=True)
        said = True

    @functools.wraps(helper)
    def make_group(*arguments, **named):
        bound = signature.bind(*arguments, **named)
        given = bound.arguments
        asked = given["backend"]
        instead = instead_of(asked, torch._C._get_accelerator().type)
        if instead is None:
            return helper(*arguments, **named)
        given["backend"] = c10d.Backend(instead)
        group, store = helper(*bound.args, **bound.kwargs)
        if group in c10d._world.pg_map:  # this rank is in it
            c10d._world.pg_map[group] = (asked, *c10d._world.pg_map[group][1:])
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(asked))
            say_once(given["group_rank"], not given["global_ranks_in_group"])
        return group, store

    make_group.shoal = True
    return make_group
