"""A moment that is armed strikes whoever comes there first, once; who may not be struck passes by; and a gate is waited at."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import torch

from campaign import moments, traps
from campaign.kinds import memory, process
from campaign.moments import Words
from campaign.traps import Traps
from orchestrator.comm import collectives
from orchestrator.comm.transports.base import Tag
from orchestrator.common.injection import Moment
from orchestrator.records.progress import Activity
from orchestrator.worker.step.contribution import Contribution


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


def test_the_moments_of_the_program_become_those_of_the_campaign() -> None:
    """Each phase and each activity that has a moment has one of the campaign's."""
    of = traps._OF_PHASE
    assert of[collectives.COMPRESSED] == of[collectives.GRID_KEYS] == of[collectives.SUM] == "sum"
    assert set(of.values()) | set(traps._OF_ACTIVITY.values()) <= set(moments.NAMES)
    assert set(traps._OF_ACTIVITY) <= set(get_args(Activity))


def test_a_message_is_at_the_moment_of_its_phase(tmp_path: Path, struck: list[Any]) -> None:
    found = armed(tmp_path)
    for moment, phase in (("send", collectives.SUM), ("receive", collectives.VOTE), ("activity", 0)):
        assert found(cast(Moment, moment), 4, Tag(1, 4, 0, phase, 0)).phase == phase
    assert struck == []
    found("send", 4, Tag(1, 4, 0, collectives.VOTE, 0))
    assert struck == [("SIGKILL", 0.5)]


def test_a_flipped_contribution_takes_the_place_of_the_true_one(tmp_path: Path) -> None:
    found = armed(tmp_path, kind=memory.GRADIENTS, step=3, place=0.0, bit=0)
    true = Contribution(0.5, 1.0, [torch.ones(2)])
    found.words.flip = 1
    assert found("contribution", 2, true) is true
    assert not torch.equal(found("contribution", 3, true).tensors[0], true.tensors[0])
    assert found("contribution", 3, None) is None
