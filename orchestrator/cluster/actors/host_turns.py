"""Turns that the members of a run on one host take, such as to have a whole model in memory.

A turn is the name of a socket in the abstract namespace. The kernel gives it to one process at a time and takes it back when
that ends, however it ends, and nothing is left in a file system. Nobody can tell the name who does not know the secret of the
run.

Source: "Abstract sockets" in unix(7).
"""

from __future__ import annotations

import errno
import hmac
import os
import socket
from collections.abc import Callable
from functools import partial

_held: set[socket.socket] = set()  # by this process


class HostTurns:
    """The turns of this host, by number."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def take(self, number: int) -> Callable[[], None] | None:
        """Take this turn, if nobody has it; returns what gives it back."""
        turn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            turn.bind(_address(self._secret, number))
        except OSError as error:
            turn.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        _held.add(turn)
        return partial(_give_back, turn)


def _address(secret: bytes, number: int) -> str:
    return "\0orchestrator-" + hmac.digest(secret, b"turn" + str(number).encode(), "sha256").hex()[:32]


def _give_back(turn: socket.socket) -> None:
    _held.discard(turn)
    turn.close()


def _forked() -> None:
    """A process that the user's code forks has the sockets too, and may outlive this one."""
    for turn in _held:
        turn.close()
    _held.clear()


os.register_at_fork(after_in_child=_forked)
