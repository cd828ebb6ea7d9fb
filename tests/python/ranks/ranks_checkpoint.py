"""Inside a rank: the example of checkpoints, three times. A run that is killed when all ranks have written step 10,
before `latest` names it (in a fork of this process); one that goes on from there; one that nobody disturbs."""

import itertools
import os
import pathlib
import runpy
import signal
import sys
import traceback

import torch.distributed as dist

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

sys.path.insert(0, str(suite.EXAMPLES))
FOLDER = pathlib.Path(os.environ["TEST_FOLDER"])
_init, _replace = dist.init_process_group, os.replace
_stores = itertools.count()


def init_process_group(backend):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = f"file://{os.environ['TEST_STORE']}-{next(_stores)}"
    _init(backend, init_method=store, rank=rank, world_size=size)


def replace_or_die(source, target):
    if pathlib.Path(source).read_text() == "step-10":
        os.kill(os.getpid(), signal.SIGKILL)
    _replace(source, target)


def run(name):
    sys.argv = [str(suite.EXAMPLES / "transformer_checkpoint.py")]
    sys.argv += ["--steps", "12", "--folder", str(FOLDER / name)]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()


def run_to_death():
    os.replace = replace_or_die
    try:
        run("killed")
    except RuntimeError:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    dist.init_process_group = init_process_group
    child = os.fork()
    if child == 0:
        run_to_death()
    next(_stores)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if os.environ["RANK"] == "0":
        left = sorted(path.name for path in (FOLDER / "killed").iterdir())
        print("KILLED", code, (FOLDER / "killed" / "latest").read_text(), *left, flush=True)
    run("killed")
    if os.environ["RANK"] == "0":
        print("KEPT", *sorted(str(path.relative_to(FOLDER / "killed")) for path in FOLDER.glob("killed/**/*")))
    run("fresh")
