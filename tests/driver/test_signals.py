"""Signals are posted, not raised, and handled as before behind the block."""

from __future__ import annotations

import os
import signal

import pytest

from orchestrator.driver import signals


@pytest.mark.parametrize("number", signals.WATCHED)
def test_a_signal_is_posted_once_and_then_has_its_default(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with signals.posted() as mailbox:
        os.kill(os.getpid(), number)
        assert mailbox.signal == number.name
        assert signal.getsignal(number) == signal.SIG_DFL
        mailbox.watch()  # too late to be posted: the second one is meant to end the process
        assert signal.getsignal(number) == signal.SIG_DFL
    assert signal.getsignal(number) == before


def test_watching_again_takes_a_signal_back() -> None:
    with signals.posted() as mailbox:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        mailbox.watch()
        os.kill(os.getpid(), signal.SIGTERM)
        assert mailbox.signal == "SIGTERM"
