"""Builds the wheel for pip, with nothing but Python: pip needs no network for it (PEP 517).

The library is not in the wheel: the package finds libshoal as README.md says.
"""

import base64
import hashlib
import pathlib
import re
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
VERSION = re.search(r'__version__ = "([^"]+)"', (HERE / "shoal/__init__.py").read_text()).group(1)
INFO = f"shoal-{VERSION}.dist-info"

METADATA = f"""Metadata-Version: 2.1
Name: shoal
Version: {VERSION}
Summary: Gradient reduction by daemons on the CPUs: the PyTorch backend of shoal
License: Apache-2.0
Requires-Python: >=3.9
"""
WHEEL = """Wheel-Version: 1.0
Generator: shoal
Root-Is-Purelib: true
Tag: py3-none-any
"""


def _write(folder, files):
    name = f"shoal-{VERSION}-py3-none-any.whl"
    files = {**files, f"{INFO}/METADATA": METADATA.encode(), f"{INFO}/WHEEL": WHEEL.encode()}
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{INFO}/RECORD"] = (record + f"{INFO}/RECORD,,\n").encode()
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files.items():
            # The same bytes whenever it is built.
            wheel.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), content)
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    sources = sorted(HERE.glob("shoal/**/*.py"))
    files = {path.relative_to(HERE).as_posix(): path.read_bytes() for path in sources}
    return _write(wheel_directory, files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _write(wheel_directory, {"shoal.pth": f"{HERE}\n".encode()})
