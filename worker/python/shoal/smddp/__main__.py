"""python3 -m shoal.smddp SCRIPT [ARGUMENT ...], or -m MODULE: a script for SMDDP as it is, where
shoal-smddp is not installed."""

import pathlib
import runpy
import sys

from shoal.smddp import _after_torch, _names

USAGE = """usage: python3 -m shoal.smddp SCRIPT [ARGUMENT ...]
       python3 -m shoal.smddp -m MODULE [ARGUMENT ...]

Runs a script or a module that is written for SMDDP on shoal, as it is, as python3 would run it.
"""


def main(arguments):
    """Ends as the script ends."""
    if not arguments or arguments[0] in ("-h", "--help"):
        (sys.stdout if arguments else sys.stderr).write(USAGE)
        return 0 if arguments else 2
    other = _names.find_other()
    if other:
        print(
            f"shoal.smddp: {other[0]} is installed at {other[1]}: run the script without shoal.smddp to"
            " use that package, or remove it to use shoal",
            file=sys.stderr,
        )
        return 1
    _names.install()
    _after_torch.install()
    if arguments[0] == "-m":
        if len(arguments) < 2:
            sys.stderr.write(USAGE)
            return 2
        sys.argv = arguments[1:]  # runpy puts the file there
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    script = arguments[0]
    if script.startswith("-"):
        sys.stderr.write(f"shoal.smddp: {script} is not an option\n{USAGE}")
        return 2
    if not pathlib.Path(script).exists():
        print(f"shoal.smddp: {script}: no such script", file=sys.stderr)
        return 2
    sys.argv = arguments
    if not getattr(sys.flags, "safe_path", False):
        # Here python3 has put the current folder, for -m; a script finds what is beside it.
        sys.path[0] = str(pathlib.Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
