#!/usr/bin/env python3
"""Makes a wheel that has a bundle inside: programs, libshoal, and the libraries that they need.

    wheel.py [--native FOLDER] BUNDLE FOLDER [NOTICES]    the wheel is written to FOLDER, whose other wheels of shoal
                              are removed; NOTICES: a folder with the licences of libraries that are not Debian's;
                              --native: a folder whose native backends of PyTorch go in too, of which the package
                              loads the one for its torch and Python
    wheel.py --check FILE     what a wheel or a bundle needs of the system, and an error where that is
                              more than its name says

The name says the oldest glibc: the newest symbol version that any file in it asks for. A library that is needed and is
not in the bundle must be one that every system with that glibc has.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "worker" / "python"))

import wheel_builder  # noqa: E402

PROGRAMS = ("shoald", "shoalctl", "shoalrun", "shoalperf")
# glibc's own.
SYSTEM = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so\.\d+$")
NATIVE = "shoal_native-*.so"
# These libraries are loaded when a native backend is: torch has loaded them.
TORCHS = re.compile(r"(libtorch|libtorch_cpu|libtorch_python|libc10)\.so$|(libstdc\+\+|libgcc_s)\.so\.\d+$")


def fail(text):
    sys.exit(f"wheel: {text}")


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def glibc_needed(folder):
    """(major, minor), and the file that asks for it. Fails where a library is nowhere."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and is_elf(path)]
    here, newest = {path.name for path in files}, ((0, 0), "")
    if not files:
        fail(f"{folder} has no programs")
    for path in files:
        text = output("readelf", "--wide", "--dynamic", "--version-info", str(path))
        for needed in re.findall(r"\(NEEDED\).*\[(.*?)\]", text):
            of_torch = path.match(NATIVE) and TORCHS.match(needed)
            if needed not in here and not SYSTEM.match(needed) and not of_torch:
                fail(f"{path.name} needs {needed}, which is not in the bundle")
        for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", text):
            newest = max(newest, ((int(major), int(minor)), path.name))
        if "GLIBC_PRIVATE" in text:
            fail(f"{path.name} uses glibc's private symbols")
    return newest


def collect(bundle, folder, native=None):
    """The programs and the libraries, without symbols for debuggers, into bin and lib of a folder. native: where
    native backends are, which go beside libshoal."""
    for path in sorted(native.glob(NATIVE)) if native else ():
        copy(path, folder / "lib" / path.name)
    for name in PROGRAMS:
        copy(bundle / "bin" / name, folder / "bin" / name)
    for path in sorted((bundle / "lib").iterdir()):
        # By the name that the loader looks for; links are files in a wheel.
        soname = re.search(r"\(SONAME\).*\[(.*?)\]", output("readelf", "--wide", "--dynamic", str(path)))
        if soname and not (folder / "lib" / soname[1]).exists():
            copy(path, folder / "lib" / soname[1])


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "--strip-unneeded", "-o", str(target), str(source.resolve())], check=True)


def notices(libraries):
    """{package: its copyright} of Debian's libraries among them."""
    patterns = [f"*/{name}" for name in libraries]
    try:
        said = subprocess.run(["dpkg", "-S", *patterns], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:  # no Debian
        return {}
    packages = {line.split(":")[0] for line in said.stdout.splitlines()}
    paths = {package: pathlib.Path("/usr/share/doc", package, "copyright") for package in packages}
    return {package: path.read_bytes() for package, path in paths.items() if path.exists()}


def make(bundle, folder, more_notices=None, native=None):
    with tempfile.TemporaryDirectory(prefix="shoal-wheel-") as temporary:
        inside = pathlib.Path(temporary)
        collect(bundle, inside, native)
        natives = [path.name for path in inside.glob(f"lib/{NATIVE}")]
        (major, minor), who = glibc_needed(inside)
        for package, text in notices(path.name for path in (inside / "lib").iterdir()).items():
            (inside / "notices").mkdir(exist_ok=True)
            (inside / "notices" / package).write_bytes(text)
        if more_notices:
            shutil.copytree(more_notices, inside / "notices", dirs_exist_ok=True)
        place = "shoal/_bundle"
        files = {
            path.relative_to(wheel_builder.HERE).as_posix(): path.read_bytes()
            for path in sorted(wheel_builder.HERE.glob("shoal/**/*.py"))
        }
        for path in sorted(inside.rglob("*")):
            if path.is_file():
                files[f"{place}/{path.relative_to(inside).as_posix()}"] = path.read_bytes()
        commands = "".join(f"{name} = shoal.programs:{name}\n" for name in PROGRAMS)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("shoal-*.whl"):
            old.unlink()
        name = wheel_builder.write_wheel(
            folder,
            "shoal",
            wheel_builder.SUMMARY,
            files,
            tag=f"py3-none-manylinux_{major}_{minor}_x86_64",
            executables={f"{place}/bin/{program}" for program in PROGRAMS},
            entry_points=f"[console_scripts]\n{commands}\n{wheel_builder.ENTRY_POINTS}",
        )
    bytes_ = os.path.getsize(folder / name)
    print(f"{folder / name}: {bytes_ / 2**20:.1f} MiB, for glibc {major}.{minor} or newer, as {who} needs it")
    print(f"native backends: {', '.join(sorted(natives)) or 'none, the one in Python serves'}")


def check(path):
    with tempfile.TemporaryDirectory(prefix="shoal-wheel-") as temporary:
        folder = path
        if path.is_file():
            folder = pathlib.Path(temporary)
            zipfile.ZipFile(path).extractall(folder)
        needed, who = glibc_needed(folder)
    named = re.search(r"manylinux_(\d+)_(\d+)_x86_64", path.name)
    print(f"{path.name}: {who} needs glibc {needed[0]}.{needed[1]}")
    if named and tuple(map(int, named.groups())) < needed:
        fail(f"its name says {named[1]}.{named[2]}")


def main():
    arguments, native = sys.argv[1:], None
    if arguments[:1] == ["--native"] and len(arguments) > 1:
        native, arguments = pathlib.Path(arguments[1]), arguments[2:]
    if len(arguments) == 2 and arguments[0] == "--check":
        check(pathlib.Path(arguments[1]))
    elif len(arguments) in (2, 3):
        make(*map(pathlib.Path, arguments), native=native)
    else:
        fail(f"usage: {sys.argv[0]} [--native FOLDER] BUNDLE FOLDER [NOTICES] | --check FILE")


if __name__ == "__main__":
    main()
