"""A bit that is flipped on its way, between cards or between a card and host memory, is found in a step that is checked, and
the pair of members or the member is named.

There is no card: memory that peers map, and copies to host memory, have doubles that flip a bit for one of the members.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch

from orchestrator.comm.collectives import Exchange
from orchestrator.comm.transports.base import Descriptor, Mapped
from orchestrator.comm.transports.device_memory import DeviceRegions
from orchestrator.config.plan import Plan
from orchestrator.controller.checking import Verdict
from orchestrator.errors import Inconsistent
from orchestrator.numerics import staging
from orchestrator.numerics.device.kernels import Operations
from orchestrator.worker.asynchronous.async_phase import _AsyncPhase, _Copies
from orchestrator.worker.asynchronous.deltas import DELTA, Deliveries, Header
from orchestrator.worker.asynchronous.traffic import Traffic
from orchestrator.worker.step import lockstep
from orchestrator.worker.worker import Ended
from tests.comm.transports.device_double import HostDriver
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.pipeline_parallel.sockets import Sockets
from tests.worker.runs import End, Layout, members_end, train
from tests.worker.test_on_device import on_device

pytestmark = pytest.mark.slow
READER = 1
RUN: dict[str, Any] = {"steps": 4, "shards": 6, "batch_size": 18, "check_every": 1}
MEANS, RESULTS = torch.float64, torch.float32
NOW = threading.local()


def flip(tensor: torch.Tensor, byte: int = 2) -> None:
    tensor.detach().view(-1)[:1].view(torch.uint8)[byte] ^= 16


class Flipping(NamedTuple):
    """A peer's region, of which one bit arrives otherwise."""

    mapped: Mapped
    dtype: torch.dtype
    first: int  # step in which it does
    byte: int  # of the first element

    def tensor(self, dtype: torch.dtype, offset_bytes: int, elements: int) -> torch.Tensor:
        found = self.mapped.tensor(dtype, offset_bytes, elements)
        if dtype == self.dtype and elements and getattr(NOW, "step", 0) >= self.first:
            found = found.clone()
            flip(found, self.byte)
        return found


class Beside(DeviceRegions):
    """Regions of a member that reads its peers' memory with one bit flipped."""

    dtype, first, byte = MEANS, 0, 2

    def map_peer(self, descriptor: Descriptor) -> Mapped:
        return Flipping(super().map_peer(descriptor), self.dtype, self.first, self.byte)


def regions(dtype: torch.dtype, first: int = 0, byte: int = 2) -> Callable[[Any], DeviceRegions]:
    members = iter(range(9))

    def made(_: object) -> DeviceRegions:
        if next(members) != READER:
            return DeviceRegions(HostDriver())
        beside = Beside(HostDriver())
        beside.dtype, beside.first, beside.byte = dtype, first, byte
        return beside

    return made


def verdict_of(ends: list[End]) -> Verdict:
    """Which all share."""
    assert [end for end in ends if not (isinstance(end, Ended) and end.kind == "distrust")] == []
    (verdict,) = {end.verdict for end in ends if isinstance(end, Ended)}
    assert verdict is not None
    return verdict


LAYOUTS = [Layout(3), Layout(4, "tree"), Layout(3, "peer_to_peer")]
CASES = [(layout, dtype) for layout in LAYOUTS for dtype in (MEANS, RESULTS)]
CASES.append((Layout(3, "parameter_server", servers=2), RESULTS))  # where workers read no sums


@pytest.mark.parametrize("case", thinned(CASES, 3), ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_bit_that_flips_between_cards_names_the_pair(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Layout, torch.dtype]
) -> None:
    layout, dtype = case
    on_device(monkeypatch, Operations, regions(dtype))
    members = layout.workers + (layout.servers or 0)
    with Sockets("unix", members) as sockets:
        verdict = verdict_of(members_end(p.Wide, layout, wire=sockets.transport, **RUN))
    assert (verdict.copied, verdict.step, verdict.shard, verdict.wrong) == (True, 0, None, ())
    assert verdict.between[1] == READER != verdict.between[0]


def test_looking_at_what_arrives_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train(p.Wide, **{**RUN, "check_every": None})
    on_device(monkeypatch, Operations)
    with Sockets("unix", 3) as sockets:
        checked = train(p.Wide, Layout(3), wire=sockets.transport, regions=sockets.regions, **RUN)
    assert (checked.trace, checked.digest) == (plain.trace, plain.digest)


UNCHECKED: dict[str, Any] = {**RUN, "check_every": None}


def on_cards(monkeypatch: pytest.MonkeyPatch, made: Callable[[Any], DeviceRegions]) -> None:
    """Members take the device for a card."""
    on_device(monkeypatch, Operations, made)
    monkeypatch.setattr(Plan, "sums_stay_on_device", property(lambda _: True))


@pytest.mark.parametrize("dtype", [MEANS, RESULTS])
def test_the_first_step_of_a_generation_compares_what_arrives_also_where_no_check_is_due(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    on_cards(monkeypatch, regions(dtype))
    with Sockets("unix", 3) as sockets:
        verdict = verdict_of(members_end(p.Wide, Layout(3), wire=sockets.transport, **UNCHECKED))
    assert (verdict.copied, verdict.step, verdict.since, verdict.wrong) == (True, 0, 0, ())
    assert verdict.between[1] == READER != verdict.between[0]


@pytest.fixture
def step_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member's thread knows in which step it adds up."""
    total = Exchange.total

    def noted(exchange: Exchange, step: int, attempt: int, divisor: float) -> int:
        NOW.step = step
        return total(exchange, step, attempt, divisor)

    monkeypatch.setattr(Exchange, "total", noted)


@pytest.mark.parametrize("dtype", [MEANS, RESULTS])
@pytest.mark.usefixtures("step_known")
def test_what_begins_to_arrive_otherwise_later_is_found_in_the_next_step_that_compares(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(lockstep, "COMPARED_EVERY", 3)
    on_cards(monkeypatch, regions(dtype, 2))
    with Sockets("unix", 3) as sockets:
        verdict = verdict_of(members_end(p.Wide, Layout(3), wire=sockets.transport, **UNCHECKED))
    assert (verdict.copied, verdict.step, verdict.since, verdict.wrong) == (True, 3, 1, ())
    assert verdict.between[1] == READER != verdict.between[0]


def test_to_compare_in_some_steps_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train(p.Wide, **UNCHECKED)
    compared: list[bool] = []
    verify = Exchange.verify

    def noted(exchange: Exchange, wanted: bool) -> None:
        compared.append(wanted)
        verify(exchange, wanted)

    monkeypatch.setattr(Exchange, "verify", noted)
    on_cards(monkeypatch, lambda _: DeviceRegions(HostDriver()))
    with Sockets("unix", 3) as sockets:
        found = train(p.Wide, Layout(3), wire=sockets.transport, regions=sockets.regions, **UNCHECKED)
    assert (found.trace, found.digest) == (plain.trace, plain.digest)
    assert sorted(compared) == [False] * 9 + [True] * 3  # the first of four


class Out(staging.Copying):
    """Staging of a member whose gradients arrive in host memory with a bit flipped."""

    def host_transfer(self, *arguments: Any) -> staging.HostTransfer:
        made = super().host_transfer(*arguments)
        plain = made.out

        def out(*values: Any) -> Any:
            found = plain(*values)
            flip(next(each for each in found if each is not None))
            return found

        made.out = out  # type: ignore[method-assign,assignment]
        return made


class Back(staging.Copying):
    """Staging of a member whose sum arrives on the card with a bit flipped."""

    def host_transfer(self, *arguments: Any) -> staging.HostTransfer:
        made = super().host_transfer(*arguments)
        plain = made.back

        def back() -> None:
            plain()
            flip(made.result[0])

        made.back = back  # type: ignore[method-assign]
        return made


@pytest.mark.parametrize("kind", [Out, Back], ids=["to host memory", "to the card"])
def test_a_bit_that_flips_between_a_card_and_host_memory_names_the_member(
    monkeypatch: pytest.MonkeyPatch, kind: type[staging.Copying]
) -> None:
    """A sum that came back wrongly is in the parameters, so it shows in the next micro-batch that is checked."""
    members = iter(range(9))
    device = torch.device("cpu")
    monkeypatch.setattr(staging, "on", lambda _: (kind if next(members) == READER else staging.Copying)(device))
    verdict = verdict_of(members_end(p.Mlp, Layout(3), **RUN))
    assert (verdict.wrong, verdict.shard is None, verdict.copied) == ((READER,), False, False)


FREE: dict[str, Any] = {"steps": 4, "shards": 6, "batch_size": 18}
# Any member may be the one that reads wrongly. In these layouts each reads sums of another, in a tree not all do.
FREE_LAYOUTS = [Layout(3), Layout(3, "peer_to_peer")]
FREE_CASES = [(layout, mode) for layout in FREE_LAYOUTS for mode in ("ssp", "asp", "gossip")]


@pytest.mark.parametrize("case", thinned(FREE_CASES, 4), ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_bit_that_flips_in_the_sum_of_a_rest_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Layout, str]
) -> None:
    """All members would take over the same wrong parameters. On cards the pair is named, before anything is taken over."""
    total = Exchange.total

    def resting(exchange: Exchange, barrier: int, attempt: int, divisor: float) -> int:
        NOW.step = barrier
        try:
            return total(exchange, barrier, attempt, divisor)
        finally:
            NOW.step = 0

    layout, mode = case
    monkeypatch.setattr(Exchange, "total", resting)
    on_device(monkeypatch, Operations, regions(torch.int64, 1))
    with Sockets("unix", layout.workers) as sockets:
        ends = members_end(p.Wide, layout, wire=sockets.transport, sync={"name": mode, "rest_every": 2}, **FREE)
    assert "replica.other-sum" in {end.code for end in ends if isinstance(end, Inconsistent)}
    monkeypatch.setattr(Plan, "updates_stay_on_device", property(lambda plan: not plan.lockstep))
    on_device(monkeypatch, Operations, regions(torch.int64, 1))
    with Sockets("unix", layout.workers) as sockets:
        verdict = verdict_of(
            members_end(p.Wide, layout, wire=sockets.transport, sync={"name": mode, "rest_every": 2}, **FREE)
        )
    assert (verdict.copied, verdict.shard, verdict.wrong) == (True, None, ())
    assert verdict.between[1] == READER != verdict.between[0]


UPDATES = [
    (Layout(3), "ssp", 2),
    (Layout(3, "peer_to_peer"), "asp", 2),
    (Layout(4, "tree"), "ssp", 2),  # updates are handed on
    (Layout(3), "ssp", 7),  # a parameter leaves its range, and a shard fails
]


@pytest.fixture
def updates_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member's thread knows when it takes updates of others."""
    take = Traffic.take

    def taking(traffic: Traffic, *given: Any) -> None:
        NOW.step = 1
        try:
            take(traffic, *given)
        finally:
            NOW.step = 0

    monkeypatch.setattr(Traffic, "take", taking)


def pair_named(monkeypatch: pytest.MonkeyPatch, layout: Layout, mode: str, byte: int) -> tuple[int, ...]:
    """The sender and the reader that members on cards name, where the reader takes updates with a bit flipped."""
    monkeypatch.setattr(Plan, "updates_stay_on_device", property(lambda plan: not plan.lockstep))
    on_device(monkeypatch, Operations, regions(torch.int64, 1, byte))
    with Sockets("unix", layout.workers) as sockets:
        ends = members_end(p.Wide, layout, wire=sockets.transport, sync={"name": mode, "rest_every": 2}, **FREE)
    verdict = verdict_of(ends)
    assert (verdict.copied, verdict.shard, verdict.wrong) == (True, None, ())
    assert verdict.between[0] != verdict.between[1]
    return verdict.between


@pytest.mark.usefixtures("updates_taken")
@pytest.mark.parametrize("case", thinned(UPDATES, 2), ids=str)
def test_a_bit_that_flips_in_an_update_names_the_pair(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Layout, str, int]
) -> None:
    """The run ends where members are not on cards."""
    layout, mode, byte = case
    settings: dict[str, Any] = {**FREE, "sync": {"name": mode, "rest_every": 2}}
    with Sockets("unix", layout.workers) as sockets:
        on_device(monkeypatch, Operations, regions(torch.int64, 1, byte))
        ends = members_end(p.Wide, layout, wire=sockets.transport, **settings)
    assert {"replica.ledger", "loss.parameter-range"} & {getattr(end, "code", None) for end in ends}
    assert pair_named(monkeypatch, layout, mode, byte)[1] == READER


@pytest.mark.usefixtures("updates_taken")
def test_who_hands_a_damaged_update_on_is_not_taken_for_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that ends its async phase before it has applied what it has handed on compares that, too."""
    following, able = Deliveries.next, _AsyncPhase._next
    monkeypatch.setattr(Deliveries, "next", lambda self: None if self._me == READER else following(self))
    monkeypatch.setattr(
        _AsyncPhase,
        "_next",
        lambda self: None if self._me == READER and not self._deliveries.waiting() else able(self),
    )
    assert pair_named(monkeypatch, Layout(4, "tree"), "asp", 2)[1] == READER


def test_a_bit_set_in_one_update_and_cleared_in_the_next_does_not_cancel_out() -> None:
    traffic = SimpleNamespace(memory=SimpleNamespace(window=2), before=lambda origin: origin + 5)
    staging_of = SimpleNamespace(integers=lambda elements: torch.zeros(elements, dtype=torch.int64))
    replica = SimpleNamespace(
        replica=SimpleNamespace(staging=staging_of), compare_other=lambda delta, _, found: found.add_(delta.sum())
    )
    copies = _Copies(cast(Any, replica), cast(Any, traffic), workers=3)
    for origin, sent, arrived in [(0, 9, 9), (1, 0, 16), (1, 16, 0), (2, 5, 5)]:
        number = 1 + (sent > 0)
        copies.apply(Header(DELTA, origin, number, sent, (1,), (), ()), torch.tensor([arrived]))
    assert copies.damaged(()) == {1: 6}
