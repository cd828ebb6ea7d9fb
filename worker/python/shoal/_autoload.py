"""torch knows the name "shoal" before anybody imports shoal.torch: torch calls register() at the end of
`import torch`, as the entry points of the package say (wheel_builder.py).

Every program that imports torch where shoal is installed comes by here, so this is quick, raises nothing, and
imports shoal.torch only when a group is made.
"""

import functools
import inspect
import os
import sys

NAME = "shoal"
# SHOAL_AS names the backend whose groups shoal makes in its place: "gloo", or unset.
AS_VARIABLE = "SHOAL_AS"
AS_VALUES = ("gloo",)


def register():
    """Register the backend; torch calls this. An error is raised when a group is made."""
    try:
        install()
    except Exception as problem:
        try:
            _raise_later(problem)
        except Exception:  # a torch without any of it: asked for shoal, it says that it has none
            pass


def install():
    """The name, and what SHOAL_AS asks for. Done twice it is done once."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    register_backend(dist.Backend, NAME, device_types())
    _fill_in_late(sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers)
    wanted = os.environ.get(AS_VARIABLE, "")
    if not wanted:
        return
    from shoal import _in_place_of_gloo, errors

    if wanted not in AS_VALUES:
        raise errors.InvalidError(f"{AS_VARIABLE} is {wanted!r}: it is {' or '.join(AS_VALUES)}, or unset")
    _in_place_of_gloo.install(sys.modules["torch.distributed.distributed_c10d"])


def device_types():
    """Return the types of devices that groups serve: torch takes a registered one, but the CPU, for one that is
    there."""
    return ["cpu", "cuda"] if sys.modules["torch"].version.cuda else ["cpu"]


def register_backend(backend, name, devices):
    """Register a name of shoal's with torch's class Backend, for devices of these types; once."""
    if name.upper() in backend._plugins:
        return
    backend.register_backend(name, _create, extended_api=True, devices=devices)


def _fill_in_late(handlers):
    """Have shoal.torch imported where "env://" would fail without it: shoal.torch fills in the variables that shoalrun,
    srun and SageMaker leave out of the environment, and torch asks for them before it has a group made."""
    original = handlers["env"]
    if hasattr(original, "shoal_is_late") or hasattr(original, "shoal"):
        return

    def env_handler(url, *arguments, **named):
        environment = os.environ
        lacks = "MASTER_ADDR" not in environment or ("SLURM_PROCID" in environment and "RANK" not in environment)
        if lacks and "shoal.torch" not in sys.modules:
            import shoal.torch  # noqa: F401 - puts a handler round this one

            yield from handlers["env"](url, *arguments, **named)
        else:
            yield from original(url, *arguments, **named)

    env_handler.shoal_is_late = True
    handlers["env"] = env_handler


def _create(*arguments):
    """Makes a group: torch gives what it gives to a creator of the extended kind."""
    from shoal.torch import _process_group

    return _process_group.create(*arguments)


def _raise_later(problem):
    """By every call that makes a group where SHOAL_AS is set, lest the group be another backend's; else by those
    that ask for shoal."""
    import torch.distributed as dist

    c10d = sys.modules["torch.distributed.distributed_c10d"]
    every = bool(os.environ.get(AS_VARIABLE))
    for name in ("init_process_group", "new_group", "split_group"):
        original = getattr(c10d, name, None)
        if original is None:
            continue

        @functools.wraps(original)
        def raising(*arguments, _original=original, _signature=inspect.signature(original), **named):
            asked = _signature.bind(*arguments, **named).arguments.get("backend")
            if every or NAME in str(asked).lower():
                raise problem.with_traceback(None)
            return _original(*arguments, **named)

        setattr(c10d, name, raising)
        setattr(dist, name, raising)
