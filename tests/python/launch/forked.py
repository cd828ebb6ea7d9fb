"""forked.py SIZE FOLDER SCRIPT [ARGUMENT...]: ranks that are forks of one interpreter, so that torch is loaded once;
and what TEST_IMPORTS names, with commas between. The output of rank R goes to FOLDER/R; at the end their exit codes are
printed as a line of JSON. A rank ends as an interpreter would, but for the teardown of its modules."""

import atexit
import importlib
import json
import os
import runpy
import sys
import traceback

import shoal.torch  # noqa: F401
import torch.nn.parallel  # noqa: F401


def run(rank, size, folder, script, *arguments):
    descriptor = os.open(f"{folder}/{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    sys.argv = [script, *arguments]
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def main(size, *more):
    for name in filter(None, os.environ.get("TEST_IMPORTS", "").split(",")):
        importlib.import_module(name)
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            run(rank, size, *more)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
