"""A rank of scripts/chaos.py: training whose gradients are known, whatever is killed beside it.

    ranks_chaos.py RANKS LARGEST SEED FILE

A model of parameters from 4 KiB to LARGEST bytes, in torch's DistributedDataParallel or, with an odd SEED, in shoal's.
It says and does what tests/e2e/chaos_rank.c says and does, with a step of training for each collective there."""

import datetime
import os
import sys
import time

import shoal.torch
import torch
import torch.distributed as dist

SMALLEST = 4096
TIMEOUT = datetime.timedelta(seconds=60)
STRAGGLERS = datetime.timedelta(seconds=2)
LOOK_S = 0.5
NONE, LOOK, END = 0, 1, 2


def now_ms():
    return int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1000)


def say(*words, at_ms=None):
    print(now_ms() if at_ms is None else at_ms, *words, flush=True)


class Wrong(Exception):
    pass


class Model(torch.nn.Module):
    """Its gradient is its input."""

    def __init__(self, largest):
        super().__init__()
        sizes = [1]  # rank 0's sign
        while SMALLEST * 8 ** (len(sizes) - 1) <= largest:
            sizes.append(SMALLEST * 8 ** (len(sizes) - 1) // 4 + len(sizes))
        self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size)) for size in sizes])

    def forward(self, inputs):
        return sum((part * given).sum() for part, given in zip(self.parts, inputs))


class Training:
    def __init__(self, wanted, largest, seed, stop):
        self.wanted, self.seed, self.stop = wanted, seed, stop
        self.model, self.step, self.looked_s = Model(largest), 0, 0.0
        self.wrapper = None

    def share(self):
        """The ranks begin where rank 0 is."""
        state = [self.step]
        dist.broadcast_object_list(state)
        self.step, self.looked_s = state[0], time.monotonic()
        kind = shoal.torch.DistributedDataParallel if self.seed % 2 else torch.nn.parallel.DistributedDataParallel
        self.wrapper = kind(self.model)
        say("generation", shoal.torch.generation(), dist.get_rank(), dist.get_world_size())

    def sign(self):
        if dist.get_rank() != 0:
            return NONE
        if os.path.exists(self.stop):
            return END
        return LOOK if dist.get_world_size() < self.wanted and time.monotonic() > self.looked_s + LOOK_S else NONE

    def base(self, part):
        """Small whole numbers, so that sums are exact in any order."""
        return (torch.arange(part.numel()) * 7 + self.step * 13) % 31

    def train(self):
        """One step; the average that the wrapper makes is the sum of what the ranks give here, over their number."""
        rank, size = dist.get_rank(), dist.get_world_size()
        rest = self.model.parts[1:]
        inputs = [torch.tensor([float(size * self.sign())])]
        inputs += [(size * (self.base(part) + rank + 1)).float() for part in rest]
        self.model.zero_grad()
        self.wrapper(inputs).backward()
        there_ms = now_ms()
        for part in rest:
            right = (size * self.base(part) + size * (size + 1) // 2).float()
            if not torch.equal(part.grad, right):
                at = int((part.grad != right).nonzero()[0])
                found = f"element {at} of {part.numel()} is {part.grad[at]:g}, not {right[at]:g}"
                raise Wrong(f"step {self.step}: {found}")
        say("step", self.step, 4 * sum(part.numel() for part in self.model.parts), at_ms=there_ms)
        self.step += 1
        return int(self.model.parts[0].grad.item())

    def run(self):
        self.share()
        sign = NONE
        while sign != END:
            sign = self.train()
            if sign == LOOK:
                shoal.torch.reconfigure(stragglers=STRAGGLERS)
                self.share()


def go_on(training):
    over = False
    while not over:
        try:
            training.run()
            over = True
        except RuntimeError as error:
            if not shoal.torch.is_recoverable(error):
                raise
            say("lost", *str(error).splitlines()[:1])
        # Not in the handler, whose error holds what the lost generation had.
        if not over:
            shoal.torch.reconfigure(stragglers=STRAGGLERS)


def main():
    wanted, largest, seed, stop = (*map(int, sys.argv[1:4]), sys.argv[4])
    torch.set_num_threads(1)
    job = os.environ["SHOAL_JOB"]
    if "CHAOS_NEWCOMER" in os.environ:
        shoal.torch.join(job, TIMEOUT)
    else:
        dist.init_process_group("shoal", timeout=TIMEOUT, pg_options=shoal.torch.Options(job=job))
    go_on(Training(wanted, largest, seed, stop))
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except Wrong as wrong:
        say("wrong", wrong)
        sys.exit(1)
    except Exception as problem:
        say("failed", type(problem).__name__, str(problem).splitlines()[:1])
        raise
