"""Members' reports of their time become a file, MLflow's metrics and a timeline."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from orchestrator.driver.folders import RunFolder
from orchestrator.driver.run.time_log import TimeLog, summed
from orchestrator.records.lines import read

Told = list[tuple[int, dict[str, float]]]


def opened(folder: Path) -> tuple[TimeLog, RunFolder, Told, list[str]]:
    """The log, its files, what MLflow and the user are told."""
    told: Told = []
    said: list[str] = []
    tracker: Any = SimpleNamespace(metrics=lambda step, found: told.append((step, found)))
    files = RunFolder(folder, "r")
    return TimeLog(files, tracker, said.append), files, told, said


def window(first: int, steps: int, /, spans: Any = None, **seconds: float) -> dict[str, Any]:
    told = {"event": "times", "first": first, "steps": steps, "started": 10.0 + first, "seconds": seconds, "busy": {}}
    return told if spans is None else {**told, "spans": spans}


def test_mlflow_is_told_the_shares_of_all_members_once_in_a_round(tmp_path: Path) -> None:
    log, files, told, _ = opened(tmp_path)
    log.add("worker 0", window(0, 4, compute=3.0, wait=1.0), 0)
    log.add("worker 1", window(0, 4, compute=4.0))
    assert told == []
    log.add("worker 0", window(4, 4, compute=4.0), 0)
    (step, shares), *more = told
    assert (step, shares["system/time/compute"], shares["system/time/wait"], more) == (3, 7 / 8, 1 / 8, [])
    log.add("server 2", window(0, 8, exchange=8.0))
    log.add("worker 1", window(8, 0, connect=2.0))  # without a step it is no round
    whole = log.close()
    assert whole["worker 0"]["compute"] == 7.0
    assert summed(whole) == {**dict.fromkeys(whole["worker 0"], 0.0), "compute": 11.0, "wait": 1.0, "connect": 2.0}
    assert list(whole) == ["worker 0", "worker 1"]
    last = {name: value for _, found in told[1:] for name, value in found.items() if value}
    assert last["system/time/rank_0/compute"] == 7 / 8
    assert not any("server" in name or "rank_1" in name for name in last)
    assert [line["member"] for line in read(files.times)] == [
        "worker 0",
        "worker 1",
        "worker 0",
        "server 2",
        "worker 1",
    ]
    assert not files.timeline.exists()


def test_mlflow_has_as_many_keys_as_workers_at_once_however_many_come_and_go(tmp_path: Path) -> None:
    log, files, told, _ = opened(tmp_path)
    log.add("worker 0", window(0, 1, compute=1.0), 0)
    for member in range(1, 70):  # one after another has rank 1
        log.add(f"worker {member}", window(member, 1, compute=3.0, wait=1.0), 1)
    log.add("worker 70", window(70, 0, connect=9.0))  # a spare
    assert len(log.close()) == 71
    last = {name: value for _, found in told for name, value in found.items()}
    assert sorted({name.split("/")[2] for name in last if "rank" in name}) == ["rank_0", "rank_1"]
    assert (last["system/time/rank_1/compute"], last["system/time/rank_1/connect"]) == (0.75, 0.0)
    assert [line.get("rank") for line in read(files.times)] == [0, *[1] * 69, None]


def test_spans_of_all_members_become_one_timeline(tmp_path: Path) -> None:
    log, files, _, said = opened(tmp_path)
    log.add("worker 1", window(1, 1, [["compute", 1, 0, 0.0, 0.5]], compute=0.5))
    log.add("worker 0", {**window(0, 1, [["wait", 0, None, 0.25, 0.5]], wait=0.5), "timeline_full": True})
    log.close()
    events = [each for each in json.loads(files.timeline.read_text())["traceEvents"] if each["ph"] == "X"]
    assert [(each["name"], each["ts"]) for each in events] == [("wait", 0.25e6), ("compute shard 0", 1e6)]
    assert said == ["note: the timeline of worker 0 ends with step 1; it is long enough"]
    assert all("spans" not in line for line in read(files.times))


def test_a_run_that_came_to_no_step_has_nothing_to_tell(tmp_path: Path) -> None:
    log, files, told, _ = opened(tmp_path)
    assert log.close() == {}
    assert told == []
    assert summed({}) == dict.fromkeys(summed({}), 0.0)
    assert files.times.read_bytes() == b""
