"""A wire between hosts that does what it is told to their frames: it cuts, delays, loses, doubles and shuffles them.

    python -m campaign.wire plain NAME       in the namespace of a host, once
    python -m campaign.wire ONE OTHER...     carries what comes in at one interface out at that of whom it is for, or at all

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
_FLAPS_S: Final = (0.1, 1.5)  # for which a wire that comes and goes is there, or not
_IOCTL: Final = 0x8946  # SIOCETHTOOL
_OFF: Final = (0x17, 0x1F, 0x24, 0x2C)  # ETHTOOL_STXCSUM, _STSO, _SGSO, _SGRO


Way = tuple[int, int]  # from an interface to another, by their numbers


@dataclass(frozen=True)
class Rule:
    """cut: ways on which nothing passes; flaps: the whole wire comes and goes by itself; jam: frames are held until the next
    rule; loss, doubles, shuffle: which part of the frames."""

    cut: tuple[Way, ...] = ()
    flaps: bool = False
    jam: bool = False
    delay_s: float = 0.0
    loss: float = 0.0
    doubles: float = 0.0
    shuffle: float = 0.0

    def told(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def understood(line: str) -> Rule:
    told = json.loads(line)
    return Rule(**{**told, "cut": tuple((one, other) for one, other in told["cut"])})


class Flaps:
    """A wire that comes and goes: away from now on, then there, each for a time of chance."""

    def __init__(self, now: float, dice: Random) -> None:
        self._dice = dice
        self._is_away = True
        self._until = now + dice.uniform(*_FLAPS_S)

    def is_away(self, now: float) -> bool:
        """now: not before that of the last call."""
        while now >= self._until:
            self._is_away = not self._is_away
            self._until += self._dice.uniform(*_FLAPS_S)
        return self._is_away


def outlets(came: int, frame: bytes, count: int, seen_at: dict[bytes, int]) -> list[int]:
    """The interfaces, of so many, at which a frame that came in at `came` goes out: that of its addressee, or all others.
    seen_at: by address the interface behind which it is; learns that of the sender."""
    seen_at[frame[6:12]] = came
    known = seen_at.get(frame[:6])
    return [out for out in range(count) if out != came and known in (None, out)]


def due(rule: Rule, way: Way, now: float, dice: Random) -> list[float]:
    """When a frame that comes in now goes out, once for each time that it does; infinity: it is held."""
    if way in rule.cut or dice.random() < rule.loss:
        return []
    late = _APART_S if dice.random() < rule.shuffle else 0.0
    at = float("inf") if rule.jam else now + rule.delay_s + late
    return [at] * (2 if dice.random() < rule.doubles else 1)


def carry(names: list[str]) -> None:
    """Until the end of its standard input."""
    sockets = [_opened(name) for name in names]
    rule, dice = Rule(), Random(1)
    flaps: Flaps | None = None
    seen_at: dict[bytes, int] = {}
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    with selectors.DefaultSelector() as selector:
        for number, each in enumerate(sockets):
            selector.register(each, selectors.EVENT_READ, number)
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        print("ready", flush=True)
        while True:
            first = waiting[0][0] if waiting else float("inf")
            patience = None if first == float("inf") else max(0.0, first - time.monotonic())
            for key, _ in selector.select(patience):
                now = time.monotonic()
                if key.data is None:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    rule = understood(line)
                    flaps = Flaps(now, dice) if rule.flaps else None
                    if not rule.jam:
                        latest = now + rule.delay_s  # of all that it holds, in the order in which it came
                        waiting = [(min(at, latest), number, out, frame) for at, number, out, frame in waiting]
                        heapq.heapify(waiting)
                    continue
                frame, (_, _, sort, *_) = sockets[key.data].recvfrom(_FRAME_BYTES)
                if sort == _OUTGOING or (flaps is not None and flaps.is_away(now)):
                    continue
                for out in outlets(key.data, frame, len(sockets), seen_at):
                    for at in due(rule, (key.data, out), now, dice):
                        count += 1
                        heapq.heappush(waiting, (at, count, out, frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, out, frame = heapq.heappop(waiting)
                try:
                    sockets[out].send(frame)
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
