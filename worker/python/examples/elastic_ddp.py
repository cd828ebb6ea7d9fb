"""A perceptron on hand-written digits that goes on when a rank is lost, and takes newcomers in.

    RANK=0 WORLD_SIZE=3 MASTER_ADDR=node0 MASTER_PORT=29500 python3 elastic_ddp.py --steps 1000
    python3 elastic_ddp.py --steps 1000 --join

The first line for each rank of the beginning, the second for each newcomer, on nodes with a daemon.
"""

import common
import digits_ddp
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import shoal.torch

LOOK_STEPS = 10  # how often newcomers are looked for, while ranks are missing


class Training:
    """Training state that outlives a generation of ranks, and the wrapper, which is made anew for each."""

    def __init__(self, steps):
        self.steps, self.step, self.wanted = steps, 0, 0
        self.pixels, self.digits = digits_ddp.load()
        self.model = digits_ddp.make_perceptron()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.wrapper = None

    def share(self):
        """All have what rank 0 has: of a step that was lost, some may have more than others."""
        self.wanted = self.wanted or dist.get_world_size()
        state = [{"step": self.step, "wanted": self.wanted}, self.model.state_dict(), self.optimizer.state_dict()]
        dist.broadcast_object_list(state)
        self.step, self.wanted = state[0]["step"], state[0]["wanted"]
        self.model.load_state_dict(state[1])
        self.optimizer.load_state_dict(state[2])
        self.wrapper = DistributedDataParallel(self.model)

    def train(self):
        """One step, on 32 rows for each rank there is; returns the loss on this one."""
        rank, size = dist.get_rank(), dist.get_world_size()
        rows = (torch.arange(rank, 32 * size, size) + self.step * 32 * size) % len(self.digits)
        loss = torch.nn.functional.cross_entropy(self.wrapper(self.pixels[rows]), self.digits[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def run(self):
        """Until the last step, or until somebody is lost."""
        self.share()
        while self.step < self.steps:
            loss = self.train()
            if self.step % LOOK_STEPS == 0:
                if dist.get_rank() == 0:
                    common.say(f"step {self.step} of {dist.get_world_size()} ranks: loss {loss:.4f}")
                if dist.get_world_size() < self.wanted:
                    shoal.torch.reconfigure()
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
            common.say(f"step {training.step}: {error}".splitlines()[0])
        # Not in the handler, whose error holds what the lost generation had.
        if not over:
            shoal.torch.reconfigure()


def main():
    summary = __doc__.splitlines()[0]
    options = common.parse_options(summary, backend=None, join="come as a newcomer to those that train")
    if options.join:
        shoal.torch.join("elastic-digits")
    else:
        dist.init_process_group("shoal", pg_options=shoal.torch.Options(job="elastic-digits"))
    training = Training(options.steps)
    go_on(training)
    mean = sum(float(parameter.detach().abs().mean()) for parameter in training.model.parameters())
    common.say(f"rank {dist.get_rank()} of {dist.get_world_size()}: {training.step} steps, {mean:.9f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
