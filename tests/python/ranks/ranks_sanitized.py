"""ranks_sanitized.py BACKEND MODULE.CASE...: these cases of other modules, with a default group of this backend."""

import importlib
import sys

import ranks

for path in sys.argv[2:]:
    module, case = path.split(".")
    globals()[case] = getattr(importlib.import_module(module), case)

if __name__ == "__main__":
    ranks.start(sys.argv[1])
    ranks.run("__main__")
