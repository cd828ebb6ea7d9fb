"""A small language model that is saved while it trains. Killed and started anew with the same command, it goes on
from what was saved last, and ends with the bits that it would have had.

    shoalrun -n 4 -- python3 transformer_checkpoint.py --folder FOLDER-THAT-ALL-NODES-SEE

The model is sharded (FSDP), and each rank writes its shards. With --whole all ranks have the whole model (DDP), and
one of them writes it.
"""

import functools
import hashlib
import itertools
import json
import os
import pathlib
import shutil

import common
import shoal.torch
import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint import state_dict as states
from torch.nn.parallel import DistributedDataParallel

EVERY_STEPS = 5


class Whole:
    """A model that is whole on each rank: the checkpoint rank alone writes it, all read it."""

    def __init__(self):
        self.model = DistributedDataParallel(common.TextModel())
        self.optimizer = make_optimizer(self.model)

    def save(self, folder):
        if shoal.torch.is_checkpoint_rank():
            folder.mkdir()
            content = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            with open(folder / "whole.pt", "wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())

    def load(self, folder):
        content = torch.load(folder / "whole.pt", map_location="cpu")
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])


class Shards:
    """Each rank has parts, and writes them. Another number of ranks can read them, too."""

    def __init__(self):
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        layers = {torch.nn.TransformerEncoderLayer}
        self.model = FullyShardedDataParallel(
            common.TextModel(),
            auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=layers),
            device_id=torch.device("cpu"),
        )
        self.optimizer = make_optimizer(self.model)

    def content(self):
        model, optimizer = states.get_state_dict(
            self.model, self.optimizer, options=states.StateDictOptions(cpu_offload=True)
        )
        return {"model": model, "optimizer": optimizer}

    def save(self, folder):
        checkpoint.save(self.content(), checkpoint_id=folder)

    def load(self, folder):
        content = self.content()
        checkpoint.load(content, checkpoint_id=folder)
        states.set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=content["model"],
            optim_state_dict=content["optimizer"],
        )


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def save(training, folder, step):
    """Write a checkpoint, and name it in `latest` at the end: files that a killed run leaves before that are no
    checkpoint."""
    name = f"step-{step}"
    training.save(folder / name)
    dist.barrier()  # all have written
    if shoal.torch.is_checkpoint_rank():
        with open(folder / "latest.new", "w") as file:
            file.write(name)
            file.flush()
            os.fsync(file.fileno())
        os.replace(folder / "latest.new", folder / "latest")
        remove_others(folder, name)
        common.say(f"saved step {step}")


def resume(training, folder):
    """The step that was saved last, 0 where none was. One rank looks, so that all take the same."""
    found = [""]
    if shoal.torch.is_checkpoint_rank():
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "latest").exists():
            found = [(folder / "latest").read_text()]
        remove_others(folder, found[0])
    dist.broadcast_object_list(found)
    if not found[0]:
        return 0
    training.load(folder / found[0])
    return int(found[0].split("-")[1])


def remove_others(folder, name):
    for other in folder.glob("step-*"):
        if other.name != name:
            shutil.rmtree(other)


def digest(training):
    """Return a digest of the bits of all parameters and of the optimizer's state, on all ranks."""
    own = hashlib.sha256()
    for parameter in training.model.parameters():
        state = sorted(training.optimizer.state[parameter].items())  # what is loaded may have another order
        for tensor in [parameter, *(tensor for _, tensor in state)]:
            own.update(tensor.detach().numpy().tobytes())
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, own.hexdigest())
    return hashlib.sha256("".join(every).encode()).hexdigest()


def main():
    options, rank, size = common.start(
        __doc__.splitlines()[0],
        folder="where the checkpoints are; nothing else may be there",
        whole="the whole model on each rank, written by one",
    )
    folder = pathlib.Path(options.folder)
    training = Whole() if options.whole else Shards()
    first = resume(training, folder)
    if rank == 0:
        print(f"{type(training).__name__.lower()}, from step {first} (torch {torch.__version__})", flush=True)
    losses = []
    batches = itertools.islice(common.text_batches(rank, size, options.steps), first, None)
    for step, (inputs, targets) in enumerate(batches, first + 1):
        loss = common.text_loss(training.model, inputs, targets)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        losses.append(loss.item())
        if step % EVERY_STEPS == 0:
            save(training, folder, step)
    bits = digest(training)
    if rank == 0:
        print(json.dumps({"digest": bits}), flush=True)
    common.finish(losses)


if __name__ == "__main__":
    main()
