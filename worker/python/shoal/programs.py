"""The programs beside the library: the commands that a wheel of `make wheel` brings."""

import os
import pathlib
import shutil
import sys

from shoal import library

NAMES = ("shoald", "shoalctl", "shoalrun", "shoalperf")


def find(name):
    """The program beside the library (../bin), else in PATH; None: there is none."""
    for path in library.library_paths():
        # Not resolved: the library's name is a link, and may lead elsewhere.
        beside = pathlib.Path(path).parent.parent / "bin" / name
        if os.path.isabs(path) and os.access(beside, os.X_OK):
            return str(beside)
    return shutil.which(name)


def _run(name):
    path = find(name)
    # The command itself, found in PATH, would start itself for ever.
    if not path or os.path.realpath(path) == os.path.realpath(sys.argv[0]):
        sys.exit(f"{name}: the program is not there: neither beside libshoal nor in PATH")
    os.execv(path, [name, *sys.argv[1:]])


def shoald():
    _run("shoald")


def shoalctl():
    _run("shoalctl")


def shoalrun():
    _run("shoalrun")


def shoalperf():
    _run("shoalperf")
