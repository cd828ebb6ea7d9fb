"""Changes to torch's own functions: where a torch no longer has the function, an error says so at once, and the
function that takes its place takes the same arguments."""

import inspect

import torch


def find(holder, *names):
    """The first of the names that torch's module or class has; they are one thing's, of different versions."""
    for name in names:
        if hasattr(holder, name):
            return name
    raise refusal(f"{' or '.join(names)} in {holder.__name__}")


def refusal(what):
    """The error of a torch without something that is changed here."""
    return ImportError(f"torch {torch.__version__} has no {what}, and torch.sagemaker changes it")


def binder(function, **more):
    """A function that gives the arguments of a call of torch's by their names, with its defaults. The signature is this
    torch's own, as the next one has more. more: arguments that the call may have besides, with their defaults."""
    signature = inspect.signature(function)
    known, kind = signature.parameters, inspect.Parameter.POSITIONAL_OR_KEYWORD
    added = [inspect.Parameter(name, kind, default=value) for name, value in more.items() if name not in known]
    # Before what torch takes by name alone.
    signature = signature.replace(parameters=sorted([*known.values(), *added], key=lambda one: one.kind))

    def bind(*given, **named):
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        return bound.arguments

    return bind
