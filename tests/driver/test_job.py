"""However the end of a run goes wrong, its record is closed with what was trained."""

from __future__ import annotations

import contextlib
import errno
import resource
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.weights import Weights
from orchestrator.cluster.placement import project_transfer
from orchestrator.cluster.placement.reservation import ActorSlot, Node
from orchestrator.cluster.sessions import joined
from orchestrator.cluster.sessions.joined import JoinedRay
from orchestrator.config.plan import Members
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.driver.launch import resume
from orchestrator.driver.recording import model_folder
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.run import job
from orchestrator.driver.run.event_sink import Audience
from orchestrator.driver.run.job import Job
from orchestrator.driver.run.startup import RunStart, requirements
from orchestrator.driver.supervision import TakenOver
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.errors import ClusterUnavailable, RunFailed


class Record:
    """A record that cannot be read to its end."""

    def __init__(self, trouble: Exception) -> None:
        self.closed: list[RunOutcome] = []
        self.files = SimpleNamespace()
        self.tracker = SimpleNamespace(run_id="4e8d", notes=list)
        self._trouble = trouble

    def restored(self) -> bool:
        return False

    @property
    def described(self) -> Any:
        raise self._trouble

    def close(self, outcome: RunOutcome) -> RunOutcome:
        self.closed.append(outcome)
        return outcome


def complete(
    record: Record,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., RunOutcome] = lambda *_: RunOutcome(steps=1, digest="4a4d"),
    start: Mapping[str, Any] = MappingProxyType({}),
    pending_signal: PendingSignal | None = None,
) -> tuple[str, RunOutcome]:
    settings = load([{"run": {"steps": 1}, "pipeline": {"target": "a:B"}}], [])
    plan = resolve(settings)
    opening: Future[Any] = Future()
    opening.set_result(record)
    display: Any = SimpleNamespace(close=lambda: None, say=lambda _: None)
    monkeypatch.setattr(Job, "_run", run)
    job = Job(settings, plan, Path(), Audience(display), pending_signal or PendingSignal())
    return job.complete(opening, RunStart(requirements(plan, checkpoint=None), **start))


def test_a_driver_that_may_start_no_further_thread_says_which_limits_to_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with a traceback."""

    def no_threads(*_: object) -> RunOutcome:
        raise RuntimeError("can't start new thread")

    record = Record(OSError(errno.ENOSPC, "No space left on device"))
    _, outcome = complete(record, monkeypatch, no_threads)
    assert isinstance(outcome.error, RunFailed)
    assert (outcome.error.code, record.closed) == ("run.no-threads", [outcome])
    assert "pids.max" in outcome.error.remedy


@pytest.mark.parametrize(
    "why", [{"taken_over": TakenOver(4711, 0.0)}, {"weights_lost": True}], ids=lambda why: next(iter(why))
)
@pytest.mark.parametrize(
    ("cluster", "servers", "begun", "told"),
    [
        ({"workers": 4}, 0, (3, 0, 0), "3 of 4 workers"),
        ({"workers": 2, "spares": 2}, 0, (2, 1, 0), None),
        ({"workers": {"min": 4, "max": 5}}, 0, (4, 0, 0), None),  # fewer would pause
        ({"workers": 4, "stages": 4}, 0, (4, 0, 0), None),
        ({"workers": 2}, 2, (1, 0, 2), "1 of 2 workers"),
        ({"workers": 2}, 3, (1, 0, 2), "1 of 2 workers and 2 of 3 servers"),
        ({"workers": {"min": 3, "max": 4}}, 2, (3, 0, 1), "1 of 2 servers"),  # of which there has to be one
    ],
)
def test_who_goes_on_after_a_loss_begins_with_the_members_that_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
    cluster: dict[str, Any],
    servers: int,
    begun: tuple[int, int, int],
    told: str | None,
    why: dict[str, Any],
) -> None:
    """A node was lost with the driver, or with the trained weights: the run was refused, though it goes on with fewer members
    where they alone are lost."""
    speeds = ["10.0.0.1=0.5", "10.0.0.2=0.5"]
    chosen = {"address": "10.0.0.1:1", "speeds": speeds, **cluster}
    given: dict[str, Any] = {
        "run": {"steps": 1},
        "pipeline": {"target": "a:B"},
        "data": {"shards": 8},
        "cluster": chosen,
    }
    if servers:
        given["topology"] = {"name": "parameter_server", "servers": servers}
    settings = load([given], [])
    plan = resolve(settings)
    monkeypatch.setattr(job, "living_nodes", lambda: [Node("1a", "10.0.0.1", {"CPU": 3.0})])
    said: list[str] = []
    display: Any = SimpleNamespace(say=said.append)
    asked = Job(settings, plan, Path(), Audience(display), PendingSignal())
    run_start = RunStart(requirements(plan))
    assert asked._after_a_loss(run_start) == (asked, run_start)
    found, start = asked._after_a_loss(replace(run_start, **why))
    members = found.plan.cluster.members
    assert start.requirements.members == members
    assert (members.start, members.spares, members.servers) == begun
    assert members.most == plan.cluster.members.most
    assert said == ([] if told is None else [f"note: this Ray has room for {told} now"])
    assert list(found.plan.cluster.speeds) == ["10.0.0.1"]


@pytest.mark.parametrize(("uri", "looks"), [("http://10.0.0.9:5000", True), (None, False)])
def test_a_driver_looks_whether_it_still_has_its_run_where_others_may_go_on_with_it(
    monkeypatch: pytest.MonkeyPatch, uri: str | None, looks: bool
) -> None:
    """A user resumed a run whose driver had lost its raylet, and the head went on with it: the record had the trace of the one,
    and the digest of the other."""
    held: list[str] = []

    @contextlib.contextmanager
    def hold(_store: object, run_id: str, _release: object) -> Iterator[None]:
        held.append(run_id)
        yield

    monkeypatch.setattr(job, "hold_lease", hold)
    settings = load([{"run": {"steps": 1}, "pipeline": {"target": "a:B"}}], [])
    supervision: Any = SimpleNamespace(release=lambda: None)
    display: Any = SimpleNamespace(say=lambda _: None)
    resumed = Job(settings, resolve(settings), Path(), Audience(display), PendingSignal(), supervision=supervision)
    record: Any = SimpleNamespace(tracker=SimpleNamespace(run_id="4e8d"), store=SimpleNamespace(uri=uri))
    private: Any = SimpleNamespace()
    with resumed._with_failover(record, private) as head_goes_on:
        assert held == ["4e8d"] * looks
        assert not head_goes_on


@pytest.mark.parametrize(
    ("calls_in_vain", "raylet_ends", "head_goes_on", "lost"),
    [
        (5, False, True, True),
        (5, True, False, True),
        (0, True, False, True),
        (0, True, True, False),
        (4, False, False, False),
    ],
)
def test_a_ray_is_lost_with_its_head_or_with_the_raylet_here_where_nobody_there_goes_on(
    monkeypatch: pytest.MonkeyPatch, *, calls_in_vain: int, raylet_ends: bool, head_goes_on: bool, lost: bool
) -> None:
    """Without its raylet a supervised driver ended, though nobody else went on with the run."""
    ray = JoinedRay("10.0.0.1:6379")
    ray._in_vain, ray._raylet = calls_in_vain, 7
    monkeypatch.setattr(joined, "has_ended", lambda _: raylet_ends)
    assert job._is_lost(ray, head_goes_on=head_goes_on) is lost


@pytest.mark.parametrize(
    ("code", "before", "signal", "lost"),
    [
        ("ray.nobody-answers", TakenOver(4711, 0.0), None, True),
        ("ray.not-joined", TakenOver(4711, 0.0), None, True),
        ("ray.cannot-hold", TakenOver(4711, 0.0), None, False),
        ("ray.nobody-answers", TakenOver(4711, 0.0), "SIGINT", False),
        ("ray.nobody-answers", None, None, False),
    ],
)
def test_who_goes_on_for_a_lost_driver_does_so_where_its_ray_is_gone_too(
    monkeypatch: pytest.MonkeyPatch, code: str, before: TakenOver | None, signal: str | None, *, lost: bool
) -> None:
    """It ended at once, and told of 0 steps."""

    def unreached(*_: object) -> RunOutcome:
        raise ClusterUnavailable("the Ray is away", code=code)

    pending_signal = PendingSignal()
    pending_signal.signal = signal
    start = {"written": 7, "taken_over": before}
    _, outcome = complete(
        Record(OSError(errno.EIO, "Input/output error")), monkeypatch, unreached, start, pending_signal
    )
    assert (outcome.has_lost_ray, outcome.steps) == (lost, 7)


def test_a_fault_of_ours_leaves_no_run_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(KeyError("counts"))
    with pytest.raises(KeyError):
        complete(record, monkeypatch)
    (outcome,) = record.closed
    assert (outcome.status, outcome.steps, outcome.digest) == ("failed", 1, "4a4d")


def test_what_the_system_refuses_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(OSError(errno.EIO, "Input/output error", "/there"))
    _, outcome = complete(record, monkeypatch)
    assert record.closed == [outcome]
    assert outcome.digest == "4a4d"
    assert "the driver could not go on: Input/output error (/there)" in str(outcome.error)


def test_a_state_for_which_there_is_no_room_is_an_error_of_the_system(tmp_path: Path) -> None:
    """The library of safetensors has errors of its own, by which a run ended with a traceback."""
    weights = tmp_path / "w.safetensors"
    Weights({"a": torch.ones(1)}).write(weights)
    state = TrainingState({}, {"optimizer/a": torch.ones(1 << 18)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            model_folder.write(tmp_path / "model", weights, {}, {}, {}, state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_drivers_node_gets_no_copy_of_the_project_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All first workers are elsewhere, and a late one may come to it."""
    here, there = (Node(name * 56, f"10.0.0.{name}", {"CPU": 1.0}) for name in "12")
    monkeypatch.setattr(job, "this_node", lambda: here.id)
    monkeypatch.setattr(job, "reserved", lambda *_: contextlib.nullcontext([ActorSlot(there, {})]))
    monkeypatch.setattr(job, "living_nodes", lambda: [here, there])
    monkeypatch.setattr(project_transfer, "living_nodes", lambda: [here, there])
    monkeypatch.setattr(job, "prepare_workspaces", lambda project, *_: {there.id: project.in_place})
    carried: list[str] = []
    monkeypatch.setattr(project_transfer, "copied", lambda _, nodes: carried.extend(node.id for node in nodes))
    cluster = {"address": "10.0.0.1:6379", "workers": {"min": 1, "max": 2}}
    elsewhere = {"cluster": cluster, "checkpoint": {"uri": "file:///checkpoints"}}
    settings = load([{"run": {"steps": 1}, "pipeline": {"target": "a:B"}, **elsewhere}], [])
    display: Any = SimpleNamespace(say=lambda _: None)
    run = Job(settings, resolve(settings), tmp_path, Audience(display), PendingSignal())
    with contextlib.ExitStack() as held:
        slots, _ = run._actor_slots(held, lambda: None, Future(), threading.Event(), restores=False)
        places = [slots.take(member, "worker") for member in (1, 2)]
    assert [place is not None and place.project for place in places] == [str(tmp_path)] * 2
    assert carried == []


def test_servers_whose_number_changes_bits_stay_as_many() -> None:
    members = Members(start=2, least=2, most=2, servers=2)
    assert members.within(3, exact=True).servers == 1
    assert members.within(3, exact=False).servers == 2


def test_what_is_done_again_after_weights_were_lost_is_done_as_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the settings and the trust of the command that trained it: it asked for the workers of the first launch."""
    asked: list[tuple[Any, ...]] = []

    def resumed(*given: Any, **also: Any) -> tuple[str, RunOutcome]:
        asked.append((*given, also))
        return "4e8d", RunOutcome(digest="4a4d")

    monkeypatch.setattr(resume, "resume", resumed)
    lost = RunOutcome(weights_lost=True, checkpoint=10, error=RunFailed("they are gone", code="run.failed"))
    _, outcome = resume.with_weights("4e8d", lost, ["cluster.workers=1"], None, ["output=json"], trusted=True)
    assert outcome.digest == "4a4d"
    also = {"typed": ["output=json"], "trusted": True, "weights_lost": True}
    assert asked == [("4e8d", ["cluster.workers=1"], None, also)]
