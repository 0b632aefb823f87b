"""Signals are posted, not raised, and handled as before behind the block."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

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


def test_in_a_notebook_a_second_one_ends_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", "In [1]: ", raising=False)
    before = signal.getsignal(signal.SIGINT)
    with signals.posted() as pending_signal:
        pending_signal.last_words = "of a command, which ends with its process"
        os.kill(os.getpid(), signal.SIGINT)
        assert pending_signal.signal == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_watching_again_takes_a_signal_back() -> None:
    with signals.posted() as pending_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        pending_signal.watch()
        os.kill(os.getpid(), signal.SIGTERM)
        assert pending_signal.signal == "SIGTERM"


@pytest.mark.parametrize("number", signals.WATCHED)
def test_one_that_was_blocked_when_this_process_began_is_heard(number: signal.Signals) -> None:
    """Threads of Ray block SIGINT, and what they start inherits that, such as a driver that takes over on another machine."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.WATCHED)
    try:
        with signals.posted() as pending_signal:
            os.kill(os.getpid(), number)
            assert pending_signal.signal == number.name
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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


def test_an_interrupt_that_other_code_has_swallowed_is_raised_once_more() -> None:
    """torch takes it for a reason why numpy cannot be imported, and goes on without."""
    before = {number: signal.getsignal(number) for number in signals.WATCHED}
    try:
        signals.interrupt()
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"), signals.posted():
            pass
    finally:
        signals.interrupt()
        for number, handler in before.items():
            signal.signal(number, handler)
    with signals.posted() as pending_signal:
        assert pending_signal.signal is None


_TWICE = """
import os, signal, sys, threading
from orchestrator.driver.terminal import signals
with signals.posted() as pending:
    pending.last_words = "resume=0123\\n"
    os.kill(os.getpid(), signal.{first})
    print(pending.signal, flush=True)
    if "{first}" != "{second}":
        os.kill(os.getpid(), signal.{second})
        print(pending.signal, flush=True)
    threading.Timer(0.0, os.kill, (os.getpid(), signal.{second})).start()
    while True:
        signal.pause()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM"), ("SIGINT", "SIGTERM")])
def test_a_second_signal_ends_the_process_after_its_last_words(first: str, second: str) -> None:
    """One of each kind is none, such as the SIGINT after Slurm's SIGTERM."""
    script = _TWICE.format(first=first, second=second)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (-signal.Signals[second], "resume=0123\n")
    assert done.stdout.split() == list(dict.fromkeys((first, second)))


@pytest.mark.slow
def test_last_words_wait_for_nobody() -> None:
    """The main thread stands in a call of C that no signal ends, and the terminal takes nothing."""
    script = (
        "import ctypes, os, signal, sys, threading\n"
        "from orchestrator.driver.terminal import signals\n"
        "with signals.posted() as pending:\n"
        "    pending.last_words = 'resume=0123'\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.set_blocking(2, False)\n"
        "    try:\n"
        "        while True: os.write(2, bytes(4096))\n"
        "    except BlockingIOError: os.set_blocking(2, True)\n"
        "    print('full', flush=True)\n"
        "    lock = ctypes.create_string_buffer(64)\n"
        "    ctypes.CDLL(None).pthread_mutex_lock(lock)\n"
        "    ctypes.CDLL(None).pthread_mutex_lock(lock)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "full\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    process.communicate()


def test_behind_the_block_nobody_is_told_of_signals_any_more() -> None:
    before = signal.set_wakeup_fd(-1)
    with signals.posted() as pending_signal:
        pending_signal.last_words = "resume=0123"
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.set_wakeup_fd(before) == -1
