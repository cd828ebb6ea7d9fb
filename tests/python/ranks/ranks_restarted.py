"""One rank under torchrun, which starts all again when one has died: of a job that has the same name each time, on a
daemon that stays. Somebody dies in the very second in which the job begins: as soon as the rank is in it, while its
ranks gather, or the first rank; the fourth time nobody does, and the job trains."""

import json
import os
import signal
import subprocess
import sys
import threading

import shoal.torch
import torch
import torch.distributed as dist

JOB = "same"


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_when_it_begins(shoalctl):
    """When the daemon knows of a job of this name that has not failed."""
    while True:
        done = subprocess.run([shoalctl, "jobs", "--json"], stdout=subprocess.PIPE, check=True)
        begun = ("gathering", "opening", "running")
        if any(job["name"] == JOB and job["state"] in begun for job in json.loads(done.stdout)):
            die()


def main():
    time, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    if time == 1 and rank == 1:
        threading.Thread(target=die_when_it_begins, args=sys.argv[1:2], daemon=True).start()
    dist.init_process_group("shoal", pg_options=shoal.torch.Options(job=JOB))
    if (time, rank) in ((0, 1), (2, 0)):
        die()
    for step in range(20):
        tensor = torch.full((100_000,), float(rank + step))
        dist.all_reduce(tensor)
        size = dist.get_world_size()
        assert torch.all(tensor == size * (size - 1) / 2 + size * step)
    if time == 1 and rank == 1:
        threading.Event().wait()  # until the other thread has seen the job
    # At once: ranks have one pipe together.
    os.write(1, f"TRAINED {rank} of {size} after {time}\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
