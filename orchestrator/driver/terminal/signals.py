"""SIGINT, SIGTERM and SIGHUP (a terminal that was closed) only post an event (rule D8); a second one of the same kind
ends the process at once, with some last words; in a notebook it ends the cell. Before a run exists that could receive the
event, they interrupt what a command prepares."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import select
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

from orchestrator.common import locks
from orchestrator.common.processes import handle
from orchestrator.driver.terminal import notebook
from orchestrator.errors import Interrupted

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_raised: list[str] = []  # the signals that were, since `interrupt`


class PendingSignal:
    """Holds the name of the signal that came, or None. last_words: said when a second one ends the process."""

    def __init__(self) -> None:
        self.signal: str | None = None
        self.on_signal: Callable[[], object] = lambda: None  # called in the handler
        self.last_words = ""
        self._before = -1  # the descriptor that was told of signals before
        self._told: int | None = None  # the descriptor on which a thread is told of each further signal

    def watch(self) -> None:
        """From now on signals are posted here. Ray takes SIGTERM for itself when it starts, so this is called again
        after that."""
        if self.signal is None and threading.current_thread() is threading.main_thread():  # others get no signals
            _handle(self._post)

    def check(self) -> None:
        """Raises Interrupted if a signal came."""
        if self.signal is not None:
            raise Interrupted(f"interrupted by {self.signal}", code="run.interrupted")

    def _post(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.signal = signal.Signals(number).name
        self.on_signal()
        if number == signal.SIGINT and notebook.is_interactive():
            signal.signal(number, signal.default_int_handler)  # a second one ends the cell, and not the notebook
        elif not self._listens(number):
            _leave(number)

    def _listens(self, number: int) -> bool:
        """Whether a thread ends the process at the next signal of this kind, after the last words. The main thread may be held
        up elsewhere, and the system writes to a descriptor at once."""
        if not self.last_words or number == signal.SIGHUP:
            return False
        if self._told is None:
            try:
                heard, self._told = os.pipe()
            except OSError:
                return False
            os.set_blocking(self._told, False)
            self._before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
            # No `threading.Thread`, whose start takes a lock that the interrupted code may hold.
            _thread.start_new_thread(_end_at_second, (heard, number, self.last_words))
        return True

    def close(self) -> None:
        """Nobody listens any more."""
        if self._told is not None:
            signal.set_wakeup_fd(self._before)
            os.close(self._told)
            self._told = None


def _end_at_second(heard: int, first: int, words: str) -> None:
    """first: the signal that has come once."""
    came = Counter([first])
    while told := os.read(heard, 1):
        came[told[0]] += 1
        if told[0] in (signal.SIGINT, signal.SIGTERM) and came[told[0]] > 1:
            with contextlib.suppress(OSError, ValueError):
                if select.select([], [2], [], 0.0)[1]:  # a terminal that stands still is no reason to stay
                    os.write(2, words.encode())
            ctypes.CDLL(None).signal(told[0], 0)  # SIG_DFL: Python leaves that to its main thread
            os.kill(os.getpid(), told[0])
    os.close(heard)


def interrupt() -> None:
    """From now on signals raise KeyboardInterrupt with the signal's name: while no run exists that could be ended in
    order."""
    _raised.clear()
    if threading.current_thread() is threading.main_thread():
        _handle(_interrupt)


def raised() -> str | None:
    """The last signal that has raised KeyboardInterrupt since `interrupt`; None where none has."""
    return _raised[-1] if _raised else None


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    _handle(
        lambda another, _frame: _leave(another)
    )  # such as the SIGINT after Slurm's SIGTERM: one interruption is enough
    _leave(number)
    _raised.append(signal.Signals(number).name)
    raise KeyboardInterrupt(_raised[-1])


def _handle(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in WATCHED:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup` means it
            handle(number, handler)
    # A process that an actor of Ray starts inherits a blocked SIGINT.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)


def _leave(number: int) -> None:
    """Let a second signal of this kind end the process. Further SIGHUPs are ignored instead, since a closed terminal
    sends more than one: the shell to its jobs, and the system to the group."""
    signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)


@contextmanager
def posted() -> Iterator[PendingSignal]:
    """Within the block signals are posted; after it they are handled as before. Raises KeyboardInterrupt once more where code
    that was interrupted has swallowed it, as torch does whenever numpy cannot be imported."""
    if _raised:
        raise KeyboardInterrupt(_raised[-1])
    before = {number: signal.getsignal(number) for number in WATCHED}
    pending_signal = PendingSignal()
    pending_signal.watch()
    is_main = threading.current_thread() is threading.main_thread()
    try:
        with locks.heard(lambda: pending_signal.signal) if is_main else nullcontext():
            yield pending_signal
    finally:
        if is_main:
            pending_signal.close()
            for number, handler in before.items():
                signal.signal(number, handler)
