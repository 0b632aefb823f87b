"""Slices that servers hold while replicas run free are exact: to the bit what the record of the run gives at the same
clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch

from orchestrator.config.settings import Every
from orchestrator.numerics.fixed_point import FixedPoint
from orchestrator.numerics.layout import BLOCK, Layout
from orchestrator.pipeline import Pipeline
from orchestrator.worker.asynchronous.deltas import DELTA, Header
from orchestrator.worker.asynchronous.free_replica import FreeReplica
from orchestrator.worker.asynchronous.held_slice import HeldSlice
from orchestrator.worker.asynchronous.replay import _Repeated
from orchestrator.worker.server import Server
from tests.worker import pipelines as p
from tests.worker.runs import Layout as On
from tests.worker.runs import Run, train
from tests.worker.test_asynchronous import RICH

LAYOUT = Layout.of([("a", torch.empty(BLOCK + 10)), ("b", torch.empty(3, 4)), ("statistic", torch.empty(2))])
GRID = FixedPoint.of(LAYOUT, [-10, -4])


def numbers(answer: dict[str, Any]) -> list[float]:
    return list(numpy.frombuffer(answer["values"], numpy.float32).tolist())


def holding(part: int, parts: int) -> HeldSlice:
    held = HeldSlice(LAYOUT, 2, part, parts)
    held.begin([5, 7])
    held.grid(GRID.encode())
    held.base(torch.arange(LAYOUT.size)[held._place])
    return held


def test_nothing_is_said_before_the_base_is_there() -> None:
    held = HeldSlice(LAYOUT, 2, 0, 1)
    assert held.read("b") == {}
    held.begin([0, 0])
    held.grid(GRID.encode())
    assert held.read(None) == {}


def test_a_delta_counts_with_its_updates_also_when_it_comes_before_the_base() -> None:
    held = HeldSlice(LAYOUT, 2, 0, 1)
    held.begin([5, 7])
    held.header(Header(DELTA, 1, 1, 0, (0, 3), (0, 0), (0, 0)))
    held.part(1, 1, 0, torch.full((LAYOUT.size,), 16))
    held.grid(GRID.encode())
    held.base(torch.zeros(LAYOUT.size, dtype=torch.int64))
    answer = held.read("b")
    assert (answer["clocks"], answer["first"], numbers(answer)) == ([5, 10], 0, [1.0] * 12)


def test_a_tensor_that_lies_on_two_servers_is_told_by_both() -> None:
    """The second block begins within `a`."""
    below, above = (holding(part, 2).read("a", BLOCK - 2, 5) for part in range(2))
    assert (below["first"], len(numbers(below))) == (BLOCK - 2, 2)
    assert (above["first"], len(numbers(above))) == (BLOCK, 3)
    assert numbers(below) + numbers(above) == [(BLOCK - 2 + i) * 2.0**-10 for i in range(5)]
    assert numbers(holding(0, 2).read("b")) == []


def test_all_parameters_are_named_and_a_statistic_is_none() -> None:
    answer = holding(0, 1).read(None)
    assert answer["parameters"] == {"a": [[BLOCK + 10], [1]], "b": [[3, 4], [4, 1]]}
    assert (answer["values"], answer["clocks"]) == (b"", [5, 7])
    assert numbers(holding(0, 1).read("statistic")) == []


def test_after_a_rest_it_is_what_the_rest_made() -> None:
    held = holding(0, 1)
    held.at_barrier(torch.ones(LAYOUT.size, dtype=torch.int64), [9, 9])
    answer = held.read("a", 0, 3)
    assert (answer["clocks"], numbers(answer)) == ([9, 9], [1 * 2.0**-10, 2 * 2.0**-10, 3 * 2.0**-10])


@dataclass
class Seen:
    """The answers of servers. between: (rest before it, answers by name); at: after a rest, so too."""

    between: list[tuple[int, dict[str, dict[str, Any]]]] = field(default_factory=list)
    at: list[tuple[int, dict[str, dict[str, Any]]]] = field(default_factory=list)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Servers are looked at after whatever they take."""
    found, rests = Seen(), dict[HeldSlice, int]()
    begin, base, part, rest = HeldSlice.begin, HeldSlice.base, HeldSlice.part, HeldSlice.at_barrier

    def look(held: HeldSlice) -> dict[str, dict[str, Any]]:
        return {name: answer for name in held._slots if (answer := held.read(name))}

    def beginning(self: HeldSlice, *given: Any) -> None:
        rests[self] = rests.get(self, -1) + 1
        begin(self, *given)

    def starting(self: HeldSlice, *given: Any) -> None:
        base(self, *given)
        found.between.append((rests[self], look(self)))

    def taking(self: HeldSlice, *given: Any) -> None:
        part(self, *given)
        found.between.append((rests[self], look(self)))

    def resting(self: HeldSlice, *given: Any) -> None:
        rest(self, *given)
        found.at.append((rests[self], look(self)))

    for name, verb in (("begin", beginning), ("base", starting), ("part", taking), ("at_barrier", resting)):
        monkeypatch.setattr(HeldSlice, name, verb)
    return found


class Recomputed:
    """The parameters of any clock, as a replay on one worker gives them."""

    def __init__(self, run: Run, pipeline: type[Pipeline], **settings: Any) -> None:
        self.grids: list[FixedPoint] = []
        self.bases: list[torch.Tensor] = []
        self.ends: list[torch.Tensor] = []
        self.updates: list[dict[tuple[int, int], torch.Tensor]] = []
        begin, adopt, update = FreeReplica.begin, FreeReplica.adopt, _Repeated._update

        def beginning(replica: FreeReplica, *given: Any) -> None:
            begin(replica, *given)
            self.layout = replica.replica.layout
            self.grids.append(replica._fixed)
            self.bases.append(replica.start())
            self.updates.append({})

        def adopting(replica: FreeReplica, *given: Any) -> int:
            printed = adopt(replica, *given)
            self.ends.append(replica.replica.flat.clone())
            return printed

        def updating(repeated: _Repeated, shard: int, clock: int) -> torch.Tensor:
            told = update(repeated, shard, clock)
            self.updates[-1][shard, clock] = told[3:].clone()
            return told

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FreeReplica, "begin", beginning)
            patch.setattr(FreeReplica, "adopt", adopting)
            patch.setattr(_Repeated, "_update", updating)
            train(pipeline, On(1), replay=run.rests, **settings)

    def at(self, rest: int, clocks: list[int]) -> torch.Tensor:
        x = self.bases[rest].clone()
        for (shard, clock), update in self.updates[rest].items():
            if clock < clocks[shard]:
                x += update
        flat = torch.zeros(x.numel(), dtype=torch.float32)
        self.grids[rest].values(x, flat)
        return flat

    def assert_is(self, flat: torch.Tensor, answer: dict[str, Any], name: str) -> int:
        """Returns how many elements there were."""
        (slot,) = (slot for slot in self.layout.slots if slot.name == name)
        values = torch.tensor(numbers(answer))
        start = slot.offset + answer["first"]
        assert torch.equal(values, flat[start : start + len(values)]), name
        return len(values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "servers", "mode"),
    [
        (p.Batchnorm, 2, {"name": "asp", "threshold": 0.05}),
        pytest.param(p.Batchnorm, 1, {"name": "bap"}, marks=pytest.mark.long),
        pytest.param(p.Mlp, 1, {"name": "ssp", "staleness": 1}, marks=pytest.mark.long),
    ],
)
def test_what_servers_hold_is_what_the_record_gives(
    seen: Seen, pipeline: type[Pipeline], servers: int, mode: dict[str, Any]
) -> None:
    settings = {**RICH, "args": {}, "evaluate_every": Every(steps=3), "sync": {**mode, "rest_every": 2}}
    run = train(pipeline, On(3, "parameter_server", servers=servers), **settings)
    between, at = list(seen.between), list(seen.at)
    recomputed = Recomputed(run, pipeline, **settings)
    looked = 0
    for rest, answers in between:
        for name, answer in answers.items():
            looked += recomputed.assert_is(recomputed.at(rest, answer["clocks"]), answer, name)
    assert looked
    assert {answer["clocks"][0] for _, answers in between for answer in answers.values()} >= {1}
    for rest, answers in at:
        for name, answer in answers.items():
            assert answer["clocks"] == run.rests[rest]["clocks"]
            recomputed.assert_is(recomputed.ends[rest], answer, name)
    assert {rest for rest, answers in at if answers} == set(range(len(run.rests)))
    last = next(answers for rest, answers in reversed(at) if rest == len(run.rests) - 1 and answers)
    for name, answer in last.items():
        if answer["values"]:
            assert numbers(answer) == run.parameters[name].reshape(-1).tolist()


def test_a_server_that_holds_nothing_says_so(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """In lockstep, and before its first generation."""
    servers: list[Server] = []
    monkeypatch.setattr(Server, "close", lambda self: servers.append(self))  # there is nothing to close
    train(p.Mlp, On(2, "parameter_server"))
    assert [server.read_parameters("0.weight", 0, None) for server in servers] == [{}]
    assert (seen.between, seen.at) == ([], [])
