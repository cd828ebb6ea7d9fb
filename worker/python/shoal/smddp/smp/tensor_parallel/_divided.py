"""A module with parameters of which each tensor parallel rank has a part, in place of the whole one.

A module becomes divided in place: its class changes to one of ours that is a child of it, so that names in
a state dict, hooks, and references to it stay. Its parameters are plain tensors, of which FSDP needs to
know nothing.
"""

import contextlib
import dataclasses
from typing import Any

import torch

from shoal import errors


@dataclasses.dataclass(frozen=True)
class TensorParallel:
    """The ranks that divide a model among them: their group, this rank's number in it, and how many."""

    group: Any
    rank: int
    size: int
    seed: int = 0

    def __deepcopy__(self, memo):  # process groups cannot be copied, and a copy of a model has the same
        return self


class Divided:
    """Mixed into a class of modules. divide() sets `splits` {parameter name: Split} and `whole_shapes`, by the
    same names: FSDP takes the parameters themselves away."""

    def part_of(self, name, whole):
        return self.splits[name].part(whole, self.tp.rank, self.tp.size)

    @contextlib.contextmanager
    def whole_parameters(self):
        """While it lasts the module has whole parameters, of uninitialized memory; then its parts of what
        was made of them. For those who initialize parameters."""
        parts = {name: self._parameters[name] for name in self.splits}
        for name, part in parts.items():
            whole = torch.empty(self.whole_shapes[name], dtype=part.dtype, device=part.device)
            self._parameters[name] = torch.nn.Parameter(whole)
        try:
            yield
            with torch.no_grad():
                for name, part in parts.items():
                    part.copy_(self.part_of(name, self._parameters[name]))
        finally:
            self._parameters.update(parts)

    def _load_from_state_dict(self, state_dict, prefix, *arguments):
        """Whole parameters may be loaded too: each rank takes its part."""
        for name in self.splits:
            given = state_dict.get(prefix + name)
            if isinstance(given, torch.Tensor) and given.shape == self.whole_shapes[name]:
                state_dict[prefix + name] = self.part_of(name, given)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def divide(module, kind, splits, tp, name, memo, **attributes):
    """Make `module` one of `kind`, with parts of the parameters that `splits` names. name: of the module, for
    errors. memo: {id of a parameter: (the parameter, its split, its part)} of all that were divided before, by
    which what modules share stays shared."""
    splits = {key: split for key, split in splits.items() if module._parameters.get(key) is not None}
    for key, split in splits.items():
        parameter = module._parameters[key]
        split.check(f"{name}.{key}", parameter.shape, tp.size)
        if memo.get(id(parameter), (None, split))[1] != split:
            raise errors.UnsupportedError(f"{name}.{key} is shared with a module that divides it in another way")
    module.whole_shapes = {key: module._parameters[key].shape for key in splits}
    for key, split in splits.items():
        parameter = module._parameters[key]
        if id(parameter) not in memo:
            memo[id(parameter)] = (parameter, split, _part(parameter, split, tp))
        module._parameters[key] = memo[id(parameter)][2]
    module.__class__ = kind
    module.splits, module.tp = splits, tp
    for key, value in attributes.items():
        setattr(module, key, value)
    return module


def _part(parameter, split, tp):
    with torch.no_grad():
        part = split.part(parameter.detach(), tp.rank, tp.size)
    return torch.nn.Parameter(part, requires_grad=parameter.requires_grad)


def check_shared(model, memo):
    """Raise where a module still has the whole of a parameter that another one has divided."""
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in memo:
                raise errors.UnsupportedError(
                    f"{path}.{name} is shared with a module that was divided: the plan must divide both"
                )


def divided_parameters(model):
    """{name in model.state_dict(): (module, name in the module)} of all divided parameters."""
    found = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name in module.splits if isinstance(module, Divided) else ():
            found[f"{path}.{name}" if path else name] = (module, name)
    return found
