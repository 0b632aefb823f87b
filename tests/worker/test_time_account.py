"""The account of a member's time: every moment of a generation has one kind, and windows lie side by side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.collectives import SUM, VOTE, VOTES
from orchestrator.comm.transports.base import Received, Tag
from orchestrator.experiments.simulation import calibration
from orchestrator.records import times
from orchestrator.records.progress import Activity
from orchestrator.worker.member import stamps, time_account, time_ledger
from orchestrator.worker.member.cancellation import CancellableTransport
from orchestrator.worker.member.heartbeat import Heartbeat
from orchestrator.worker.member.time_account import TimeAccount
from orchestrator.worker.pipeline_parallel.messages import ACTIVATIONS, WAITS
from tests.products import thinned
from tests.worker.pipelines import Mlp
from tests.worker.runs import Layout, train, windows_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stamps, "time", clock)
    return clock


def taken(account: TimeAccount) -> dict[str, Any]:
    window = account.take(at_once=True)
    assert window is not None
    return window


def test_a_window_adds_up(clock: Clock) -> None:
    account = TimeAccount()
    account.turn("prepare")
    clock.now += 50  # before the first generation nothing counts
    account.turn("state_transfer")
    account.begins_at(7)
    activities: list[tuple[int, Activity]] = [(1, "compute"), (2, "exchange"), (4, "update"), (8, "compute")]
    for seconds, activity in activities:
        clock.now += seconds
        account.turn(activity)
    before = account.waits()
    clock.now += 16
    account.goes_on(before)
    account.stepped(9)
    clock.now += 32
    window = taken(account)
    assert window["seconds"] == {"connect": 1, "compute": 2 + 32, "exchange": 4, "update": 8, "wait": 16}
    assert (window["first"], window["steps"], window["wall"]) == (7, 2, 63)
    clock.now += 1
    assert (taken(account)["first"], taken(account)["seconds"]) == (9, {})


def test_what_is_held_belongs_to_one_kind(clock: Clock) -> None:
    account = TimeAccount()
    account.turn("state_transfer")
    account.turn("update")
    account.hold("checkpoint")
    clock.now += 1
    account.turn("exchange")
    account.hold("evaluate")  # the outermost counts
    clock.now += 1
    account.goes_on(account.waits())
    account.release()
    clock.now += 1
    account.release()
    clock.now += 5
    assert taken(account)["seconds"] == {"checkpoint": 3, "update": 5}
    account.hold("report")
    account.turn("state_transfer")  # the generation was left within it
    clock.now += 1
    account.release()
    assert taken(account)["seconds"] == {"connect": 1}


@pytest.mark.slow
def test_windows_grow_with_the_run(clock: Clock) -> None:
    account = TimeAccount()
    account.turn("state_transfer")
    told = 0
    activities: tuple[Activity, ...] = ("compute", "exchange")
    for moment in range(100_000):  # 10,000 s, a step in 0.1 s
        clock.now += 0.1
        account.turn(activities[moment % 2])
        account.stepped(moment)
        told += account.take() is not None
    assert 500 < told < 800
    assert TimeAccount().take(at_once=True) is None


def test_who_goes_back_has_done_its_steps_all_the_same(clock: Clock) -> None:
    account = TimeAccount()
    account.turn("state_transfer")
    account.begins_at(10)
    account.stepped(14)
    account.begins_at(12)  # a checkpoint
    account.stepped(13)
    clock.now += 1
    assert taken(account)["steps"] == 5


def test_spans_lie_side_by_side_and_end_somewhere(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_account, "MOST_SPANS", 3)
    account = TimeAccount(spans=True)
    account.turn("state_transfer")
    for shard in range(2):
        clock.now += 1
        account.turn("compute", 5, shard)
    clock.now += 1
    window = taken(account)
    assert window["spans"] == [["connect", None, None, 0, 1], ["compute", 5, 0, 1, 1], ["compute", 5, 1, 2, 1]]
    assert window["timeline_full"]
    clock.now += 1
    assert {"spans", "timeline_full"}.isdisjoint(taken(account))


@given(st.lists(st.sampled_from([*time_account._KIND, "wait", "hold", "release", "take"]), max_size=60))
def test_no_moment_is_lost_and_none_counts_twice(story: list[Any]) -> None:
    clock = Clock()
    whole, account = 0.0, TimeAccount()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stamps, "time", SimpleNamespace(monotonic=clock.monotonic))
        account.turn("state_transfer")
        for each in story:
            clock.now += 1
            match each:
                case "wait":
                    account.goes_on(account.waits())
                case "hold":
                    account.hold("evaluate")
                case "release":
                    account.release()
                case "take":
                    whole += sum(taken(account)["seconds"].values())
                case _:
                    account.turn(each)
        whole += sum(taken(account)["seconds"].values())
    assert whole == len(story)


def test_a_vote_is_waited_for_a_sum_is_exchanged_and_a_stage_goes_on(clock: Clock) -> None:
    heartbeat = Heartbeat()

    def receive(*_: Any) -> Received:
        clock.now += 1
        return Received(torch.zeros(1), 0)

    inner: Any = SimpleNamespace(send=None, travels=None, close=None, abort=None, receive=receive, flush=lambda _: None)
    transport = CancellableTransport(inner, heartbeat)
    transport.activity, transport.waits = "exchange", {**VOTES, **WAITS}
    heartbeat.enter(0)
    for phase, after in ((SUM, "exchange"), (VOTE, "exchange"), (ACTIVATIONS, "compute")):
        heartbeat.beat("compute", 3, 1)
        clock.now += 10
        transport.receive(1, Tag(0, 3, 0, phase, 0), 1.0)
        clock.now += 100
        assert times.KINDS[heartbeat.times.kind] == after
    assert taken(heartbeat.times)["seconds"] == {"compute": 30 + 100, "exchange": 1 + 100 + 100, "wait": 2}


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["bsp", "ssp"])
@pytest.mark.parametrize("topology", thinned(["ring", "parameter_server"], 2, 1))
def test_every_step_of_every_member_is_accounted_for(topology: str, sync: str) -> None:
    windows = windows_of(Mlp, Layout(3, topology), steps=6, sync={"name": sync})
    for member, told in windows.items():
        assert sum(window["steps"] for window in told) == 6, member
        assert all(sum(window["seconds"].values()) == pytest.approx(window["wall"], abs=1e-4) for window in told)
        seconds = times.added(told)
        assert seconds["wait"] + seconds["exchange"] > 0
        assert (seconds["compute"] > 0) == (member < 3), member
        assert min(seconds["evaluate"], seconds["connect"]) > 0


@pytest.mark.slow
def test_what_members_report_is_enough_to_predict_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_ledger, "_SHORTEST_S", 0.0)  # a window for each step
    points = []
    for layout in (Layout(1), Layout(2)):
        told = windows_of(Mlp, layout, steps=12)
        windows = [{"member": f"worker {rank}", **each} for rank, many in told.items() for each in many]
        found = calibration.measured(calibration.Layout("ring", layout.workers), windows, driver_s=1e-4)
        assert found is not None
        assert found.steps >= 8 * layout.workers
        points.append(found)
    model = calibration.Model(5, (8e3, 4e3), {})
    conditions = calibration.calibrate(model, points, 2, 1e-10)
    assert conditions.compute_s > 0
    assert conditions.update_s > 0
    assert conditions.background_s >= 5e-5
    alone = calibration.predicted(model, calibration.Layout("ring", 1), conditions)
    assert alone == pytest.approx(5 * conditions.compute_s + conditions.update_s, rel=0.5)


@pytest.mark.slow
def test_a_timeline_changes_no_bit() -> None:
    layout = Layout(2)
    assert train(Mlp, layout, timeline=True).trace == train(Mlp, layout).trace


def test_a_window_tells_the_median_of_its_micro_batches(clock: Clock) -> None:
    """Each from its beginning to the next turn, what goes before and behind a wait together, and the wait not."""
    account = TimeAccount()

    def compute(shard: int, seconds: float) -> None:
        account.turn("compute", 0, shard)
        clock.now += seconds

    account.turn("state_transfer")
    compute(0, 2)
    compute(1, 3)
    compute(2, 90)  # a stall
    compute(3, 1)
    before = account.waits()
    clock.now += 50
    account.goes_on(before)
    clock.now += 3
    compute(4, 1)
    account.turn("exchange")
    clock.now += 7
    compute(4, 2.5)  # a stage goes back for it
    account.turn("update")
    clock.now += 9
    assert taken(account)["micro_batch_s"] == 3.5
    clock.now += 1
    assert "micro_batch_s" not in taken(account)
    compute(0, 1)
    assert "micro_batch_s" not in taken(account), "it is not done"
    for number in range(3 * time_ledger._MOST_MICRO_BATCHES):
        account.turn("compute", number, 1)
        clock.now += 1 if number < 1900 else 2
    account.turn("exchange")
    assert taken(account)["micro_batch_s"] == 2, "only the last ones are kept"
