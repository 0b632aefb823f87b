"""Each thing that has to hold after a launch is found where it does not; and whom a fault may strike."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign import checks, modes
from campaign.checks import Ended, Undisturbed
from campaign.launches import Log, victims

BSP, SSP = modes.BY_NAME["bsp"], modes.BY_NAME["ssp"]
TRACE = b"".join(json.dumps({"step": step, "loss": "0x1p0"}).encode() + b"\n" for step in range(3))
EXPECTED = Undisturbed("d", TRACE)
JOURNAL: list[dict[str, Any]] = [
    {"event": "worker_started", "worker": 1, "pid": 7},
    {"event": "worker_lost", "worker": 1, "why": "died"},
    {"event": "recovered", "kind": "lost", "steps_lost": 0},
]
SAVED = {"event": "checkpoint_saved", "step": 2}
FAULT = {"kind": "SIGKILL", "moment": "vote", "struck": True, "pid": 7}
REPORT = {"status": "finished", "digest": "d"}
FINE = Ended(0, REPORT, "worker 1 was lost after step 1: died", [FAULT], JOURNAL, TRACE, [])
WHY: dict[str, Any] = {"status": "failed", "error": {"message": "no memory left", "kind": "RunFailed"}}
FAILED = replace(FINE, code=1, report=WHY, err=f"{FINE.err}\nresume=x", fails=True)
RESUMED = {"code": 1, "why": "no memory left", "says_how": True, "saved": True}
OUT = {**FAULT, "kind": "out of memory"}


def test_of_a_launch_in_which_all_holds_nothing_is_found() -> None:
    assert checks.findings(FINE, BSP, EXPECTED) == []
    assert checks.findings(FINE, SSP, None, "exact") == []
    assert checks.findings(FAILED, BSP, EXPECTED) == []
    assert checks.findings(replace(FINE, faults=[FAULT, {**OUT, "ended": RESUMED}]), BSP, EXPECTED) == []
    stopped = {**FAULT, "kind": "driver stop"}
    back = replace(FINE, faults=[FAULT, stopped], journal=[*JOURNAL, {**JOURNAL[2], "kind": "restarted"}])
    came = {**FAULT, "pid": 9, "moment": "prepare"}
    unknown = {"event": "worker_lost", "worker": 2, "why": "its process ended"}
    err = f"{FINE.err}\nworker 2 was lost: its process ended"
    both = replace(FINE, faults=[FAULT, came], journal=[*JOURNAL, unknown], err=err)
    assert checks.findings(both, BSP, EXPECTED) == []  # the driver did not know its process yet
    assert checks.findings(replace(both, faults=[FAULT, came, came]), BSP, EXPECTED) != []
    stood = {**came, "kind": "GIL held", "pid": 10}
    assert checks.findings(replace(both, faults=[FAULT, came, stood]), BSP, EXPECTED) == []  # and has gone on in time
    assert checks.findings(back, BSP, EXPECTED) == []  # its workers have ended themselves
    assert checks.findings(replace(FAILED, err=FINE.err), BSP, EXPECTED) == []  # there is nothing to go on from


@pytest.mark.parametrize(
    ("ended", "found"),
    [
        (replace(FINE, code=None), "liveness: it did not end"),
        (replace(FINE, report={**REPORT, "digest": "e"}), "bits: another digest"),
        (replace(FINE, trace=TRACE.replace(b"0x1p0", b"0x1p1", 1)), r"bits: line 0 of the trace differs in \['loss'\]"),
        (replace(FINE, trace=TRACE[: len(TRACE) // 3]), "bits: the trace has 1 lines, the undisturbed one 3"),
        (replace(FINE, left=["a process"]), "left behind: a process"),
        (replace(FINE, err="Traceback (most recent call last)\nworker 1 was lost"), "message: a traceback"),
        (replace(FINE, err=""), "message: the terminal tells of fewer losses"),
        (replace(FINE, faults=[{**FAULT, "pid": 8}]), "message: process 8, struck by SIGKILL at vote, is not told"),
        (replace(FINE, journal=[*JOURNAL[:2], {**JOURNAL[2], "steps_lost": 2}]), "steps: 2 were lost"),
        (replace(FINE, journal=[*JOURNAL[:2], {**JOURNAL[2], "kind": "restarted"}]), "steps: all went back"),
        (replace(FINE, report=WHY), "it ended as failed: RunFailed: no memory left"),
        (replace(FAILED, err=FINE.err, journal=[*JOURNAL, SAVED]), "does not say how it is resumed"),
        (replace(FAILED, code=3), "neither why nor by its exit code"),
        (replace(FINE, faults=[{**OUT, "ended": {**RESUMED, "code": 2}}]), "neither why nor by its exit code: 2"),
        (replace(FINE, faults=[{**OUT, "ended": {**RESUMED, "why": None}}]), "neither why nor by its exit code"),
        (replace(FINE, faults=[{**OUT, "ended": {**RESUMED, "says_how": False}}]), "does not say how it is resumed"),
        (replace(FINE, faults=[{**FAULT, "ended": RESUMED}]), "it ended after SIGKILL: no memory left"),
    ],
)
def test_what_does_not_hold_is_found(ended: Ended, found: str) -> None:
    (told,) = checks.findings(ended, BSP, EXPECTED)
    import re

    assert re.search(found, told)


def test_a_repetition_that_is_not_exact_is_found() -> None:
    assert checks.findings(FINE, SSP, None, "diverged") == ["bits: the repetition's verdict is diverged"]


@given(stages=st.lists(st.integers(0, 2), max_size=6), paired=st.booleans())
def test_whoever_is_struck_each_stage_keeps_a_worker(stages: list[int], paired: bool) -> None:
    living = {100 + number: stage for number, stage in enumerate(stages)}
    found = victims(living, paired=paired)
    if found is None:
        spare = len(stages) - len(set(stages))
        assert spare < (2 if paired else 1)
        return
    for first in found[0]:
        for second in [each for each in found[1] if each != first] or [first]:
            left = {stage for pid, stage in living.items() if pid not in (first, second)}
            assert left == set(stages)
    assert not paired or found[1]


def test_whoever_came_is_there_although_it_stood_still(tmp_path: Path) -> None:
    """Until it is given up as it starts there is more time than the stall takes."""
    log, own = Log(tmp_path / "log.jsonl"), os.getpid()
    struck = {"what": "struck", "fault": 1, "kind": "GIL held", "moment": "admission", "victim": own, "ns": 5}
    running = {"what": "running", "generation": 3, "workers": 1, "stage": 0, "pid": own}
    log.path.write_text(json.dumps({**running, "ns": 3}) + "\n" + json.dumps(struck) + "\n")
    log.look()
    assert log.living() == {}
    with log.path.open("a") as file:
        file.write(json.dumps({**running, "generation": 4, "ns": 9}) + "\n")
    log.look()
    assert log.living() == {own: 0}


def started(*members: int, stages: Sequence[int] = ()) -> dict[str, Any]:
    return {"event": "generation_started", "members": members, "workers": len(members), "stages": stages}


def gone(*workers: int) -> list[dict[str, Any]]:
    return [{"event": "worker_lost", "worker": worker} for worker in workers]


@pytest.mark.parametrize(
    ("journal", "lacks"),
    [
        ([started(0, 1, 2, 3, stages=(0, 1, 0, 1)), *gone(0, 3)], False),
        ([started(0, 1, 2, 3, stages=(0, 1, 0, 1)), *gone(0, 2)], True),
        ([started(0, 1, 2, 3, stages=(0, 1, 0, 1)), *gone(3), started(0, 1, 2, stages=(0, 1, 0)), *gone(1)], True),
        ([started(0, 1), *gone(0), JOURNAL[2], started(1, 2), JOURNAL[2]], False),
        ([started(0, 1), *gone(0), JOURNAL[2], started(1, 2), JOURNAL[2], *gone(1, 2)], True),
        ([started(0, 1), *gone(0), started(1), *gone(1), started(2)], True),
    ],
)
def test_a_stage_without_workers_is_known(journal: list[dict[str, Any]], lacks: bool) -> None:
    assert checks.lacks_stage(journal) == lacks
    back = [*journal, {**JOURNAL[2], "kind": "restarted"}]
    cut = replace(FINE, faults=[{**FAULT, "kind": "cut"}], journal=back, err="was lost " * 9)
    assert any("all went back" in each for each in checks.findings(cut, BSP, EXPECTED)) != lacks
