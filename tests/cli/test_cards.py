"""The words of `doctor` about GPUs, with doubles of `nvidia-smi` and of the process that tries them, which answers, hangs or
ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from orchestrator.cli.cards import CardReport, Tried, heard, report
from orchestrator.common.child import Messages
from orchestrator.numerics import cuda
from orchestrator.provenance.environment import cards
from orchestrator.provenance.environment.cards import Card, CardsUnknown, Lost, Seen

FIRST = Card(0, "GPU-a", "NVIDIA H100", "570.86", 80 << 30, "9.0", mig=False, ecc_errors=2)
SECOND = Card(1, "GPU-b", "NVIDIA GB10", "570.86", 0, "12.1", mig=True, ecc_errors=None, parts=("MIG-1",))
ALL: list[tuple[str, Any]] = [
    ("cards", ["GPU-b", "GPU-a"]),
    ("peers", [[0, 1], [1, 0]]),
    ("compiles", None),
    ("shares", "CUDA_ERROR_NOT_SUPPORTED"),
    ("compiles", None),
    ("shares", None),
]


class Double:
    """Says so much, and then hangs, or ends."""

    def __init__(self, said: Sequence[tuple[str, Any]], *, ends: bool) -> None:
        theirs, ours = os.pipe()
        read, self._write = os.pipe()
        self.messages = Messages(os.fdopen(read, "rb"), os.fdopen(ours, "wb"))
        self._pipes = [os.fdopen(theirs, "rb"), os.fdopen(self._write, "wb")]
        self.left: str | None = None
        DOUBLES.append(self)
        there = Messages(self._pipes[0], self._pipes[1])  # type: ignore[arg-type]
        for each in said:
            there.send(json.dumps(each).encode())
        if ends:
            there.end()

    def kill(self) -> None:
        self.left = "killed"

    def close(self) -> None:
        self.left = "closed"

    def dismiss(self) -> None:
        """A process that still receives gets the end of the file."""
        for pipe in self._pipes:
            pipe.close()
        self.messages.close()


DOUBLES: list[Double] = []


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cuda, "build_problem", lambda: None)
    monkeypatch.setattr(cards, "look", lambda: Seen([FIRST, SECOND], []))
    yield
    while DOUBLES:
        DOUBLES.pop().dismiss()


def test_all_that_was_tried_is_told_by_uuid() -> None:
    found = report(lambda: Double(ALL, ends=True))
    assert found.as_text() == [
        "GPU 0 (NVIDIA H100, GPU-a): 80.0 GiB, driver 570.86, compute capability 9.0, ECC 2 uncorrectable errors",
        "  kernels compile; memory is shared",
        "GPU 1 (NVIDIA GB10, GPU-b): 0.0 GiB, driver 570.86, compute capability 12.1, ECC not counted, MIG devices MIG-1",
        "  kernels compile; no sharing: CUDA_ERROR_NOT_SUPPORTED",
        "GPUs that map each other's memory, by torch's numbers: 0-1, 1-0",
    ]
    told = json.loads(json.dumps(found.as_dict()))
    assert (told["peers"], told["trouble"], told["unknown"]) == ([[0, 1], [1, 0]], None, None)
    assert [(card["uuid"], card["shares"]) for card in told["cards"]] == [
        ("GPU-a", None),
        ("GPU-b", "CUDA_ERROR_NOT_SUPPORTED"),
    ]


UNDER_WAY = ["what torch sees", "peers", "compiling kernels of card 0", "sharing memory of card 0"]
UNDER_WAY += ["compiling kernels of card 1", "sharing memory of card 1"]


@pytest.mark.parametrize("count", range(len(ALL)))
@pytest.mark.parametrize("ends", [False, True])
def test_who_hangs_or_dies_is_left_behind_with_the_step_that_was_under_way(count: int, ends: bool) -> None:
    double = Double(ALL[:count], ends=ends)
    tried = heard(double, 0.05, 0.05)
    why = "the process that tried ended" if ends else "did not answer in 0.05 s"
    assert tried.trouble == f"{why}: {UNDER_WAY[count]}"
    assert double.left == ("closed" if ends else "killed")
    assert CardReport([FIRST], tried=tried).as_text()[-1] == f"GPUs: {tried.trouble}"


def test_what_cuda_said_as_it_ended_the_trials_is_told() -> None:
    tried = heard(Double([("failed", "Error 802: system not yet initialized")], ends=True))
    assert tried.trouble == "the process that tried ended: what torch sees: Error 802: system not yet initialized"


def test_cards_that_torch_does_not_see_are_not_tried() -> None:
    tried = heard(Double([("cards", []), ("peers", [])], ends=True))
    assert tried.trouble == "nothing was tried, since torch sees none (CUDA_VISIBLE_DEVICES, driver)"


def test_where_no_torch_for_cards_is_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "build_problem", lambda: "torch is built without CUDA")
    found = report(lambda: Double([], ends=True))
    assert found.tried == Tried(trouble="nothing was tried: torch is built without CUDA")
    assert len(found.as_text()) == 3


@pytest.mark.parametrize("given", ["", "-1", "7", "abc"])
def test_a_variable_that_hides_all_cards_is_told_and_nothing_is_tried(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "build_problem", lambda: None)
    monkeypatch.setattr(cards, "look", lambda: Seen([FIRST], []))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    tried = report(lambda: Double([], ends=True)).tried
    assert tried is not None
    assert (tried.trouble or "").startswith("nothing was tried: run.device: CUDA_VISIBLE_DEVICES=")


def test_a_card_that_is_lost_is_told_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "look", lambda: Seen([FIRST], [Lost("0000:3b:00.0", "GPU is lost.")]))
    found = report(lambda: Double([("cards", ["GPU-a"]), ("peers", [])], ends=True))
    assert "GPU at 0000:3b:00.0 does not answer on its bus: GPU is lost." in found.as_text()
    assert found.as_dict()["lost"] == [{"place": "0000:3b:00.0", "why": "GPU is lost."}]


def fail(error: Exception) -> Seen:
    raise error


def test_without_cards_or_their_tool_little_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "look", lambda: fail(FileNotFoundError()))
    assert report().as_text() == []
    assert report().as_dict()["cards"] == []
    monkeypatch.setattr(cards, "look", lambda: fail(CardsUnknown("nvidia-smi did not answer in 10 s", hangs=True)))
    assert report().as_text() == ["GPUs: nvidia-smi did not answer in 10 s"]
    monkeypatch.setattr(cards, "look", lambda: Seen([], []))
    assert report().as_text() == ["GPUs: nvidia-smi finds none"]
