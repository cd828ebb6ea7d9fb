#!/usr/bin/python3
"""The backend smddp does what the backend shoal does."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402


class Backend(suite.RanksCase, script="ranks_smddp.py", ranks=4):
    pass


if __name__ == "__main__":
    sys.exit(suite.main())
