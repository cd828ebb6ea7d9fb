"""A rank that trains on sums of flat gradients, with a checkpoint after each fifth step.

    ranks_replay.py FOLDER RANK [DEATH]     one of three; it kills itself in step DEATH
    ranks_replay.py FOLDER RANK back        the same, started again: it begins at its checkpoint
"""

import os
import pathlib
import signal
import sys

import shoal.torch
import torch
import torch.distributed as dist

RANKS, STEPS, COUNT, JOB = 3, 20, 20001, "replayed"


def take(state, gradient):
    state.update(before={key: state[key] for key in ("step", "number", "model")})
    state.update(step=state["step"] + 1, number=state["number"] + 1, model=state["model"] - 0.1 * gradient)


def step(state, rank, death):
    """Thirds, so that the order of a sum shows."""
    gradient = (torch.arange(COUNT) * 7 % 31 + 11 * rank + state["step"]) / 3 + state["model"] / (rank + 3)
    work = dist.all_reduce(gradient, async_op=True)
    if state["step"] == death:
        os.kill(os.getpid(), signal.SIGKILL)
    work.wait()
    take(state, gradient)


def meet(state):
    """When all are there: those who have a sum that others lack step back, who has missed some gets them."""
    steps = [None] * dist.get_world_size()
    dist.all_gather_object(steps, (state["step"], "before" in state))
    there = min(number for number, trained in steps if trained)
    if state["step"] > there:
        state.update(state["before"])
    missed = there - state["step"]
    for _ in range(missed):
        take(state, shoal.torch.replay(torch.empty(COUNT), state["number"]))
    print(f"generation {shoal.torch.generation()}: missed {missed}", flush=True)
    state["number"] = shoal.torch.position()


def main():
    folder, rank = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    back = sys.argv[3:] == ["back"]
    death = int(sys.argv[3]) if sys.argv[3:] and not back else -1
    state = {"step": 0, "number": 0, "model": torch.zeros(COUNT)}
    checkpoint = folder / f"checkpoint{rank}"
    if back:
        state = torch.load(checkpoint)
        shoal.torch.join(JOB)
        meet(state)
    else:
        store, options = f"file://{folder}/store", shoal.torch.Options(job=JOB)
        dist.init_process_group("shoal", init_method=store, rank=rank, world_size=RANKS, pg_options=options)
        state["number"] = shoal.torch.position()
    while state["step"] < STEPS:
        try:
            step(state, rank, death)
        except RuntimeError as error:
            if not shoal.torch.is_recoverable(error):
                raise
        else:
            if state["step"] % 5 == 0:
                torch.save({key: state[key] for key in ("step", "number", "model")}, checkpoint)
            continue
        print("lost", flush=True)
        shoal.torch.reconfigure(least_ranks=RANKS)
        meet(state)
    print("bits", state["model"].view(torch.int32).long().sum().item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
