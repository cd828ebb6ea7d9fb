"""Builds the wheel for pip, with nothing but Python: pip needs no network for it (PEP 517).

The library is not in the wheel: the package finds libshoal as README.md says. `make wheel` makes one
that has it (scripts/packages/wheel.py).

    wheel_builder.py FOLDER   what `make install` has beside the package in FOLDER: who it is, and its entry points
"""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
VERSION = re.search(r'__version__ = "([^"]+)"', (HERE / "shoal/__init__.py").read_text()).group(1)
INFO = f"shoal-{VERSION}.dist-info"
SUMMARY = "Gradient reduction by daemons on the CPUs: the PyTorch backend of shoal"

METADATA = """Metadata-Version: 2.1
Name: {project}
Version: {version}
Summary: {summary}
License: Apache-2.0
Requires-Python: >=3.9
"""
WHEEL = """Wheel-Version: 1.0
Generator: shoal
Root-Is-Purelib: {pure}
Tag: {tag}
"""
ANY = "py3-none-any"
# torch calls these: the first group at the end of `import torch`, the second (after 2.13) when a backend's name is
# asked for that it does not know.
ENTRY_POINTS = """[torch.backends]
shoal = shoal._autoload:register

[torch.distributed.backends]
shoal = shoal._autoload:register
"""


def write_info(folder):
    """The entry points of a package that no pip installs. Without RECORD, so that pip leaves it alone."""
    info = pathlib.Path(folder) / INFO
    info.mkdir(parents=True, exist_ok=True)
    info.chmod(0o755)
    metadata = METADATA.format(project="shoal", version=VERSION, summary=SUMMARY)
    for name, text in {"METADATA": metadata, "INSTALLER": "make\n", "entry_points.txt": ENTRY_POINTS}.items():
        (info / name).write_text(text)
        (info / name).chmod(0o644)
    return info


def write_wheel(folder, project, summary, files, tag=ANY, executables=(), entry_points=""):
    """A wheel of this version with these files, {path: bytes}; returns its name. The paths in executables
    are installed as programs; entry_points is a file that says which commands there are."""
    name = f"{project.replace('-', '_')}-{VERSION}"
    metadata = METADATA.format(project=project, version=VERSION, summary=summary)
    info = f"{name}.dist-info"
    about = WHEEL.format(tag=tag, pure=str(tag == ANY).lower())
    files = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": about.encode()}
    if entry_points:
        files[f"{info}/entry_points.txt"] = entry_points.encode()
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    name += f"-{tag}.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files.items():
            # A fixed date gives the same bytes whenever the wheel is built.
            entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if path in executables else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    sources = sorted(HERE.glob("shoal/**/*.py"))
    files = {path.relative_to(HERE).as_posix(): path.read_bytes() for path in sources}
    return write_wheel(wheel_directory, "shoal", SUMMARY, files, entry_points=ENTRY_POINTS)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    files = {"shoal.pth": f"{HERE}\n".encode()}
    return write_wheel(wheel_directory, "shoal", SUMMARY, files, entry_points=ENTRY_POINTS)


if __name__ == "__main__":
    write_info(sys.argv[1])
