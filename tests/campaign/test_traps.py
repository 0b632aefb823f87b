"""A moment that is armed strikes whoever comes there first, once; who may not be struck passes by; and a gate is waited at."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from campaign import moments, traps
from campaign.kinds import process
from campaign.moments import Words
from campaign.traps import Traps


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """In place of being struck."""
    found: list[tuple[str, float]] = []
    monkeypatch.setattr(process, "strike", lambda kind, hold_s: found.append((kind, hold_s)))
    monkeypatch.setattr(process, "send", lambda name, pid: found.append((name, pid)))
    return found


def armed(folder: Path, **more: Any) -> Traps:
    fault: dict[str, Any] = {
        "number": 1,
        "kind": "SIGKILL",
        "skip": 0,
        "hold_s": 0.5,
        "pids": [],
        "spared": [],
        "then": None,
        "then_at": None,
    }
    (folder / "fault-1.json").write_text(json.dumps({**fault, **more}))
    found = Traps(folder)
    found.in_driver = False  # though this process has imported what a driver does
    found.words.arm("vote", 1)
    return found


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_whoever_is_there_first_is_struck_once(tmp_path: Path, struck: list[Any]) -> None:
    one, other = armed(tmp_path), armed(tmp_path)
    for traps_of in (one, other):
        traps_of.hit("sum", 3)
    one.hit("vote", 4)
    other.words.arm("vote", 1)  # as if it had looked at the same instant
    other.hit("vote", 4)
    assert struck == [("SIGKILL", 0.5)]
    (told,) = log(tmp_path)
    assert (told["fault"], told["kind"], told["moment"], told["step"], told["victim"]) == (
        1,
        "SIGKILL",
        "vote",
        4,
        os.getpid(),
    )


def test_who_may_not_be_struck_passes_by(tmp_path: Path, struck: list[Any]) -> None:
    found = armed(tmp_path, spared=[1, os.getpid()])
    found.hit("vote", 4)
    assert struck == []
    armed(tmp_path, spared=[1]).hit("vote", 4)
    assert len(struck) == 1


def test_so_many_times_the_moment_passes_by(tmp_path: Path, struck: list[Any]) -> None:
    found = armed(tmp_path, skip=2)
    for _ in range(2):
        found.hit("vote", 4)
    assert struck == []
    found.hit("vote", 4)
    assert len(struck) == 1


def test_a_partner_waits_from_then_on(tmp_path: Path, struck: list[Any]) -> None:
    found = armed(tmp_path, then=2, then_at="state transfer")
    assert found.words.armed(moments.NAMES.index("state transfer")) == moments.NOTHING
    found.hit("vote", 4)
    assert found.words.armed(moments.NAMES.index("state transfer")) == 2
    assert len(struck) == 1


def test_the_driver_strikes_a_worker_by_a_signal_or_has_it_strike_itself(tmp_path: Path, struck: list[Any]) -> None:
    found = armed(tmp_path, pids=[7])
    found.in_driver = True
    found.hit("vote", 4)
    assert struck == [("SIGKILL", 7)]
    (tmp_path / "claim-1").unlink()
    found = armed(tmp_path, kind="os._exit", pids=[os.getpid()])
    found.in_driver = True
    found.hit("vote", 4)
    assert len(struck) == 1
    number = found.words.armed(moments.NAMES.index(moments.FROM_OUTSIDE))
    assert number == -1
    found.obey(1, 5)
    assert struck[1:] == [("os._exit", 0.5)]


def test_who_drives_is_struck_where_a_worker_is(tmp_path: Path, struck: list[Any]) -> None:
    found = armed(tmp_path, kind="driver SIGKILL")
    found.words.driver = 77
    found.hit("vote", 4)
    assert struck == [("SIGKILL", 77)]


def test_a_gate_is_waited_at_alive(tmp_path: Path) -> None:
    words, found = Words(tmp_path), Traps(tmp_path)
    words.gate = 3
    beats: list[int] = []

    def live() -> None:
        beats.append(1)
        words.gate = 4

    found.wait_at_gate(2, live)
    assert not beats
    begun = time.monotonic()
    found.wait_at_gate(3, live)
    assert beats
    assert time.monotonic() - begun < 60


def test_processes_share_the_words(tmp_path: Path) -> None:
    one, other = Words(tmp_path), Words(tmp_path)
    one.committed(5, 10)
    one.committed(4, 20)
    assert (other.steps, other.committed_ns) == (5, 10)
    other.begin()
    assert one.steps == 0


def test_only_processes_under_test_have_traps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(moments.VARIABLE, raising=False)
    assert traps.installed() is None
    assert threading.active_count() >= 1


def test_phases_are_those_of_the_engine() -> None:
    """The numbers that messages carry, by the names that the engine has for them."""
    from orchestrator.comm import collectives
    from orchestrator.worker.pipeline_parallel import messages

    of = traps._OF_PHASE
    assert of[collectives.VOTE] == "vote"
    assert {
        of[phase] for phase in (collectives.SUM, collectives.LATTICE, collectives.LATTICE_KEYS, collectives.COMPRESSED)
    } == {"sum"}
    assert of[collectives.STATE_TRANSFER] == "state transfer"
    assert of[collectives.END] == "end"
    assert of[collectives.SPRINT] == "sprint"
    assert of[collectives.REST] == of[collectives.HEIRS] == "rest"
    assert of[collectives.EVALUATION] == of[collectives.EVALUATION_VOTE] == "evaluation"
    assert of[messages.DONE] == of[messages.NORMS] == "held sum"
    assert set(traps._OF_PHASE.values()) | set(traps._OF_ACTIVITY.values()) <= set(moments.NAMES)
