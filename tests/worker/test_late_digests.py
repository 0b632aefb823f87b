"""Digests that are made beside the next steps: the same trace, in its order, with a double of the card's stream of copies."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from orchestrator.common.values import Every
from orchestrator.numerics.digests import distinct_state, model_digest
from orchestrator.pipeline import Pipeline
from orchestrator.worker.between_steps import late_digests
from orchestrator.worker.between_steps.late_digests import LateDigests
from tests.worker import pipelines as p
from tests.worker.runs import Layout, train


class Card:
    """Implements `SideStream` and `Copies`. It copies as late as a card may: when what follows is held back."""

    def __init__(self) -> None:
        self.begun = self.held_back = 0
        self.fails: RuntimeError | None = None
        self.there = True
        self._under_way: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._made = threading.Event()

    def holds(self, tensor: torch.Tensor) -> bool:  # noqa: ARG002
        return self.there

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        return torch.full((size_bytes,), 7, dtype=torch.uint8)

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Card:
        self.begun += 1
        self._made.clear()
        self._under_way = list(zip(targets, sources, strict=True))
        return self

    @property
    def ended(self) -> bool:
        return self._made.is_set()

    def hold_back(self) -> None:
        self.held_back += 1
        with torch.no_grad():
            for target, source in self._under_way:
                target.copy_(source)
        self._made.set()

    def wait(self) -> None:
        assert self._made.wait(60)
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> list[Card]:
    """The cards of the workers that are made."""
    made: list[Card] = []

    def card() -> Card:
        made.append(Card())
        return made[-1]

    monkeypatch.setattr(late_digests, "CudaSideStream", card)
    return made


CASES: list[tuple[type[Pipeline], dict[str, Any]]] = [
    (p.Batchnorm, {"digest_every": 2}),
    (p.Attention, {"digest_every": 3, "tensors_every": 6, "evaluate_every": Every(steps=2)}),
    (p.Frozen, {"digest_every": 1, "local": {"steps": 2, "optimizer": {"name": "sgd", "lr": 0.05}}}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("pipeline", "settings"), CASES)
def test_the_trace_is_that_of_digests_that_steps_wait_for(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch, pipeline: type[Pipeline], settings: dict[str, Any]
) -> None:
    given = {"steps": 8, "shards": 4, **settings}
    beside = train(pipeline, Layout(2), **given)
    assert {card.begun for card in cards} == {sum((step + 1) % settings["digest_every"] == 0 for step in range(7))}
    monkeypatch.undo()
    plain = train(pipeline, Layout(2), **given)
    assert (beside.trace, beside.digest) == (plain.trace, plain.digest)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", [{"name": "asp", "threshold": 0.05, "rest_every": 2}, {"name": "gossip", "rest_every": 2}]
)
def test_replicas_that_run_free_do_not_wait_either(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any]
) -> None:
    """One worker, whose updates do not depend on timing. The last digest is that of the end."""
    given: dict[str, Any] = {"steps": 7, "args": {"rows": 21, "held_out": 4}, "digest_every": 2, "sync": mode}
    beside = train(p.Batchnorm, **given)
    assert {card.begun for card in cards} == {3}
    monkeypatch.undo()
    plain = train(p.Batchnorm, **given)
    assert (beside.trace, beside.rests, beside.digest) == (plain.trace, plain.rests, plain.digest)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))


def begun(late: LateDigests, of: torch.nn.Module, step: int = 0) -> bool:
    steady = {name for name, _ in of.named_parameters()}
    return late.begin(distinct_state(of), steady, lambda digest: {"trace": {"step": step, "parameters": digest}})


def line(step: int, digest: str | None) -> dict[str, Any]:
    return {"trace": {"step": step, "parameters": digest}}


def test_what_follows_is_told_behind_the_digest_and_nobody_waits() -> None:
    told: list[dict[str, Any]] = []
    late, trained = LateDigests(told.append, Card()), model()
    late.reserve(distinct_state(trained))
    late.emit({"trace": "before"})
    digest = model_digest(trained)
    assert begun(late, trained)
    trained(torch.randn(4, 3))  # the next passes move buffers
    late.emit({"trace": "behind"})
    assert told == [{"trace": "before"}]
    late.copied()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.zero_()  # the update
    late.emit({"trace": "far behind"})
    late.settle()
    assert told == [{"trace": "before"}, line(0, digest), {"trace": "behind"}, {"trace": "far behind"}]
    again = model_digest(trained)
    assert begun(late, trained, 1)
    assert begun(late, trained, 2)  # waits for the one before
    late.settle()
    assert told[-2:] == [line(1, again), line(2, again)]


def test_a_parameter_that_was_changed_while_it_was_copied_leaves_the_line_without_digest() -> None:
    told: list[dict[str, Any]] = []
    late, trained = LateDigests(told.append, Card()), model()
    assert begun(late, trained)
    with torch.no_grad():
        next(trained.parameters()).zero_()
    late.settle()
    assert told == [line(0, None)]


def test_a_card_that_fails_is_told_to_who_computes_and_no_line_has_a_gap_before_it() -> None:
    told: list[dict[str, Any]] = []
    card = Card()
    late = LateDigests(told.append, card)
    card.fails = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert begun(late, model())
    late.emit({"trace": "behind"})
    with pytest.raises(RuntimeError, match="illegal memory access"):
        late.settle()
    late.emit({"trace": "far behind"})
    assert told == []


def test_a_model_in_host_memory_and_one_without_room_for_a_copy_are_hashed_at_once() -> None:
    card = Card()
    late = LateDigests(lambda _: None, card)

    def full(size_bytes: int) -> torch.Tensor:
        raise RuntimeError(f"CUDA error: out of memory ({size_bytes})")

    card.host_memory = full  # type: ignore[method-assign]
    assert not begun(late, model())
    card.there = False
    assert not begun(late, model())
    assert card.begun == 0
