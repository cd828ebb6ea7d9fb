#!/usr/bin/env python3
"""Measure a step of DistributedDataParallel, forward and backward, by turns: this tree's, that of other built trees of
shoal, and torch's over Gloo.

    wrapper.py [--ranks 2] [--nodes 1] [--millions 1,16,120] [--turns N] [--zero] SIDE...

A SIDE is NAME=TREE (a tree after `make native`) or "gloo"; ratios are over the first. All sides' ranks stay alive, so
that a turn is a few steps only, and what disturbs the machine disturbs the sides alike: a ratio is of two turns, one
after the other. Each round begins with another side. --zero: gradients are zeroed rather than dropped before a step.
Every tree must be able to load the torch of this Python. Prints Markdown.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

import torch
import torch._dynamo  # here, once, for all ranks
import torch.distributed as dist

STEPS = {1: 20, 4: 10, 16: 4}  # of a turn, by millions of parameters
ROWS = 16  # of a batch
# Layers of this width, as many as come to about so many millions of parameters.
WIDTHS = ((2, 512), (20, 1024), (10**6, 2048))


def model_of(millions):
    """A row of equal layers, and a batch."""
    torch.manual_seed(0)
    width = next(width for most, width in WIDTHS if millions <= most)
    layers = max(1, round(millions * 1e6 / (width * (width + 1))))
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))), torch.randn(ROWS, width)


class Rank:
    """One process of a side: does what its pipe says."""

    def __init__(self, tree, folder, rank, options):
        environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        if tree:
            environment |= {"SHOAL_LIBRARY": f"{tree}/build/lib/libshoal.so", "SHOAL_NATIVE": "1",
                            "SHOAL_NODE": str(rank * options.nodes // options.ranks)}
            sys.path.insert(0, f"{tree}/worker/python")
        os.environ.update(environment)
        sys.dont_write_bytecode = True
        torch.set_num_threads(1)
        wrapper = torch.nn.parallel.DistributedDataParallel
        if tree:
            wrapper = __import__("shoal.torch").torch.DistributedDataParallel
        dist.init_process_group("shoal" if tree else "gloo", init_method=f"file://{folder}/store", rank=rank,
                                world_size=options.ranks)
        self.wrapper, self.to_none = wrapper, not options.zero
        self.folder, self.rank = folder, rank

    def serve(self):
        with open(f"{self.folder}/in.{self.rank}", encoding="ascii") as orders, \
                open(f"{self.folder}/out.{self.rank}", "w", encoding="ascii") as answers:
            for order in orders:
                word, number = order.split()
                print(json.dumps(getattr(self, word)(int(number))), file=answers, flush=True)
                if word == "end":
                    return

    def make(self, millions):
        self.wrapped = None  # first, so that its memory can be had
        model, self.batch = model_of(millions)
        self.wrapped = self.wrapper(model)
        self.turn(3)
        return sum(parameter.numel() for parameter in model.parameters())

    def turn(self, steps):
        """Mean seconds of a step, and of its processor time."""
        dist.barrier()
        began, spent = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.wrapped.zero_grad(set_to_none=self.to_none)
            self.wrapped(self.batch).square().mean().backward()
        return [(time.perf_counter() - began) / steps, (time.process_time() - spent) / steps]

    def end(self, _):
        self.wrapped = None
        dist.barrier()
        dist.destroy_process_group()


class Side:
    """The ranks of one tree, or of Gloo, each a child of this process."""

    def __init__(self, words, options):
        self.name, _, tree = words.partition("=")
        self.folder, self.pids = tempfile.mkdtemp(prefix="shoal-bench-"), []
        for rank in range(options.ranks):
            for way in ("in", "out"):
                os.mkfifo(f"{self.folder}/{way}.{rank}")
            pid = os.fork()
            if pid == 0:
                self.child(tree and os.path.abspath(tree), rank, options)
            self.pids.append(pid)
        ranks = range(options.ranks)
        self.orders = [open(f"{self.folder}/in.{rank}", "w", encoding="ascii") for rank in ranks]
        self.answers = [open(f"{self.folder}/out.{rank}", encoding="ascii") for rank in ranks]

    def child(self, tree, rank, options):
        code = 1
        try:
            Rank(tree, self.folder, rank, options).serve()
            code = 0
        finally:
            if code:
                sys.excepthook(*sys.exc_info())
            os._exit(code)

    def ask(self, word, number=0):
        """Return rank 0's answer, once all ranks have answered."""
        for file in self.orders:
            print(word, number, file=file, flush=True)
        answers = [file.readline() for file in self.answers]
        if not all(answers):
            sys.exit(f"wrapper: a rank of {self.name} has ended")
        return json.loads(answers[0])

    def close(self):
        self.ask("end")
        for pid in self.pids:
            os.waitpid(pid, 0)
        shutil.rmtree(self.folder)


def measure(sides, millions, turns):
    """(parameters, {name: [[seconds of a step, processor seconds] of each round]})"""
    for side in sides:
        parameters = side.ask("make", millions)
    steps, rounds = STEPS.get(millions, 1), {side.name: [] for side in sides}
    for turn in range(turns):
        first = turn % len(sides)
        for side in sides[first:] + sides[:first]:
            rounds[side.name].append(side.ask("turn", steps))
    return parameters, rounds


def row_of(head, rounds):
    """Medians; a ratio is of one round, and its quartiles say how sure it is."""
    base, *others = rounds
    cells = [head, *(f"{statistics.median(time for time, _ in each) * 1e3:.1f}" for each in rounds.values())]
    for name in others:
        ratios = [own[0] / first[0] for own, first in zip(rounds[name], rounds[base])]
        low, middle, high = statistics.quantiles(ratios, n=4)
        processor = statistics.median(own[1] / first[1] for own, first in zip(rounds[name], rounds[base]))
        cells.append(f"{middle:.3f} ({low:.2f} to {high:.2f}); {processor:.3f}")
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--millions", default="1,16,120")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--zero", action="store_true")
    parser.add_argument("sides", nargs="+", metavar="SIDE")
    options = parser.parse_args()
    sides = [Side(words, options) for words in options.sides]
    names = [side.name for side in sides]
    heads = [f"{options.ranks} ranks, {options.nodes} nodes", *(f"{name}, ms" for name in names),
             *(f"{name} over {names[0]}, in a round (quartiles); processor time" for name in names[1:])]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads), flush=True)
    for millions in map(int, options.millions.split(",")):
        parameters, rounds = measure(sides, millions, options.turns)
        print(row_of(f"{parameters / 1e6:.1f} M", rounds), flush=True)
    for side in sides:
        side.close()


if __name__ == "__main__":
    main()
