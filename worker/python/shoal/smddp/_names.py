"""The modules that scripts for SMDDP and SMP import by name, found where nobody else has them.

A finder at the end of sys.meta_path serves them: what is installed is found before, so another
maker's package is never shadowed. Each is a thin module that gives out what one of ours has. It does
not have our folder as its own, where Python would look for a second copy of our files.

Nothing here needs torch: scripts look for these names without it.
"""

import importlib
import importlib.machinery
import sys
import types

# Name -> the module of ours behind it; None: nothing but its children.
MODULES = {
    "smdistributed": None,
    "smdistributed.dataparallel": "shoal.smddp._version",
    "smdistributed.dataparallel.torch": "shoal.smddp._distributed",  # the guides name it here too
    "smdistributed.dataparallel.torch.distributed": "shoal.smddp._distributed",
    "smdistributed.dataparallel.torch.parallel": "shoal.smddp._parallel",
    "smdistributed.dataparallel.torch.parallel.distributed": "shoal.smddp._parallel",
    "smdistributed.dataparallel.torch.torch_smddp": "shoal.smddp._torch_smddp",
    "torch.sagemaker": "shoal.smddp.smp",
    "torch.sagemaker.checkpoint": None,
    "torch.sagemaker.checkpoint.constants": "shoal.smddp.smp.checkpoint.constants",
    "torch.sagemaker.checkpoint.utils": "shoal.smddp.smp.checkpoint.utils",
    "torch.sagemaker.delayed_param": "shoal.smddp.smp.fsdp.delayed_param",
    "torch.sagemaker.distributed": None,
    "torch.sagemaker.distributed.checkpoint": None,
    "torch.sagemaker.distributed.checkpoint.async_utils": "shoal.smddp.smp.checkpoint.state_dict_saver",
    "torch.sagemaker.distributed.checkpoint.filesystem": "shoal.smddp.smp.checkpoint.filesystem",
    "torch.sagemaker.distributed.checkpoint.state_dict_loader": "shoal.smddp.smp.checkpoint.state_dict_loader",
    "torch.sagemaker.distributed.checkpoint.state_dict_saver": "shoal.smddp.smp.checkpoint.state_dict_saver",
    "torch.sagemaker.distributed.checkpoint.state_dict_utils": "shoal.smddp.smp.checkpoint.state_dict_utils",
    "torch.sagemaker.grad_norm": "shoal.smddp.smp.fsdp.grad_norm",
    "torch.sagemaker.logger": "shoal.smddp.smp.logger",
    "torch.sagemaker.moe": None,
    "torch.sagemaker.moe.moe_config": "shoal.smddp.smp.moe_config",
    "torch.sagemaker.moe.moe_layer": "shoal.smddp.smp.moe_layer",
    "torch.sagemaker.state_handler": "shoal.smddp.smp._state",
    "torch.sagemaker.tensor_parallel": None,
    "torch.sagemaker.tensor_parallel.transformer": "shoal.smddp.smp.tensor_parallel.transformer",
    "torch.sagemaker.utils": None,
    "torch.sagemaker.utils.module_utils": "shoal.smddp.smp.fsdp.module_utils",
    "torch.sagemaker.utils.process_group_utils": "shoal.smddp.smp.process_group_utils",
    "torch.sagemaker.utils.utils": "shoal.smddp.smp.utils",
}

# Below these names all modules are ours, or none.
TREES = ("smdistributed.dataparallel", "torch.sagemaker")


def install():
    """Find these names from now on; returns the finder. A second call changes nothing."""
    found = next((finder for finder in sys.meta_path if isinstance(finder, Finder)), None)
    if found is None:
        found = Finder()
        sys.meta_path.append(found)
    return found


def find_other(folders=None):
    """(name, place) of a package of another maker that has a name of ours, or None. Nothing is
    imported. folders: where packages are looked for; None: as this interpreter looks for them."""
    for name in TREES:
        place = _locate(name, folders)
        if place is not None:
            return name, place
    return None


def _locate(name, folders=None):
    """Where the other finders would load a module from; None: they do not find it."""
    found, path = None, folders
    words = name.split(".")
    for count in range(1, len(words) + 1):
        found = _ask_others(".".join(words[:count]), path)
        if found is None:
            return None
        path = found.submodule_search_locations or []
    return found.origin or next(iter(found.submodule_search_locations or []), "an unknown place")


def _ask_others(name, path):
    if path is not None:
        return importlib.machinery.PathFinder.find_spec(name, path)
    for finder in sys.meta_path:
        if isinstance(finder, Finder) or not hasattr(finder, "find_spec"):
            continue
        found = finder.find_spec(name, None)
        # shoal-smddp's finder gives what Finder gives.
        if found is not None and not isinstance(found.loader, Finder):
            return found
    return None


class Finder:
    """Finds and makes the modules of MODULES: a finder and a loader, without importlib's classes for
    these, which take longer to import than all else here."""

    def find_spec(self, name, path=None, target=None):
        if name not in MODULES:
            return None
        parent = name.rpartition(".")[0]
        if name in TREES or not parent:
            # A finder behind this one, of a package that is installed to be edited, may have it.
            if _locate(name) is not None:
                return None
        elif not _is_ours(parent):
            return None
        is_package = any(other.startswith(f"{name}.") for other in MODULES)
        return importlib.machinery.ModuleSpec(name, self, origin="shoal", is_package=is_package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        source = MODULES[module.__name__]
        if source is None:
            return
        ours = importlib.import_module(source)

        def get(name):
            # Its folder would make this a package whose files Python looks for.
            if name == "__path__":
                raise AttributeError(f"module {module.__name__!r} is not a package")
            value = getattr(ours, name, None)
            child = f"{module.__name__}.{name}"
            if child in MODULES and (value is None or isinstance(value, types.ModuleType)):
                return importlib.import_module(child)  # not one of ours by the same name
            if value is None and not hasattr(ours, name):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return value

        module.__doc__ = ours.__doc__
        module.__getattr__ = get
        module.__dir__ = lambda: sorted({*vars(module), *getattr(ours, "__all__", dir(ours))})
        if hasattr(ours, "__all__"):
            module.__all__ = ours.__all__


def _is_ours(name):
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), Finder)
