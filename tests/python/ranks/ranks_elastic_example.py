"""The elastic example under shoalrun, for a daemon: forks of this process are three ranks, of which one is killed,
and a newcomer, who is there before the others may go far. Prints what they said, and their exit codes."""

import os
import pathlib
import runpy
import signal
import sys
import tempfile
import threading

import torch.distributed as dist

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

import shoal.torch  # noqa: E402

sys.path.insert(0, str(suite.EXAMPLES))
EXAMPLE = suite.EXAMPLES / "elastic_ddp.py"
STEPS, KILLED_AT, WAITS_AT = 200, "step 20 of 3 ranks", "step 40 of 2 ranks"
_init = dist.init_process_group


def run(folder, rank):
    """In a fork; rank -1 is a newcomer."""
    import common

    def init_process_group(backend, **more):
        if "store" not in more:  # the first generation's
            more.update(init_method=f"file://{folder}/store", rank=rank, world_size=3)
        _init(backend, **more)

    def say(text):
        print(text, flush=True)
        while text.startswith(WAITS_AT) and not (folder / "newcomer").exists():
            threading.Event().wait(0.02)

    def join(job):
        (folder / "newcomer").touch()
        real_join(job)

    real_join, shoal.torch.join = shoal.torch.join, join
    dist.init_process_group, common.say = init_process_group, say
    sys.argv = [str(EXAMPLE), "--steps", str(STEPS), *(["--join"] if rank < 0 else [])]
    runpy.run_path(sys.argv[0], run_name="__main__")


def start(folder, rank):
    """(process, the lines that it says)"""
    lines, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(its, 1)
        os.dup2(its, 2)
        code = 1
        try:
            run(folder, rank)
            code = 0
        finally:
            sys.stdout.flush()
            if code:
                sys.excepthook(*sys.exc_info())
            os._exit(code)
    os.close(its)
    return pid, open(lines, encoding="utf-8")


def until(lines, beginning):
    for line in lines:
        print(line, end="", flush=True)
        if line.startswith(beginning):
            return
    raise SystemExit(f"ended before '{beginning}'")


def main():
    with tempfile.TemporaryDirectory(prefix="shoal-elastic-") as name:
        folder = pathlib.Path(name)
        processes = [start(folder, rank) for rank in range(3)]
        until(processes[0][1], KILLED_AT)
        os.kill(processes[1][0], signal.SIGKILL)
        until(processes[0][1], WAITS_AT)
        processes.append(start(folder, -1))
        for _, lines in processes:
            print(lines.read(), end="")
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid, _ in processes]
    print("CODES", *codes, flush=True)


if __name__ == "__main__":
    main()
