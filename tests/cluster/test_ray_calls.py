"""Calls of Ray that its head takes part in, of one that is there or gone."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from orchestrator.cluster.ray_calls import Answers, unless_gone


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


def test_answers_that_are_still_to_come_are_waited_for() -> None:
    answers, taken = Answers(), list[Any]()
    futures = [Future[str]() for _ in range(2)]
    for future in futures:
        answers.expect(SimpleNamespace(future=lambda future=future: future), taken.append)
    waiting = threading.Thread(target=answers.wait, args=(lambda: None,))
    waiting.start()
    futures[0].set_result("gone")
    assert waiting.is_alive()
    futures[1].set_exception(ValueError())
    waiting.join()
    assert taken == futures


def test_of_a_ray_in_trouble_no_answer_is_waited_for() -> None:
    answers = Answers()
    answers.expect(SimpleNamespace(future=Future), lambda _: None)
    answers.wait(lambda: "its head has ended")
