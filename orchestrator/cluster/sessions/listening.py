"""The addresses at which processes of this machine listen, as the kernel tells it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_LISTEN = "0A"
_SOCKET = "socket:["


def beyond_loopback() -> list[str]:
    """The addresses of other networks than the loopback at which descendants of this process listen, as "name of the process
    at address:port". Entries that cannot be read, such as processes that have ended, are passed over."""
    return sorted(
        f"{_name(pid)} at {places[inode]}"
        for places in (_open(),)
        for pid in _descendants(os.getpid())
        for inode in _sockets(pid) & places.keys()
    )


def _open() -> dict[str, str]:
    """By inode: the sockets that listen beyond the loopback."""
    found = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                address, _, port = fields[1].partition(":")
                if fields[3] == _LISTEN and not _is_loopback(at := _address(address)):
                    found[fields[9]] = f"{at}:{int(port, 16)}"
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel prints words of 32 bits in the order of the machine."""
    words = (int(text[start : start + 8], 16) for start in range(0, len(text), 8))
    return ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))


def _is_loopback(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _descendants(process: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in map(int, (task / "children").read_text(encoding="ascii").split()):
                    yield child
                    yield from _descendants(child)


def _sockets(process: int) -> set[str]:
    """Their inodes."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(descriptor)  # noqa: PTH115
                if target.startswith(_SOCKET):
                    found.add(target[len(_SOCKET) : -1])
    return found


def _name(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text(encoding="utf-8", errors="replace").strip()
    return str(process)
