"""Inside a rank: several examples one after another, in one interpreter.

The argument is [[script, argument, ...], ...] as JSON. Rank 0 prints "EXAMPLE [script, ...]" before what
each prints. An example that fails ends the rank: the others would wait for it.
"""

import gc
import json
import os
import pathlib
import runpy
import sys
import traceback

import torch.distributed as dist
from torch.distributed import distributed_c10d

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

from shoal.smddp import install  # noqa: E402

sys.path.insert(0, str(suite.EXAMPLES))
_kept = []


def keep_groups_of_gloo():
    """Keep gloo's groups from ending, which can wait for ever: it joins threads that may wait for the lock of Python
    that it holds. The tests want what gloo trains, not how it ends."""
    destroy = dist.destroy_process_group

    def destroy_process_group(group=None):
        if dist.get_backend() == "gloo":
            _kept.extend(distributed_c10d._world.pg_map)
        destroy(group)

    dist.destroy_process_group = destroy_process_group


def run(script, *arguments):
    if os.environ["RANK"] == "0":
        print("EXAMPLE " + json.dumps([script, *arguments]), flush=True)
    sys.argv = [str(suite.EXAMPLES / script), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")
    gc.collect()  # models, and with them what they hold of groups


if __name__ == "__main__":
    install()  # as python3 -m shoal.smddp does
    keep_groups_of_gloo()
    code = 1
    try:
        for command in json.loads(sys.argv[1]):
            run(*command)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # not through the end of gloo's groups
