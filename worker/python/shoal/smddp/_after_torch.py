"""The backend smddp as soon as a script has imported torch.

Scripts may ask for it without an import of smdistributed: in Amazon's containers it is there. torch
itself is not imported before the script does, which may first set what torch reads as it is loaded.
"""

import importlib
import importlib.abc
import sys


def install():
    """Register smddp with torch, now or once this interpreter imports it."""
    if "torch" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, Watcher())


def _register():
    importlib.import_module("shoal.smddp._torch_smddp")


class Watcher(importlib.abc.MetaPathFinder):
    """Has torch found as it would be without it, until it is imported: scripts may look for it before."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _register()

        spec.loader.exec_module = exec_module
        return spec
