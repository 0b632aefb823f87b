"""Messages and bytes of a worker, by kind, counted where they are sent. The benchmark's own model plants the counters, so other
runs count nothing.

A payload in shared memory counts with its size, though only a notice of it travels.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Any, Final
from unittest.mock import patch

from orchestrator.cluster.actors import reporter
from orchestrator.comm.collectives import SUM, VOTES
from orchestrator.comm.transports import sockets
from orchestrator.comm.transports.frames import HEADER_BYTES
from orchestrator.comm.transports.socket_transport import SocketTransport

KINDS: Final = ("vote", "sum", "other", "report", "connection")
_BYTES: Final = 16 * len(KINDS)
Counts = Mapping[str, tuple[int, int]]  # by kind: messages and bytes


def begin(folder: Path) -> None:
    """Have this process count, in a file of its own there. It counts once, however often it is told."""
    header = vars(reporter)["REPORT"]
    if not isinstance(header, Struct):
        return
    folder.mkdir(exist_ok=True)
    with (folder / str(os.getpid())).open("w+b") as file:
        file.truncate(_BYTES)
        counts = memoryview(mmap.mmap(file.fileno(), _BYTES)).cast("q")

    def count(kind: str, size: int, number: int = 1) -> None:
        place = 2 * KINDS.index(kind)
        counts[place] += number
        counts[place + 1] += size

    sent, connected = SocketTransport.send, sockets.connect

    def send(transport: SocketTransport, peer: int, tag: Any, payload: Any, note: int = 0) -> None:
        kind = "vote" if tag.phase in VOTES else "sum" if tag.phase == SUM else "other"
        count(kind, payload.numel() * payload.itemsize + HEADER_BYTES)
        sent(transport, peer, tag, payload, note)

    def connect(listener: Any, rank: int, number: int, peers: Any, *more: Any) -> Any:
        count("connection", len(pickle.dumps(peers)), len(peers))
        return connected(listener, rank, number, peers, *more)

    class Report:
        size = header.size

        @staticmethod
        def pack(size: int, *more: Any) -> bytes:
            count("report", size + header.size)
            packed: bytes = header.pack(size, *more)
            return packed

    for owner, name, counting in (
        (SocketTransport, "send", send),
        (sockets, "connect", connect),
        (reporter, "REPORT", Report),
    ):
        patch.object(owner, name, counting).start()


def read(folder: Path, pids: list[int]) -> Counts:
    """The counts of these processes together, as far as they count."""
    found = [memoryview((folder / str(pid)).read_bytes()).cast("q") for pid in pids if (folder / str(pid)).exists()]
    return {
        kind: (sum(each[2 * place] for each in found), sum(each[2 * place + 1] for each in found))
        for place, kind in enumerate(KINDS)
    }
