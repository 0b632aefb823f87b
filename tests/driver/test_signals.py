"""Signals are posted, not raised, and handled as before behind the block."""

from __future__ import annotations

import os
import signal

import pytest

from orchestrator.driver.terminal import signals


@pytest.mark.parametrize(
    ("number", "then"),
    [(signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_IGN)],
)
def test_a_signal_is_posted_once(number: signal.Signals, then: signal.Handlers) -> None:
    """A second one is meant to end the process, but for a terminal that is closed: it hangs up more than once."""
    before = signal.getsignal(number)
    with signals.posted() as pending_signal:
        os.kill(os.getpid(), number)
        assert pending_signal.signal == number.name
        assert signal.getsignal(number) == then
        pending_signal.watch()  # too late to be posted
        assert signal.getsignal(number) == then
    assert signal.getsignal(number) == before


def test_watching_again_takes_a_signal_back() -> None:
    with signals.posted() as pending_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        pending_signal.watch()
        os.kill(os.getpid(), signal.SIGTERM)
        assert pending_signal.signal == "SIGTERM"


def test_nohup_is_obeyed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.posted() as pending_signal:
            os.kill(os.getpid(), signal.SIGHUP)
            assert pending_signal.signal is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_interrupt_of_what_is_prepared_ends_the_process() -> None:
    """By its default, and not by a traceback from the place where the first one is told of."""
    before = {number: signal.getsignal(number) for number in signals.WATCHED}
    try:
        signals.interrupt()
        with pytest.raises(KeyboardInterrupt, match="SIGINT"):
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_interrupt_of_another_kind_after_the_first_is_the_same_one() -> None:
    """A job of Slurm gets SIGTERM with all its processes, and SIGINT from its script."""
    before = {number: signal.getsignal(number) for number in signals.WATCHED}
    try:
        signals.interrupt()
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
