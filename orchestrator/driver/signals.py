"""SIGINT and SIGTERM only post an event (rule D8); a second one of them gives the default back its right."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Mailbox:
    """Holds the name of the signal that came, or None."""

    def __init__(self) -> None:
        self.signal: str | None = None


@contextmanager
def posted() -> Iterator[Mailbox]:
    """Inside the block the two signals are posted instead of raised."""
    box = Mailbox()
    watched = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in watched}

    def post(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        box.signal = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)

    for number in watched:
        signal.signal(number, post)
    try:
        yield box
    finally:
        for number in watched:
            signal.signal(number, before[number])
