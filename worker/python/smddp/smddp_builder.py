"""Builds the wheel of shoal-smddp for pip (PEP 517): one file, at which an interpreter, when it starts,
lets scripts for SMDDP find their names. Run as a program it only checks.

It refuses where another maker's package with these names is installed, and says where.
"""

import pathlib
import site
import sys
import sysconfig

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import wheel_builder  # noqa: E402
from shoal.smddp import _names  # noqa: E402

SUMMARY = "Scripts that are written for SMDDP run on shoal as they are"
START = "shoal-smddp.pth"


def _package_folders():
    """Return the package folders of this interpreter. pip hides them from a build."""
    folders = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    return [*folders, *site.getsitepackages(), site.getusersitepackages()]


def refuse_another():
    """Ends the program where Amazon's package, or another with its names, is installed."""
    other = _names.find_other() or _names.find_other(_package_folders())
    if other:
        sys.exit(f"shoal-smddp is not installed: {other[0]} is there already, at {other[1]}")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    refuse_another()
    files = {START: (HERE / START).read_bytes()}
    return wheel_builder.write_wheel(wheel_directory, "shoal-smddp", SUMMARY, files)


# There is nothing in it to edit.
build_editable = build_wheel

if __name__ == "__main__":
    refuse_another()
