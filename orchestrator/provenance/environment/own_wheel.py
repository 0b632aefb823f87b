"""A wheel of this package, made of the source that is running: a rebuilt environment and a crate take it from there.

It is pure Python, so a wheel is a zip of its files with a list of their hashes. The same source makes the same bytes.
Source: packaging.python.org, "Binary distribution format".
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import zipfile
from pathlib import Path

from orchestrator.provenance.environment import packages

_NAME = "orchestrator"
_WHEEL = "Wheel-Version: 1.0\nGenerator: orchestrator\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can tell


def name_of(version: str | None) -> str:
    """The file's name. version: the recorded one; None where the package was not installed but found on the search path."""
    return f"{_NAME}-{version or '0'}-py3-none-any.whl"


def write(folder: Path, version: str | None) -> Path:
    """Write it into a folder."""
    wheel = folder / name_of(version)
    wheel.write_bytes(content(version))
    return wheel


def content(version: str | None) -> bytes:
    """The bytes of the wheel."""
    place = f"{_NAME}-{version or '0'}.dist-info"
    sources = [
        each for each in sorted(packages.PACKAGE.rglob("*")) if each.is_file() and "__pycache__" not in each.parts
    ]
    files = {f"{_NAME}/{each.relative_to(packages.PACKAGE).as_posix()}": each.read_bytes() for each in sources}
    files |= {f"{place}/METADATA": _metadata(version or "0").encode(), f"{place}/WHEEL": _WHEEL.encode()}
    files[f"{place}/entry_points.txt"] = f"[console_scripts]\n{_NAME} = {_NAME}.__main__:main\n".encode()
    rows = [f"{name},sha256={_hash(told)},{len(told)}\n" for name, told in files.items()]
    files[f"{place}/RECORD"] = ("".join(rows) + f"{place}/RECORD,,\n").encode()
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, told in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, told)
    return held.getvalue()


def _metadata(version: str) -> str:
    """With what it requires, as far as the installed package tells."""
    head = f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {version}\n"
    try:
        installed = importlib.metadata.distribution(_NAME)
    except importlib.metadata.PackageNotFoundError:
        return head
    return head + "".join(f"Requires-Dist: {each}\n" for each in installed.requires or [])


def _hash(told: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(told).digest()).rstrip(b"=").decode()
