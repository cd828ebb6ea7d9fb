"""python -m shoal [--no-test]: says where the parts of this installation are, and tries them."""

import importlib.util
import os
import platform
import subprocess
import sys

import shoal
from shoal import library, programs

LIMIT_S = 200  # a busy machine takes most of a minute to load torch
USAGE = "usage: python -m shoal [--no-test]"
# A rank of the test of the backend: the sum of 1, 2, ... over all ranks.
RANK = """
import torch, torch.distributed as dist, shoal.torch
dist.init_process_group("shoal")
rank, size = dist.get_rank(), dist.get_world_size()
value = torch.full((1000,), rank + 1.0)
dist.all_reduce(value)
dist.destroy_process_group()
raise SystemExit(0 if bool((value == size * (size + 1) / 2).all()) else 1)
"""


def _describe():
    print(f"shoal      {shoal.__version__}, {os.path.dirname(shoal.__file__)}")
    try:
        found = library.load()
        print(f"libshoal   {found.c.shoal_version().decode()}, {found.path}")
    except ImportError as problem:
        print(f"libshoal   {problem}")
    for name in programs.NAMES:
        print(f"{name:<10} {programs.find(name) or 'not there'}")
    print(f"Python     {platform.python_version()}, {sys.executable}")
    print(f"libc       {' '.join(platform.libc_ver())}")
    torch = importlib.util.find_spec("torch")
    print(f"torch      {torch.origin and os.path.dirname(torch.origin)}" if torch else "torch      not there")
    if torch:
        print(f"backend    {_backend()}")
    return torch is not None


def _backend():
    try:
        from shoal.torch import _native

        module, what = _native.load()
    except (ImportError, ValueError) as problem:
        return f"none: {problem}"
    if module:
        return f"native, {what}"
    return f"in Python: {what}; it is slower, and torch's dispatcher does not see it; `make native` builds the other"


def _try(what, command):
    try:
        finished = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
        good, said = finished.returncode == 0, finished.stdout
    except (OSError, subprocess.TimeoutExpired) as problem:
        good, said = False, str(problem)
    print(f"{'PASS' if good else 'FAIL'}  {what}")
    if not good:
        print(said)
    return good


def main():
    arguments = sys.argv[1:]
    if arguments not in ([], ["--no-test"]):
        sys.exit(f"{USAGE}\nunknown: {' '.join(arguments)}" if arguments != ["--help"] else USAGE)
    torch = _describe()
    if arguments:
        return
    run, perf = programs.find("shoalrun"), programs.find("shoalperf")
    if not run or not perf:
        sys.exit("FAIL  shoalrun and shoalperf are needed for the test")
    nodes = [run, "--timeout", "180", "--nodes", "2", "-n", "1", "--"]
    good = _try("two nodes of this machine all-reduce", [*nodes, perf, "all_reduce", "-b", "1M", "-n", "3"])
    if torch:
        good = _try("two ranks of PyTorch all-reduce", [*nodes, sys.executable, "-c", RANK]) and good
    else:
        print("SKIP  two ranks of PyTorch all-reduce: torch is not there")
    sys.exit(0 if good else 1)


main()
