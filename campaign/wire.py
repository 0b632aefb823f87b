"""A wire between two hosts that does what it is told to their frames: it cuts, delays, loses, doubles and shuffles them.

    python -m campaign.wire plain NAME       in the namespace of a host, once
    python -m campaign.wire ONE OTHER        carries what comes in at one interface out at the other

It is for kernels without `sch_netem`. A line of JSON on its standard input says what it does from then on (`Rule`). Needs root.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import selectors
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass
from random import Random
from typing import Final

_ALL: Final = 0x0003  # ETH_P_ALL
_OUTGOING: Final = 4  # PACKET_OUTGOING: what this very program has sent
_FRAME_BYTES: Final = 1 << 16
_APART_S: Final = 0.02  # by which a frame that is shuffled comes late
_IOCTL: Final = 0x8946  # SIOCETHTOOL
_OFF: Final = (0x17, 0x1F, 0x24, 0x2C)  # ETHTOOL_STXCSUM, _STSO, _SGSO, _SGRO


@dataclass(frozen=True)
class Rule:
    """cut: directions in which nothing passes, 0 from the first interface and 1 from the second; jam: frames are held until the
    next rule; loss, doubles, shuffle: which part of the frames."""

    cut: tuple[int, ...] = ()
    jam: bool = False
    delay_s: float = 0.0
    loss: float = 0.0
    doubles: float = 0.0
    shuffle: float = 0.0

    def told(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def due(rule: Rule, direction: int, now: float, dice: Random) -> list[float]:
    """When a frame that comes in now goes out, once for each time that it does; infinity: it is held."""
    if direction in rule.cut or dice.random() < rule.loss:
        return []
    late = _APART_S if dice.random() < rule.shuffle else 0.0
    at = float("inf") if rule.jam else now + rule.delay_s + late
    return [at] * (2 if dice.random() < rule.doubles else 1)


def carry(names: list[str]) -> None:
    """Until the end of its standard input."""
    sockets = [_opened(name) for name in names]
    rule, dice = Rule(), Random(1)
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    with selectors.DefaultSelector() as selector:
        for direction, each in enumerate(sockets):
            selector.register(each, selectors.EVENT_READ, direction)
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        print("ready", flush=True)
        while True:
            first = waiting[0][0] if waiting else float("inf")
            patience = None if first == float("inf") else max(0.0, first - time.monotonic())
            for key, _ in selector.select(patience):
                if key.data is None:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    told = json.loads(line)
                    rule = Rule(**{**told, "cut": tuple(told["cut"])})
                    if not rule.jam:
                        latest = time.monotonic() + rule.delay_s  # of all that it holds, in the order in which it came
                        waiting = [(min(at, latest), number, way, frame) for at, number, way, frame in waiting]
                        heapq.heapify(waiting)
                    continue
                frame, (_, _, sort, *_) = sockets[key.data].recvfrom(_FRAME_BYTES)
                if sort == _OUTGOING:
                    continue
                for at in due(rule, key.data, time.monotonic(), dice):
                    count += 1
                    heapq.heappush(waiting, (at, count, key.data, frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, direction, frame = heapq.heappop(waiting)
                try:
                    sockets[1 - direction].send(frame)
                except OSError:  # the interface is down or its queue full: as lost on the way
                    continue


def _opened(name: str) -> socket.socket:
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    found.bind((name, 0))
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    return found


def make_plain(name: str) -> None:
    """Have this interface of this process's namespace make whole frames: this wire adds no checksum and divides none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in _OFF:
            value = (ctypes.c_uint32 * 2)(command, 0)
            fcntl.ioctl(any_socket, _IOCTL, struct.pack("16sP16x", name.encode(), ctypes.addressof(value)))


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        make_plain(sys.argv[2])
    else:
        carry(sys.argv[1:])
