"""Calls of Ray that its head takes part in, of one that is there or gone."""

from __future__ import annotations

import ctypes
import gc
import re
import signal
import threading
import weakref
from pathlib import Path

import pytest
import ray

from orchestrator.cluster.ray_calls import shut_down, unless_gone


def test_a_call_is_over_before_what_follows() -> None:
    done: list[str] = []
    unless_gone(lambda: done.append("removed"), lambda: None)
    assert done == ["removed"]


def test_what_it_raises_is_ignored() -> None:
    unless_gone(lambda: [][0], lambda: None)


def test_a_ray_that_is_gone_is_not_asked_and_one_that_goes_is_not_waited_for() -> None:
    called, gone = threading.Event(), threading.Event()

    def never_answered() -> None:
        called.set()
        gone.wait()

    unless_gone(never_answered, lambda: "the head has ended")
    assert not called.is_set()
    unless_gone(never_answered, lambda: "the head has ended" if called.is_set() else None)
    assert called.is_set()
    gone.set()


def test_nothing_is_collected_while_ray_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread that allocates meanwhile, a reference of Ray would end this process."""

    class Held:
        def __init__(self) -> None:
            self.itself = self

    held = weakref.ref(Held())
    seen = list[tuple[bool, bool]]()
    monkeypatch.setattr(ray, "shutdown", lambda: seen.append((held() is None, gc.isenabled())))
    shut_down()
    assert seen == [(True, False)]
    assert gc.isenabled()


def test_sigterm_is_handled_as_before_when_ray_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray leaves it to the system, and a signal while a run's record is closed ended the driver without a word."""

    def is_handled() -> bool:
        caught = re.search(r"SigCgt:\s*(\w+)", Path("/proc/self/status").read_text())
        assert caught
        return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)

    monkeypatch.setattr(ray, "shutdown", lambda: ctypes.CDLL(None).signal(signal.SIGTERM, 0))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        shut_down()
        assert is_handled()
    finally:
        signal.signal(signal.SIGTERM, before)
