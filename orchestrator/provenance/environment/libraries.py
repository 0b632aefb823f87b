"""The libraries of the system that torch was linked to: what `ldd` tells of it, as this process has them in memory.

From torch's extension module on, each ELF file names those that it needs; those that came with a package are told with it,
the others are hashed here. Libraries that were loaded beside them, or later, are no part of it, so every process of a machine
tells the same. Sources: the ELF specification (gABI, "Dynamic Section"), proc(5), dpkg-query(1).
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.common.distributions import is_installed

_MAPS = Path("/proc/self/maps")
_DPKG = Path("/var/lib/dpkg")
_NEEDED, _SONAME, _STRTAB = 1, 14, 5  # DT_*
_LOAD, _DYNAMIC = 1, 2  # PT_*


@dataclass(frozen=True)
class Elf:
    """The names in the header of a library. soname: the name by which others need it; its file's, where it has none."""

    soname: str
    needed: tuple[str, ...]


def of_system(first: Path, prefix: Path | None = None) -> dict[str, Path]:
    """Name -> file of the libraries outside of packages that `first` needs, directly or not. prefix: of an environment of
    conda, whose libraries are packages, too."""
    files = {file.resolve() for file in _mapped()} | {first.resolve()}
    known = {elf.soname: (file, elf) for file in sorted(files) if (elf := read(file)) is not None}
    start = next((elf for file, elf in known.values() if file == first.resolve()), None)
    found = {} if start is None else closure(start, {name: elf for name, (_, elf) in known.items()})
    return {name: known[name][0] for name in sorted(found) if not _is_packaged(known[name][0], prefix)}


def closure(start: Elf, known: Mapping[str, Elf]) -> set[str]:
    """Every name that is needed, of those that are known. Pure."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = [name for name in waiting.pop().needed if name in known and name not in found]
        found.update(new)
        waiting += [known[name] for name in new]
    return found


def sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def packages_of(files: Iterable[Path], dpkg: Path = _DPKG) -> dict[Path, str]:
    """File -> "package version", of those that Debian's package manager knows."""
    wanted = {name.encode(): file for file in files for name in _as_listed(file)}
    if not wanted or not dpkg.is_dir():
        return {}
    owners: dict[Path, str] = {}
    for listed in (dpkg / "info").glob("lib*.list"):
        lines = set(listed.read_bytes().split(b"\n"))
        owners.update({wanted[name]: listed.name.removesuffix(".list") for name in lines & wanted.keys()})
    versions = _versions(dpkg, {owner.partition(":")[0] for owner in owners.values()})
    return {file: f"{owner} {versions.get(owner.partition(':')[0], '')}".strip() for file, owner in owners.items()}


def read(file: Path) -> Elf | None:
    """The header of an ELF file of 64 bits; None for anything else."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as image:
            return _read(image, file.name)
    except (OSError, ValueError, struct.error):
        return None


def _mapped() -> Iterator[Path]:
    """The libraries in the memory of this process."""
    lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines() if _MAPS.exists() else []
    names = {line.split(maxsplit=5)[5] for line in lines if ".so" in line and line.count("/")}
    return (Path(name) for name in names if name.startswith("/"))


def _read(image: mmap.mmap, name: str) -> Elf | None:
    if image[:4] != b"\x7fELF" or image[4] != 2:
        return None
    order = "<" if image[5] == 1 else ">"
    (start,) = struct.unpack_from(f"{order}Q", image, 32)
    size, count = struct.unpack_from(f"{order}HH", image, 54)
    headers = [struct.unpack_from(f"{order}IIQQQQQQ", image, start + size * each) for each in range(count)]
    loads = [(virtual, offset, length) for kind, _, offset, virtual, _, length, *_ in headers if kind == _LOAD]
    entries = [
        struct.unpack_from(f"{order}QQ", image, offset + at)
        for kind, _, offset, _, _, length, *_ in headers
        if kind == _DYNAMIC
        for at in range(0, length, 16)
    ]
    strings = next((_offset(value, loads) for tag, value in entries if tag == _STRTAB), None)
    if strings is None:
        return Elf(name, ())
    texts = [(tag, _text(image, strings + value)) for tag, value in entries if tag in (_NEEDED, _SONAME)]
    own = next((text for tag, text in texts if tag == _SONAME), name)
    return Elf(own, tuple(text for tag, text in texts if tag == _NEEDED))


def _offset(address: int, loads: Iterable[tuple[int, int, int]]) -> int | None:
    """The position of an address in the file."""
    places = (offset + address - virtual for virtual, offset, length in loads if virtual <= address < virtual + length)
    return next(places, None)


def _text(image: mmap.mmap, at: int) -> str:
    return image[at : image.find(b"\0", at)].decode(errors="replace")


def _is_packaged(file: Path, prefix: Path | None) -> bool:
    return is_installed(str(file)) or (prefix is not None and file.is_relative_to(prefix))


def _as_listed(file: Path) -> list[str]:
    """/lib is /usr/lib where they are merged, and lists may say either."""
    name = str(file)
    return [name, name.removeprefix("/usr")]


def _versions(dpkg: Path, names: set[str]) -> dict[str, str]:
    try:
        status = (dpkg / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = re.findall(r"^Package: (\S+)\n(?:[^\n]+\n)*?Version: (\S+)$", status, re.MULTILINE)
    return {name: version for name, version in found if name in names}
