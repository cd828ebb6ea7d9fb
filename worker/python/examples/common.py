"""Parts that the examples share: the options, the process group, a model of text, one printed result.

Each example is an ordinary script of torch.distributed; `--backend gloo` trains the same on gloo.
"""

import argparse
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist


def find(path):
    """A file of shoal's tree, named from its top; a bundle has it in share/shoal."""
    for folder in pathlib.Path(__file__).resolve().parents:
        for candidate in (folder / path, folder / "share" / "shoal" / pathlib.Path(path).name):
            if candidate.exists():
                return candidate
    raise FileNotFoundError(f"{path}: in no folder above {__file__}, nor is its share/shoal")


def parse_options(description, *, devices=("cpu",), backend="shoal", folder=None, **switches):
    """Options, and what no run may differ in. devices: where the example can train. backend: the
    default one, None where the example has one alone. folder: what --folder is for, where it needs one.
    switches: what it may be told besides, name=help."""
    parser = argparse.ArgumentParser(description=description)
    if backend:
        parser.add_argument("--backend", default=backend, help="shoal (the default) or gloo")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu", choices=devices)
    if folder:
        parser.add_argument("--folder", required=True, help=folder)
    for name, text in switches.items():
        parser.add_argument("--" + name.replace("_", "-"), action="store_true", help=text)
    options = parser.parse_args()
    options.device = _device(options.device, parser)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    return options


def start(description, **more):
    """Options, as parse_options() takes them, then the process group; returns (options, rank, number of
    ranks)."""
    options = parse_options(description, **more)
    # Only this line and the name of the backend are shoal's.
    import shoal.torch  # noqa: F401

    dist.init_process_group(backend=options.backend)
    return options, dist.get_rank(), dist.get_world_size()


def _device(name, parser):
    """Return the device of this rank: with several GPUs each rank has its own, with fewer GPUs than ranks they
    share."""
    if name != "cuda":
        return torch.device(name)
    if not torch.cuda.is_available():
        built = torch.backends.cuda.is_built()
        why = "torch finds no GPU" if built else "this torch is built without CUDA"
        parser.error(f"--device cuda: {why}")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def draws():
    """Whether there is a line of progress: rank 0 has it, where its errors go to a terminal."""
    rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK") or 0)
    return rank == 0 and sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def erase():
    if draws():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def count_steps(steps):
    """The number of each step from 0 on; meanwhile a line says which it is, and is gone at the end."""
    try:
        for step in range(steps):
            if draws():
                print(f"\rstep {step + 1} of {steps}\033[K", end="\r", file=sys.stderr, flush=True)
            yield step
    finally:
        erase()


def say(text):
    erase()
    print(text, flush=True)


def finish(losses):
    """Rank 0 prints the loss of each step, averaged over the ranks; the process group ends."""
    mean = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    if dist.get_rank() == 0:
        show(dist.get_backend(), mean)
    dist.barrier()
    dist.destroy_process_group()


def show(backend, losses):
    print(json.dumps({"backend": backend, "losses": losses.tolist()}), flush=True)


class TextModel(torch.nn.Module):
    """A small transformer that guesses the next character."""

    def __init__(self, characters=128, width=64, heads=4, layers=2, length=32):
        super().__init__()
        self.embedding = torch.nn.Embedding(characters, width)
        self.position = torch.nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = torch.nn.Linear(width, characters)
        mask = torch.full((length, length), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, text):
        hidden = self.embedding(text) + self.position
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask)
        return self.head(hidden)


def text_batches(rank, size, steps, batch=8, length=32):
    """Batches of (characters, next characters) out of shoal's LICENSE, different on each rank."""
    text = find("LICENSE").read_bytes()
    characters = torch.tensor(list(text), dtype=torch.int64).clamp_(0, 127)
    generator = torch.Generator().manual_seed(7)
    for _ in count_steps(steps):
        starts = torch.randint(len(text) - length - 1, (size, batch), generator=generator)[rank]
        rows = torch.stack([characters[start : start + length + 1] for start in starts])
        yield rows[:, :-1], rows[:, 1:]


def text_loss(model, inputs, targets):
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
