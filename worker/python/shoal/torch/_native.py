"""The native backend: whether it is there, for this torch, and what a session and a group have of it.

It is a module in C++ over torch's own headers (worker/python/native), built by `make native` into a
file whose name says for which torch and Python. Where that file is not, or SHOAL_NATIVE is 0,
everything is done in Python. It is never built from here.
"""

import importlib.machinery
import importlib.util
import os
import pathlib
import re
import sysconfig
import warnings

import torch

from shoal import __version__, library

VARIABLE = "SHOAL_NATIVE"

_loaded = None  # (module or None, its path or why there is none), once it has been asked for


def file_name():
    """Return the file name of the module for this torch and this Python."""
    abi = int(torch.compiled_with_cxx11_abi())
    return f"shoal_native-torch-{headers_of(torch.__version__)}-abi{abi}{sysconfig.get_config_var('EXT_SUFFIX')}"


def headers_of(version):
    """Return the version of torch's headers: pip's builds of one release for the CPU and for each CUDA have the same
    classes, and what differs in their headers is for CUDA's own compiler. Builds of others may have other options."""
    return re.sub(r"\+(cpu|cu\d+)$", "+pip", version)


def folders():
    """Where it may be, best first: beside libshoal, and beside this file, where packages have it."""
    here = pathlib.Path(__file__).resolve().parent
    return [pathlib.Path(_path_of_libshoal()).resolve().parent, here]


def _path_of_libshoal():
    path = library.load().path
    if "/" in path:
        return path
    # The system's loader has found a library by its name: return its path.
    with open("/proc/self/maps") as maps:
        found = [line.split()[-1] for line in maps if "/libshoal.so" in line]
    return found[0] if found else path


def load():
    """(module, its path), or (None, why it is not used)."""
    global _loaded
    if _loaded is None:
        _loaded = _load(os.environ.get(VARIABLE, ""))
    return _loaded


def _load(wanted):
    if wanted not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} is {wanted!r}: it is 0, 1 or unset")
    if wanted == "0":
        return None, f"{VARIABLE} is 0"
    places = list(dict.fromkeys(folders()))
    for path in [folder / file_name() for folder in places]:
        if not path.exists():
            continue
        try:
            return _import(path), str(path)
        except ImportError as problem:
            why = f"{path} cannot be loaded: {problem}"
            if not wanted:  # it is there to be used
                warnings.warn(f"the backend in Python serves: {why}", RuntimeWarning, stacklevel=2)
            break
    else:
        why = f"{file_name()} is not in {' or '.join(map(str, places))}"
        others = sorted(path.name for folder in places for path in folder.glob("shoal_native-*.so"))
        if others:
            why += f", which has {', '.join(others)}"
    if wanted:
        raise ImportError(f"{VARIABLE} is 1, and the native backend cannot be used: {why}")
    return None, why


def _import(path):
    loader = importlib.machinery.ExtensionFileLoader("shoal_native", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("shoal_native", loader))
    loader.exec_module(module)
    version = getattr(module, "version", "before 0.1.0")
    if version != __version__:
        raise ImportError(f"it is of shoal {version}, and the package of {__version__}")
    return module


def make_session(job):
    """Make what the operations of a job share; None: there is no native backend."""
    module, _ = load()
    return module and module.Session(_path_of_libshoal(), job.handle.value)


def make_bell(session):
    """Make a bell, which tells the Python backend that its own requests are complete."""
    module, _ = load()
    return module.Bell(session)


def make_group(session, group, name, ranks, timeout):
    """A group of a session that make_session() gave, for collectives on tensors in memory.
    ranks: as text, for errors."""
    module, _ = load()
    handle = getattr(group.handle, "value", group.handle)
    return module.Group(session, handle, group.rank, group.size, name, ranks, timeout)


def make_backend(member):
    """Make torch's Backend of a Member whose session has what make_session() gave."""
    module, _ = load()
    return module.Backend(member.counter, member)


def average_gradients(reducer, group, static_graph):
    """Have a Reducer of torch's ask for the averages of its buckets, and return what has their statistics()."""
    module, _ = load()
    return module.average_gradients(reducer, group, static_graph)


def join(works):
    """One native Work for what these stand for, all native."""
    module, _ = load()
    return module.join(works)


def is_work(work):
    module, _ = _loaded or (None, "")
    return module is not None and isinstance(work, module.Work)
