"""Builds the native backend for the torch of this Python: `make native`.

    build.py --build BUILD [--sanitize NAME]      the module goes to BUILD/lib, beside libshoal
    build.py --folders                            print the folders that the compiler reads, for one that runs elsewhere

All sources are one unit for the compiler, which takes longer over torch's headers than over all the sources.
NAME is one of g++'s sanitizers: Python loads such a module where the sanitizer's library is loaded before it
(tests/python/test_sanitized.py).
A module that has been built from the same sources, by the same compiler, for the same torch, is left as it is.
Where a compiler, torch or its headers are missing, that is said in one line, and nothing is built: the
backend in Python does without. A compiler's error is an error.
"""

import argparse
import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[2]
# Not -Wshadow: what a constructor is given has the name of what it becomes.
WARNINGS = "-Wall -Wextra -Werror -Wpointer-arith -Wwrite-strings -Wundef -Wvla -Wformat=2".split()
FLAGS = "-std=c++17 -O2 -fPIC -pthread -fvisibility=hidden -fstack-protector-strong".split()
# g++ takes what a sanitizer adds to torch's headers for faults, so that it warns of nothing here.
SANITIZED = "-O1 -g -fno-omit-frame-pointer -w".split()
# The thread sanitizer of GCC 12 does not see pthread_mutex_clocklock, which std::timed_mutex would call.
OF_THREADS = "#include <cstddef>\n#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK\n"


class Missing(Exception):
    """Something that the build needs is missing: the text says what."""


def compiler():
    words = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(words[0]) is None:
        raise Missing(f"no compiler {words[0]}")
    return words


def torch_and_name():
    sys.path.insert(0, str(HERE.parent))
    try:
        import torch

        from shoal.torch import _native
    except ImportError as problem:
        raise Missing(f"{sys.executable} has no torch ({problem})") from None
    return torch, _native.file_name()


def include_flags(torch):
    """Headers of others are not ours to warn of. torch's own list of folders would need setuptools."""
    own = pathlib.Path(torch.__file__).parent / "include"
    folders = [str(own), str(own / "torch/csrc/api/include"), sysconfig.get_path("include")]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return [abi, f"-I{TREE}", *(word for folder in folders for word in ("-isystem", folder))]


def folders():
    """Return this tree and the folders of torch's and Python's headers: pyconfig.h may be in one of the architecture."""
    torch, _ = torch_and_name()
    headers = pathlib.Path(sysconfig.get_path("include"))
    architecture = headers.parent / (sysconfig.get_config_var("MULTIARCH") or "") / headers.name
    found = [TREE, pathlib.Path(torch.__file__).parent, headers, architecture]
    return [str(folder) for folder in dict.fromkeys(found) if folder.exists()]


def check_headers(command):
    """Each with all that it includes itself."""
    for header in ("Python.h", "pybind11/pybind11.h", "torch/csrc/distributed/c10d/Work.hpp"):
        result = subprocess.run(
            [*command, "-E", "-x", "c++", "-o", os.devnull, "-"],
            input=f"#include <{header}>\n",
            stderr=subprocess.PIPE,
            text=True,
        )
        if result.returncode:
            said = [line for line in result.stderr.splitlines() if "error:" in line][:1]
            raise Missing(f"no header {header} ({''.join(said)}; packages libtorch-dev, pybind11-dev, python3-dev)")


def link_flags(torch):
    folder = pathlib.Path(torch.__file__).parent / "lib"
    # Not by path: torch is loaded before this, and has them all.
    return [f"-L{folder}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]


def run(command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise SystemExit(f"{shlex.join(command)}\n{result.stdout}")


def units():
    return sorted(HERE.glob("*.cpp"))


def sources():
    """All that the module is made of, but for torch's headers, which its name stands for."""
    return [*units(), *sorted(HERE.glob("*.hpp")), TREE / "worker" / "shoal.h"]


def fingerprint(command):
    digest = hashlib.sha256(shlex.join(command).encode())
    digest.update(subprocess.run([*compiler(), "--version"], stdout=subprocess.PIPE).stdout)
    for path in sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build(build_folder, sanitizer=None):
    cxx = compiler()
    torch, name = torch_and_name()
    sanitize = [f"-fsanitize={sanitizer}"] if sanitizer else []
    more = [*SANITIZED, *sanitize] if sanitizer else WARNINGS
    compile_command = [*cxx, *FLAGS, *more, *include_flags(torch)]
    module = build_folder / "lib" / name
    objects = build_folder / "native" / pathlib.Path(name).stem
    stamp, now = objects / "fingerprint", fingerprint(compile_command)
    if module.exists() and stamp.exists() and stamp.read_text() == now:
        module.touch()  # newer than its sources, as make asks
        return module, False
    check_headers(compile_command)
    objects.mkdir(parents=True, exist_ok=True)
    module.parent.mkdir(parents=True, exist_ok=True)
    print(f"building the native backend for torch {torch.__version__} (a minute or two)", flush=True)
    whole, made = objects / "all.cpp", objects / "all.o"
    before = OF_THREADS if sanitizer == "thread" else ""
    whole.write_text(before + "".join(f'#include "{unit.relative_to(TREE)}"\n' for unit in units()))
    run([*compile_command, "-c", str(whole), "-o", str(made)])
    new = objects / name  # moved into its place whole, for whoever starts meanwhile
    run([*cxx, "-shared", "-pthread", *sanitize, "-o", str(new), str(made), *link_flags(torch)])
    os.replace(new, module)
    stamp.write_text(now)
    return module, True


def remove_stale(folder):
    """Modules of older sources, for a torch that is no longer this Python's or cannot be built for any more."""
    newest = max(path.stat().st_mtime for path in sources())
    for module in folder.glob("shoal_native-*.so"):
        if module.stat().st_mtime < newest:
            module.unlink()
            print(f"native backend: removed {module}, which was of older sources")


def main():
    parser = argparse.ArgumentParser()
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--build", type=pathlib.Path)
    chosen.add_argument("--folders", action="store_true")
    parser.add_argument("--sanitize", metavar="NAME")
    options = parser.parse_args()
    try:
        if options.folders:
            print(":".join(folders()))
            return
        folder = options.build.resolve()
        module, new = build(folder, options.sanitize)
        if new:
            print(f"native backend: {module}")
    except Missing as missing:
        print(f"native backend: not built: {missing}; the one in Python serves", file=sys.stderr)
        if options.folders:
            return
    remove_stale(folder / "lib")


if __name__ == "__main__":
    main()
