"""Members' time: windows added up, as shares, as columns of a picture and as a timeline."""

from __future__ import annotations

import pytest

from orchestrator.records import times

WINDOWS = [
    {"member": "worker 10", "first": 0, "steps": 4, "seconds": {"compute": 3.0, "wait": 1.0}, "busy": {"compute": 2.0}},
    {"member": "server 2", "first": 0, "steps": 8, "seconds": {"exchange": 8.0}, "busy": {}},
    {"member": "worker 9", "first": 0, "steps": 4, "seconds": {"compute": 4.0}, "busy": {"compute": 4.0}},
    {"member": "worker 9", "first": 4, "steps": 4, "seconds": {"compute": 2.0, "evaluate": 6.0}, "busy": {}},
    {"member": "worker 9", "first": 8, "steps": 0, "seconds": {"connect": 0.5}, "busy": {}},
]


def test_they_add_up_by_member_and_workers_come_first() -> None:
    found = times.by_member(WINDOWS)
    assert list(found) == ["worker 9", "worker 10", "server 2"]
    assert found["worker 9"] == {**dict.fromkeys(times.KINDS, 0.0), "compute": 6.0, "evaluate": 6.0, "connect": 0.5}
    assert times.added(WINDOWS, "busy")["compute"] == 6.0


def test_shares_are_of_the_sum_and_nothing_has_none() -> None:
    assert times.shares({"compute": 3.0, "wait": 1.0}) == {"compute": 0.75, "wait": 0.25}
    assert times.shares(dict.fromkeys(times.KINDS, 0.0)) == {}
    assert times.sentence({}) == ""


def test_a_sentence_has_the_largest_first_and_leaves_out_what_is_small() -> None:
    assert times.sentence({"compute": 20.0, "exchange": 79.7, "report": 0.3}) == "exchange 80%, computing 20%"


def test_every_kind_has_a_word() -> None:
    assert tuple(times.IN_WORDS) == times.KINDS


def test_columns_are_means_of_a_member_and_a_step() -> None:
    workers = [window for window in WINDOWS if window["member"] != "server 2"]
    (first, early), (second, late) = times.per_step(workers, 2)
    assert (first, second) == (1.5, 5.5)
    assert (early["compute"], early["wait"]) == (7 / 8, 1 / 8)
    assert (late["compute"], late["evaluate"]) == (0.5, 1.5)
    ((middle, whole),) = times.per_step(workers, 1)
    assert middle == pytest.approx((1.5 + 1.5 + 5.5) / 3)
    assert whole["compute"] == 9 / 12
    assert times.per_step(workers[-1:], 3) == []


def test_a_timeline_names_its_members_and_begins_at_nought() -> None:
    lines = [
        {"member": "worker 0", "started": 100.0, "spans": [["compute", 3, 1, 0.0, 0.5], ["wait", 3, None, 0.5, 0.25]]},
        {"member": "worker 1", "started": 100.25, "spans": [["connect", None, None, 0.0, 1.0]]},
    ]
    names, _, compute, wait, other, _, connect = times.chrome(lines)
    assert (names["ph"], names["args"], names["tid"], other["tid"]) == ("M", {"name": "worker 0"}, 0, 1)
    assert (compute["name"], compute["ts"], compute["dur"]) == ("compute shard 1", 0.0, 5e5)
    assert compute["args"] == {"step": 3, "shard": 1}
    assert (wait["name"], wait["ts"]) == ("wait", 5e5)
    assert (connect["ts"], connect["tid"], connect["args"]) == (2.5e5, 1, {})


def window(member: str, first: int, steps: int, **seconds: float) -> dict[str, object]:
    return {"member": member, "first": first, "steps": steps, "seconds": seconds, "busy": {}}


def test_steps_per_second_are_those_of_the_workers_own_time() -> None:
    """Reports may come in a burst; a spare waits, a server has no steps of its own, and connecting is no step."""
    found = [
        window("worker 0", 0, 0, compute=3.0),  # the first step takes longer than a window
        window("worker 0", 0, 1, compute=1.0),
        window("worker 1", 0, 1, wait=4.0),
        window("worker 0", 1, 20, compute=8.0, evaluate=2.0),
        window("worker 1", 1, 20, compute=5.0, wait=5.0),
        window("worker 1", 21, 0, connect=100.0),
        window("worker 2", 0, 0, connect=100.0),
        window("server 0", 0, 21, wait=1000.0),
    ]
    assert times.steps_per_s(found) == 2.0


def test_of_a_run_that_is_hardly_longer_than_its_first_window_all_of_it_counts() -> None:
    """Its last window may be an evaluation and little else."""
    found = [window("worker 0", 0, 3, compute=1.0, connect=9.0), window("worker 0", 3, 1, evaluate=3.0)]
    assert times.steps_per_s(found) == 1.0


def test_without_steps_there_is_no_rate() -> None:
    for found in ([], [window("worker 0", 0, 0, compute=1.0)], [window("server 0", 0, 4, wait=1.0)]):
        assert times.steps_per_s(found) is None
