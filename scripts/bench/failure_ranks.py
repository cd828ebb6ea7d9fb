"""One replica of failures.py: steps of computing and an all-reduce of gradients, whoever is killed beside it.

    failure_ranks.py LIBRARY IDENTITY FOLDER STEP_MS FLOATS

LIBRARY is `shoal`, whose job goes on as its next generation, or `gloo`: an error, a new process group of
those that are left, the parameters of its first rank, the step once more. FOLDER/membership has a number
that grows and the identities of the replicas, the oldest first; FOLDER/end says that this is the end. It
says, one line each, with CLOCK_MONOTONIC in ms:

    MS ready                    torch is loaded; it can be taken in
    MS step STEP SIZE           a step's sum is there, and right
    MS lost TEXT                a call has failed
"""

import contextlib
import ctypes
import datetime
import json
import os
import pathlib
import sys
import threading
import time

import torch
import torch.distributed as dist

from shoal import errors, library

LIMIT_S = 20
GO_ON, CHANGE, END = 0.0, 1.0, 2.0  # rank 0's word for all, in the last element of a step


def say(*words):
    print(int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1000), *words, flush=True)


class Lost(Exception):
    """Somebody is gone."""


class Gloo:
    def __init__(self, folder, identity):
        self.folder, self.identity, self.number = folder, identity, 0
        self.rank = self.size = 0

    def form(self):
        """The process group of the next membership that has this replica."""
        if dist.is_initialized():
            dist.destroy_process_group()
        while True:
            number, members = membership(self.folder)
            if number > self.number and self.identity in members:
                self.number, self.rank, self.size = number, members.index(self.identity), len(members)
                with contextlib.suppress(RuntimeError):  # a member is lost meanwhile
                    self.meet(self.folder / f"group{number}")
                    return
            threading.Event().wait(0.005)

    def meet(self, file):
        store = dist.FileStore(str(file), self.size)
        limit = datetime.timedelta(seconds=LIMIT_S)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=limit)

    def all_reduce(self, data):
        try:
            dist.all_reduce(data)
        except RuntimeError as error:
            raise Lost(error) from error

    def broadcast(self, data):
        try:
            dist.broadcast(data, 0)
        except RuntimeError as error:
            raise Lost(error) from error

    def close(self):
        dist.destroy_process_group()


class Shoal:
    def __init__(self, folder, identity):
        self.folder, self.identity, self.number = folder, identity, 0
        self.job = None

    def form(self):
        number, members = membership(self.folder)
        if self.job is None:
            self.open(number == 0, members)
        else:
            while True:
                with contextlib.suppress(errors.RankLostError):
                    self.job.reconfigure(LIMIT_S * 1000, 2000)
                    break
        # The number that is known now may be greater than the one that was known before, never less.
        self.number = max(number, self.number)
        self.rank, self.size = self.job.rank, self.job.world_size

    def open(self, waits, members):
        while waits:
            number, members = membership(self.folder)
            waits = number == 0
            threading.Event().wait(0.005)
        newcomer = self.identity >= len(members)
        rank, size = (-1, 0) if newcomer else (self.identity, len(members))
        self.job = library.Job(
            os.environ["SHOAL_JOB"],
            os.environ["SHOAL_SOCKET"],
            rank,
            size,
            local_rank=-1,
            timeout_ms=3 * LIMIT_S * 1000,
            arena_bytes=64 << 20,
            newcomer=newcomer,
        )

    def wait(self, start, data, *arguments):
        try:
            start(*arguments).wait(LIMIT_S * 1000)
        except errors.RecoverableError as error:
            raise Lost(error) from error

    def all_reduce(self, data):
        address = ctypes.c_void_p(data.data_ptr())
        self.wait(self.job.world.all_reduce, data, address, address, data.numel(), library.F32, library.SUM)

    def broadcast(self, data):
        address = ctypes.c_void_p(data.data_ptr())
        self.wait(self.job.world.broadcast, data, address, data.numel(), library.F32, 0)

    def close(self):
        self.job.close()


def membership(folder):
    """The number, 0 while there is none, and the identities."""
    path = folder / "membership"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else (0, [])


class Replica:
    def __init__(self, manner, folder, step_s, floats):
        self.manner, self.folder, self.step_s = manner, folder, step_s
        self.gradient, self.parameters = torch.zeros(floats + 1), torch.zeros(floats)
        self.step = 0

    def form(self):
        """With the step and the parameters of the first."""
        formed = False
        while not formed:
            self.manner.form()
            try:
                self.parameters[0] = self.step
                self.manner.broadcast(self.parameters)
                self.step, formed = int(self.parameters[0]), True
            except Lost as error:
                say("lost", str(error).split("\n", 1)[0])

    def word(self):
        if self.manner.rank != 0:
            return GO_ON
        if (self.folder / "end").exists():
            return END
        return CHANGE if membership(self.folder)[0] > self.manner.number else GO_ON

    def train(self):
        """One step; what the first rank has said."""
        threading.Event().wait(self.step_s)  # computing, which takes no processor here
        self.gradient.fill_(self.manner.rank + 1.0)
        self.gradient[-1] = self.word()
        self.manner.all_reduce(self.gradient)
        size = self.manner.size
        if not bool((self.gradient[:-1] == size * (size + 1) / 2).all()):
            raise SystemExit("wrong result")
        self.parameters.add_(self.gradient[:-1], alpha=-0.01)
        self.step += 1
        say("step", self.step, size)
        return float(self.gradient[-1])

    def run(self):
        word = CHANGE
        while word != END:
            if word == CHANGE:
                self.form()
            try:
                word = self.train()
            except Lost as error:
                say("lost", str(error).split("\n", 1)[0])
                word = CHANGE
            # Not formed in there: the error holds Gloo's process group, whose connections the others wait on.
        self.manner.close()


def main():
    manner, identity, folder, step_ms, floats = sys.argv[1:]
    torch.set_num_threads(1)
    folder = pathlib.Path(folder)
    chosen = {"shoal": Shoal, "gloo": Gloo}[manner](folder, int(identity))
    say("ready")
    Replica(chosen, folder, int(step_ms) / 1000, int(floats)).run()


if __name__ == "__main__":
    main()
