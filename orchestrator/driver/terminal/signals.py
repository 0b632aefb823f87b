"""SIGINT, SIGTERM and SIGHUP (a terminal that was closed) only post an event (rule D8); a second one of the same kind
ends the process at once. Before a run exists that could receive the event, they interrupt what a command prepares."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from orchestrator import locks

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class PendingSignal:
    """Holds the name of the signal that came, or None."""

    def __init__(self) -> None:
        self.signal: str | None = None
        self.on_signal: Callable[[], object] = lambda: None  # called in the handler

    def watch(self) -> None:
        """From now on signals are posted here. Ray takes SIGTERM for itself when it starts, so this is called again
        after that."""
        if self.signal is None and threading.current_thread() is threading.main_thread():  # others get no signals
            _handle(self._post)

    def _post(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.signal = signal.Signals(number).name
        self.on_signal()
        _leave(number)


def interrupt() -> None:
    """From now on signals raise KeyboardInterrupt with the signal's name: while no run exists that could be ended in
    order."""
    if threading.current_thread() is threading.main_thread():
        _handle(_interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    _handle(
        lambda another, _frame: _leave(another)
    )  # such as the SIGINT after Slurm's SIGTERM: one interruption is enough
    _leave(number)
    raise KeyboardInterrupt(signal.Signals(number).name)


def _handle(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in WATCHED:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup` means it
            signal.signal(number, handler)


def _leave(number: int) -> None:
    """Let a second signal of this kind end the process. Further SIGHUPs are ignored instead, since a closed terminal
    sends more than one: the shell to its jobs, and the system to the group."""
    signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)


@contextmanager
def posted() -> Iterator[PendingSignal]:
    """Within the block signals are posted; after it they are handled as before."""
    before = {number: signal.getsignal(number) for number in WATCHED}
    pending_signal = PendingSignal()
    pending_signal.watch()
    is_main = threading.current_thread() is threading.main_thread()
    try:
        with locks.heard(lambda: pending_signal.signal) if is_main else nullcontext():
            yield pending_signal
    finally:
        if is_main:
            for number, handler in before.items():
                signal.signal(number, handler)
