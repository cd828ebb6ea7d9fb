"""Inside a rank: running the cases of a module on all ranks together."""

import datetime
import importlib
import json
import os
import traceback
import unittest

import torch
import torch.distributed as dist

TIMEOUT = datetime.timedelta(seconds=100)
gloo = None  # a group of all ranks to compare with and to meet in
shoal_group = None  # the same ranks


def start(default, initialize=dist.init_process_group):
    """The default group is of this backend; beside it there is one of the other. initialize: what a
    script calls for torch's function."""
    global gloo, shoal_group
    import shoal.torch  # noqa: F401

    torch.set_num_threads(1)
    where = {}
    if "TEST_STORE" in os.environ:  # no launcher has said where to meet
        where = {"init_method": f"file://{os.environ['TEST_STORE']}"}
        where.update(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    initialize(default, timeout=TIMEOUT, **where)
    gloo = shoal_group = dist.GroupMember.WORLD
    if default == "gloo":
        shoal_group = dist.new_group(backend="shoal", timeout=TIMEOUT)
    else:
        gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)


def run(module_name):
    """Run test_* of the module in its order; rank 0 prints a RESULT line for each."""
    module = importlib.import_module(module_name)
    for name, case in list(vars(module).items()):
        if not name.startswith("test_"):
            continue
        try:
            case()
            text = ""
        except unittest.SkipTest as reason:
            text = f"SKIP {reason}"
        except Exception:
            text = f"rank {dist.get_rank()}: {traceback.format_exc()}"
            print(text, flush=True)  # now: the others may be stuck for want of this rank
        texts = [None] * dist.get_world_size()
        dist.all_gather_object(texts, text, group=gloo)
        if dist.get_rank() == 0:
            print("RESULT " + json.dumps([name, "\n".join(dict.fromkeys(filter(None, texts)))]), flush=True)


def member(group):
    """Return shoal's member of a process group."""
    from shoal.torch import _process_group

    return _process_group.member_of(group)


def raises(kind, call):
    """The exception of this kind that call() raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")
