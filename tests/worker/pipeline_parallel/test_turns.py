"""Workers of a host whose memory has no room for all of them at once prepare in turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.collectives import VOTE
from orchestrator.config.plan import Plan
from orchestrator.config.resolve import resolve
from orchestrator.worker.member.heartbeat import Heartbeat
from orchestrator.worker.model import construction
from orchestrator.worker.pipeline_parallel import messages, turns
from orchestrator.worker.strategies import PipelineStrategy
from orchestrator.worker.worker import Ended, ProcessServices, Worker
from tests.worker import elastic, pipelines, runs
from tests.worker.elastic import Fault, Sending, survive
from tests.worker.runs import ONE, Layout, _Members, members_end, settings_for

FOUR = Layout(4, stages=2)
SMALL: dict[str, Any] = {"steps": 3, "shards": 4, "batch_size": 8, "optimizer": {"name": "adam", "lr": 0.02}}
FREE, NEEDED = st.integers(0, 10**13), st.integers(1, 10**13)


@given(available=FREE, needed=NEEDED, workers=st.integers(1, 500))
def test_as_many_prepare_as_fit_and_always_one(available: int, needed: int, workers: int) -> None:
    found = turns.at_once(available, needed, workers)
    assert 1 <= found <= workers
    assert found == 1 or found * needed <= available
    assert found <= turns.at_once(2 * available, needed, workers), "more memory lets no fewer prepare"
    assert found == workers or (found + 1) * needed > available // 2, "nobody waits beside memory that is mostly free"


@given(available=FREE, needed=NEEDED, others=st.integers(0, 500))
def test_who_keeps_its_model_leaves_room_for_all_others(available: int, needed: int, others: int) -> None:
    if turns.may_keep(available, needed, others):
        assert needed * others <= available
        assert not others or turns.at_once(available, needed, others) == others


@given(available=FREE, others=st.integers(0, 500))
def test_if_nobody_knows_the_need_they_prepare_one_by_one_and_keep_nothing(available: int, others: int) -> None:
    assert turns.at_once(available, None, others + 1) == 1
    assert not turns.may_keep(available, None, others)


class _Turns:
    """Those of one host, for workers that are threads. most: that were taken at the same time."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}  # by number, the thread that has it
        self.most = 0
        self._lock = threading.Lock()

    def take(self, number: int) -> Callable[[], None] | None:
        with self._lock:
            if number in self.held:
                return None
            self.held[number] = threading.get_ident()
            self.most = max(self.most, len(self.held))
        return lambda: self.held.__delitem__(number)


def _plan(needed: int | None, stages: int = 2) -> Plan:
    plan = resolve(settings_for(pipelines.Mlp, Layout(4, stages=stages), **SMALL))
    return replace(plan, cluster=replace(plan.cluster, preparing_bytes=needed))


@pytest.mark.parametrize(("needed", "together"), [(25, 4), (30, 3), (50, 2), (70, 1), (1000, 1), (None, 1)])
def test_no_more_have_a_turn_than_fit_and_all_get_one(
    needed: int | None, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "available_bytes", lambda: 134)
    monkeypatch.setattr(turns, "_LOOK_S", 0.001)
    host, full = _Turns(), threading.Event()

    def prepares(_worker: int) -> bool:
        with turns.turn(_plan(needed), ProcessServices(take_turn=host.take)):
            if len(host.held) == together:
                full.set()
            return full.wait(30) and len(host.held) <= together

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(prepares, range(4)))
    assert host.most == together
    assert not host.held


def test_a_worker_waits_until_a_turn_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes itself heard meanwhile, so that nobody takes it for dead."""
    monkeypatch.setattr(turns, "_LOOK_S", 0.0)
    host = _Turns()
    host.take(0)
    looks = []

    class Heard(Heartbeat):
        def live(self) -> None:
            looks.append(len(host.held))
            if len(looks) == 3:
                host.held.clear()

    with turns.turn(_plan(None), ProcessServices(Heard(), take_turn=host.take)):
        assert looks == [1, 1, 1]
        assert list(host.held) == [0]


@pytest.mark.parametrize("services", [ProcessServices(), ProcessServices(take_turn=lambda _number: None)])
def test_who_is_alone_or_has_a_whole_model_all_the_time_takes_no_turn(services: ProcessServices) -> None:
    plan = _plan(None, 2 if services.take_turn is None else 1)
    with turns.turn(plan, services):
        assert not turns.is_to_let_go(plan, services)


def _in_turns(monkeypatch: pytest.MonkeyPatch) -> tuple[_Turns, list[int]]:
    """From now on all workers of runs are on one host, and nobody knows how much they need. Returns its turns, and how many
    models were made, each of them in a turn of its maker."""
    host, made = _Turns(), [0]
    first_model = construction.first_model

    def counted(*args: Any) -> torch.nn.Module:
        assert threading.get_ident() in host.held.values()
        made[0] += 1
        return first_model(*args)

    monkeypatch.setattr(construction, "first_model", counted)
    for module in (runs, elastic):
        monkeypatch.setattr(module, "ProcessServices", partial(ProcessServices, take_turn=host.take))
    return host, made


@pytest.mark.slow
def test_workers_that_prepare_in_turns_keep_nothing_in_between_and_end_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    (unsplit,) = {end.digest for end in members_end(pipelines.Batchnorm, ONE, **SMALL) if isinstance(end, Ended)}
    host, made = _in_turns(monkeypatch)
    members = _Members(settings_for(pipelines.Batchnorm, FOUR, **SMALL))
    assert made == [4]
    for member in members.members:
        assert isinstance(member, Worker)
        tensors = [*member._workload.model.parameters(), *member._workload.model.buffers()]
        assert sum(tensor.untyped_storage().nbytes() for tensor in tensors) == 0
        assert isinstance(member._strategy, PipelineStrategy)
        assert member._strategy._replica is None
    assert {end.digest for end in members.run() if isinstance(end, Ended)} == {unsplit}
    assert made == [8]
    assert (host.most, host.held) == (1, {})


@pytest.mark.slow
def test_going_back_to_the_beginning_makes_whole_models_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both hosts of stage 1 die, and there is no checkpoint."""
    unsplit = survive(pipelines.Mlp, ONE, **SMALL)
    host, made = _in_turns(monkeypatch)
    faults = Fault(1, Sending(messages.DONE, 2), "die"), Fault(3, Sending(VOTE, 4), "die")
    told = survive(pipelines.Mlp, FOUR, faults, None, **SMALL)
    assert (told.trace, told.digest) == (unsplit.trace, unsplit.digest)
    assert told.went_back == 1
    assert made[0] > 2 * 4, "each of the first four twice, and those who go back once more"
    assert (host.most, host.held) == (1, {})
