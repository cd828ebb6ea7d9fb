"""Random generators that differ between the ranks of a model: named states, taken up for a while."""

import contextlib

import torch

from shoal import errors

# The names that Megatron's layers and Transformer Engine give them, for scripts and libraries ask by name.
MODEL_PARALLEL = "model-parallel-rng"
EXPERT_PARALLEL = "expert-parallel-rng"


class RngStateTracker:
    """States of torch's generators (the CPU's, and the current GPU's) by name."""

    def __init__(self):
        self._states = {}

    def add(self, name, seed):
        """A new state, as torch.manual_seed(seed) leaves it; the generators stay as they are."""
        if name in self._states:
            raise errors.InvalidError(f"random state {name!r} is there already")
        before = _get()
        torch.manual_seed(seed)
        self._states[name] = _get()
        _set(before)

    @contextlib.contextmanager
    def fork(self, name=MODEL_PARALLEL):
        """Inside, the generators are in this state, and go on from where the last fork of it has ended."""
        if name not in self._states:
            known = ", ".join(self._states) or "none"
            raise errors.InvalidError(f"there is no random state {name!r}; there are: {known}")
        before = _get()
        _set(self._states[name])
        try:
            yield
        finally:
            self._states[name] = _get()
            _set(before)

    def get_states(self):
        """{name: state}; it stays as it is when a state goes on."""
        return dict(self._states)

    def set_states(self, states):
        """What get_states() returned."""
        self._states = dict(states)

    def reset(self):
        self._states = {}


def _on_gpu():
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _get():
    return torch.get_rng_state(), torch.cuda.get_rng_state() if _on_gpu() else None


def _set(state):
    cpu, gpu = state
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
