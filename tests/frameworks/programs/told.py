"""Words of the programs to the test that has started them, and their end when they are asked to fail.

A program knows nothing of shoal: it tells what torch says of its group, and the test judges that.
"""

import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import signal

import torch
import torch.distributed as dist

ERROR = "the user's own error"


def backend():
    """Return the backend that the program asks for: Gloo, unless the test names another."""
    return os.environ.get("TEST_BACKEND", "gloo")


def tell(what, **values):
    """A line for the test."""
    say(what, dist.get_rank(), **values)


def say(what, rank, **values):
    """Written at once: ranks have one pipe together."""
    line = json.dumps({"what": what, "rank": rank, **values})
    os.write(1, f"\nTOLD {line}\n".encode())


def tell_group(what="group", group=None):
    """Tell what torch calls the group, the backend that is in it, and how many daemons this run has."""
    group = group or dist.group.WORLD
    backend = group._get_backend(torch.device("cpu")).name()
    tell(what, called=str(dist.get_backend(group)), backend=backend, daemons=len(list(daemons())))


def daemons():
    mark = f"TEST_RUN={os.environ['TEST_RUN']}\0".encode()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (folder / "comm").read_text() == "shoald\n" and mark in (folder / "environ").read_bytes():
                yield int(folder.name)


def bits(tensors):
    """Return the bytes of tensors, or of a module's, as one short word, and a number near which other bits are."""
    if isinstance(tensors, torch.nn.Module):
        tensors = [value for _, value in sorted(tensors.state_dict().items()) if torch.is_tensor(value)]
    tensors = [tensor.detach().cpu().contiguous() for tensor in tensors]
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    near = sum(float(tensor.double().abs().sum()) for tensor in tensors)
    return {"bits": digest.hexdigest()[:16], "near": near}


def steps(count):
    """The numbers of steps. Asked to fail, a program ends at its third step; asked to be interrupted, it says when
    that may be done, and goes on."""
    return itertools.count() if asked() == "interrupt" else range(count)


def asked():
    """How this run is to fail, "": not at all."""
    return os.environ.get("TEST_FAIL", "")


def step_is_done(step):
    """Called by every rank in each step, from 0 on."""
    if step != 2 or not asked():
        return
    if asked() == "interrupt":
        tell("waiting")
    elif dist.get_rank() == dist.get_world_size() - 1:
        tell("failing")
        if asked() == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError(ERROR)


def model(seed=7, inputs=10, outputs=2):
    """A small one, with the same parameters on every rank."""
    torch.manual_seed(seed)
    layers = torch.nn.Linear(inputs, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, outputs)
    return torch.nn.Sequential(*layers)


def data(count=64, inputs=10, classes=2, seed=3):
    """Rows and their classes, which a small model can learn."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, inputs, generator=generator)
    return torch.utils.data.TensorDataset(rows, (rows.sum(dim=1) > 0).long() % classes)


def folder():
    """The test's, which all ranks see and the test removes."""
    return os.environ["TEST_FOLDER"]
