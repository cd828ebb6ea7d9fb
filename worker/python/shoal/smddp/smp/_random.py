"""Random generators that differ between the ranks of a model: named states, taken up for a while."""

import contextlib
from typing import NamedTuple, Optional

import torch

from shoal import errors

# The names that Megatron's layers and Transformer Engine give them, for scripts and libraries ask by name.
MODEL_PARALLEL = "model-parallel-rng"
EXPERT_PARALLEL = "expert-parallel-rng"


class _State(NamedTuple):
    """One state of torch's generators. gpu: None until the process has set up CUDA; the seed makes it then."""

    seed: int
    cpu: torch.Tensor
    gpu: Optional[torch.Tensor] = None


class RngStateTracker:
    """States of torch's generators (the CPU's, and the current GPU's) by name."""

    def __init__(self):
        self._states = {}

    def add(self, name, seed):
        """A new state, as torch.manual_seed(seed) leaves it; the generators stay as they are. That function is not
        called, for before CUDA is set up it would leave the seed for CUDA's own generator."""
        if name in self._states:
            raise errors.InvalidError(f"random state {name!r} is there already")
        self._states[name] = _State(seed, _seeded_state("cpu", seed))

    @contextlib.contextmanager
    def fork(self, name=MODEL_PARALLEL):
        """Inside, the generators are in this state, and go on from where the last fork of it has ended. A GPU's
        takes part from the first fork on before which CUDA is set up."""
        if name not in self._states:
            known = ", ".join(self._states) or "none"
            raise errors.InvalidError(f"there is no random state {name!r}; there are: {known}")
        state, with_gpu = self._states[name], _on_gpu()
        before = _get(with_gpu)
        gpu = state.gpu
        if with_gpu and gpu is None:
            gpu = _seeded_state(torch.device("cuda", torch.cuda.current_device()), state.seed)
        _set(state.cpu, gpu if with_gpu else None)
        try:
            yield
        finally:
            cpu, gpu = _get(with_gpu)
            self._states[name] = _State(state.seed, cpu, gpu if with_gpu else state.gpu)
            _set(*before)

    def get_states(self):
        """{name: state}; it stays as it is when a state goes on."""
        return dict(self._states)

    def set_states(self, states):
        """Replace all states by those that get_states() returned."""
        self._states = dict(states)

    def reset(self):
        self._states = {}


def _on_gpu():
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _seeded_state(device, seed):
    return torch.Generator(device).manual_seed(seed).get_state()


def _get(with_gpu):
    return torch.get_rng_state(), torch.cuda.get_rng_state() if with_gpu else None


def _set(cpu, gpu):
    torch.set_rng_state(cpu)
    if gpu is not None:
        torch.cuda.set_rng_state(gpu)


@contextlib.contextmanager
def seeded(seed):
    """Inside, torch's generators start from this seed; after it, they are as they were."""
    tracker = RngStateTracker()
    tracker.add("once", seed)
    with tracker.fork("once"):
        yield


def make_tracker(random_seed, *, tp_rank, tp_size, ep_rank):
    """One state of its own for each tensor parallel rank, and one for each expert parallel rank; the same on
    ranks that differ in nothing else."""
    tracker = RngStateTracker()
    tracker.add(MODEL_PARALLEL, random_seed + tp_rank)
    tracker.add(EXPERT_PARALLEL, random_seed + ep_rank * tp_size + tp_rank)
    return tracker
