"""Workers whose GPUs fail, under a true driver and with true members: the failure is scripted, and there is no card."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from orchestrator.comm.collectives import Exchange
from orchestrator.config.plan import Plan as RunPlan
from orchestrator.config.settings import CheckpointSettings, Every, Settings
from orchestrator.controller.events import Begin
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.errors import OrchestratorError, PipelineRaised
from orchestrator.numerics.fixed_point import HOST
from orchestrator.worker.asynchronous.sync_barrier import Terms
from tests.products import thinned
from tests.virtual_cluster.cluster import Member
from tests.virtual_cluster.plans import Chance, Plan
from tests.virtual_cluster.runs import Run, Told
from tests.worker import faulty, pipelines
from tests.worker.runs import Layout, settings_for, train

pytestmark = pytest.mark.slow
STEPS = 6
PLAIN: dict[str, Any] = {"steps": STEPS, "shards": 4}
ASSERTION = "CUDA error: device-side assert triggered"
ECC = "CUDA error: uncorrectable ECC error encountered"
ILLEGAL = "CUDA error: an illegal memory access was encountered"


class Scripted(Chance):
    """The card of whoever begins this micro-batch fails, so many times."""

    def __init__(self, drawn: Plan, says: str, times: int) -> None:
        super().__init__(drawn)
        self.says, self.left = says, times

    def beats(self, member: Member) -> None:
        beat = member.last_beat or {}
        if self.left and (beat.get("activity"), beat.get("step"), beat.get("shard")) == ("compute", 2, 1):
            self.left -= 1
            raise torch.AcceleratorError(self.says)


class Preparing(Chance):
    """A card fails whenever a worker prepares there. cards: of the workers in the order in which they prepare; later ones find
    the broken one free."""

    def __init__(self, drawn: Plan, says: str, cards: str, broken: str) -> None:
        super().__init__(drawn)
        self.says, self.cards, self.broken = says, chain(cards, repeat(broken)), broken

    def prepares(self, member: Member) -> None:
        member.actor._card = card = next(self.cards)
        if card == self.broken:
            raise torch.AcceleratorError(self.says)


class FailsAgain(Chance):
    """The first card fails in two steps under whoever computes there; the third worker finds another one."""

    def __init__(self, drawn: Plan) -> None:
        super().__init__(drawn)
        self.steps = [1, 3]

    def prepares(self, member: Member) -> None:
        member.actor._card = "a" if member.number < 2 else "b"

    def beats(self, member: Member) -> None:
        beat = member.last_beat or {}
        if member.number < 2 and self.steps and (beat.get("activity"), beat.get("step")) == ("compute", self.steps[0]):
            del self.steps[0]
            raise torch.AcceleratorError(ECC)


UNCAUGHT = "Unhandled exception: N3c1016AcceleratorErrorE. what(): "


class Aborts(Chance):
    """A destructor of torch raises what a card failed of, so often: as a worker prepares, or as it begins a micro-batch."""

    def __init__(self, drawn: Plan, says: str, times: int, *, prepares: bool) -> None:
        super().__init__(drawn)
        self.says, self.left, self.early = says, times, prepares

    def prepares(self, member: Member) -> None:
        member.actor._card = f"GPU-{member.number}"
        if self.early:
            self._abort(member)

    def beats(self, member: Member) -> None:
        beat = member.last_beat or {}
        if not self.early and (beat.get("activity"), beat.get("step"), beat.get("shard")) == ("compute", 2, 1):
            self._abort(member)

    def _abort(self, member: Member) -> None:
        if self.left:
            self.left -= 1
            member.last_words = f"{UNCAUGHT}{self.says}\nException raised from record"
            self.cluster.kill(member)
            self.cluster.schedule.pause()


class StandsStill(Chance):
    """The first worker that is so far in its third step waits for its card without end; it answers all the while."""

    def __init__(self, drawn: Plan, activity: str) -> None:
        super().__init__(drawn)
        self.activity, self.left = activity, 1

    def prepares(self, member: Member) -> None:
        member.actor._card = f"GPU-{member.number}"

    def beats(self, member: Member) -> None:
        beat = member.last_beat or {}
        if self.left and (beat.get("activity"), beat.get("step")) == (self.activity, 2):
            self.left -= 1
            member.stuck = True
            self.cluster.schedule.wait_for(lambda: False)


class Drawn(Chance):
    """At random moments cards fail under their workers, as they prepare or compute, or are waited for without end. At most
    one failure is such that the pipeline might be blamed for it."""

    def __init__(self, drawn: Plan, seed: int) -> None:
        super().__init__(drawn)
        self.chance, self.left, self.struck = Random(seed), 4, list[str]()
        self.kinds = [ECC, ECC, "CUDA error: unknown error", "still", self.chance.choice([ASSERTION, ILLEGAL])]

    def prepares(self, member: Member) -> None:
        member.actor._card = f"GPU-{self.chance.randrange(5)}"
        self._strike(member, 0.15, "prepares")

    def beats(self, member: Member) -> None:
        activity = (member.last_beat or {}).get("activity", "prepare")
        if activity not in ("prepare", "idle"):
            self._strike(member, 0.03, activity)

    def _strike(self, member: Member, part: float, moment: str) -> None:
        if not self.left or self.chance.random() >= part:
            return
        self.left -= 1
        kind = self.chance.choice(self.kinds)
        if kind == "still" and moment == "prepares":
            kind = ECC
        if kind in (ASSERTION, ILLEGAL, "still"):
            self.kinds.remove(kind)
        self.struck.append(f"{kind} {moment}")
        self.cluster.tell(f"{member.name} on {member.actor._card}: {kind} {moment}")
        if kind != "still":
            raise torch.AcceleratorError(kind)
        member.stuck = True
        self.cluster.schedule.wait_for(lambda: False)


class OnCards(Run):
    def __init__(self, drawn: Plan, folder: Path, chance: Chance) -> None:
        super().__init__(drawn, folder)
        self._chance = self._cluster.misfortune = chance
        chance.cluster = self._cluster

    def _is_right(self, error: Exception) -> bool:  # noqa: ARG002
        return True


def lived(folder: Path, settings: Settings, says: str, times: int) -> tuple[Told, RunOutcome]:
    return through(folder, settings, lambda drawn: Scripted(drawn, says, times))


def through(folder: Path, settings: Settings, chance: Callable[[Plan], Chance]) -> tuple[Told, RunOutcome]:
    drawn = Plan(0, "cards", (settings,), 0.5, 0.1, 0, apart=False, everywhere=True, wild=False, misses_farewells=False)
    told = OnCards(drawn, folder, chance(drawn)).live()
    outcome = told.outcomes[-1]
    assert outcome is not None
    return told, outcome


def lost(told: Told) -> list[dict[str, Any]]:
    return [event for event in told.journal if event["event"] == "worker_lost"]


@pytest.mark.parametrize("mode", ["ssp", "gossip"])
def test_what_arrives_otherwise_in_the_sum_of_a_rest_names_the_pair_and_is_sent_again(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**PLAIN, "sync": {"name": mode, "rest_every": 2}}
    undisturbed = train(pipelines.Mlp, **settings).digest
    of, compare, once = Terms.of, Exchange._compare, [True]

    def on_cards(plan: RunPlan, begin: Begin) -> Terms:
        return replace(of(plan, begin), copies=True)

    def damaged(exchange: Exchange, peer: int, sent: int, arrived: int) -> None:
        compare(exchange, peer, sent, arrived ^ once.pop() if once else arrived)

    monkeypatch.setattr(Terms, "of", on_cards)
    monkeypatch.setattr(Exchange, "_compare", damaged)
    told, outcome = lived(tmp_path / "run", settings_for(pipelines.Mlp, Layout(3), **settings), ECC, 0)
    assert (outcome.error, outcome.steps, lost(told)) == (None, STEPS, [])
    (found,) = [event for event in told.journal if event["event"] == "answers_differ"]
    assert len(set(found["between"])) == 2
    assert mode == "ssp" or outcome.digest == undisturbed  # the former has another order each time


def test_an_update_that_arrives_otherwise_names_the_pair_and_the_phase_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**PLAIN, "sync": {"name": "ssp", "rest_every": 2}}
    of, take_in, once = Terms.of, type(HOST).take_in, [1]

    def on_cards(plan: RunPlan, begin: Begin) -> Terms:
        return replace(of(plan, begin), copies=True)

    def damaged(updating: Any, update: torch.Tensor, total: torch.Tensor, fingerprint: torch.Tensor) -> None:
        arrived = update.clone()
        arrived[0] += once.pop() if once else 0
        take_in(updating, arrived, total, fingerprint)

    monkeypatch.setattr(Terms, "of", on_cards)
    monkeypatch.setattr(type(HOST), "take_in", damaged)
    told, outcome = lived(tmp_path / "run", settings_for(pipelines.Mlp, Layout(3), **settings), ECC, 0)
    assert (outcome.error, outcome.steps, lost(told), once) == (None, STEPS, [], [])
    (found,) = [event for event in told.journal if event["event"] == "answers_differ"]
    assert len(set(found["between"])) == 2


@pytest.mark.parametrize(
    ("says", "code"), [(ASSERTION, "gpu.assertion"), pytest.param(ECC, "gpu.ecc", marks=pytest.mark.long)]
)
def test_what_a_card_failed_of_once_is_computed_elsewhere_to_the_same_bits(
    says: str, code: str, tmp_path: Path
) -> None:
    told, outcome = lived(tmp_path / "run", settings_for(pipelines.Mlp, Layout(2), **PLAIN), says, 1)
    assert outcome.error is None
    assert outcome.digest == train(pipelines.Mlp, **PLAIN).digest
    (event,) = lost(told)
    assert re.match(rf"failed on its GPU \({code}\): ", event["why"])
    (recovered,) = [
        each["steps_lost"] for each in told.journal if each["event"] == "recovered" and each["kind"] == "lost"
    ]
    assert recovered == 0


def test_a_lone_worker_whose_card_fails_twice_goes_on_on_another_one(tmp_path: Path) -> None:
    plain = settings_for(pipelines.Mlp, Layout(1), **PLAIN)
    settings = replace(plain, checkpoint=CheckpointSettings(every=Every(steps=1)))
    told, outcome = through(tmp_path / "run", settings, FailsAgain)
    assert outcome.error is None
    assert outcome.digest == train(pipelines.Mlp, **PLAIN).digest
    assert [event["why"].rpartition("; ")[2] for event in lost(told)][
        -1
    ] == "GPU a is left out from now on: it failed twice"
    assert [event["card"] for event in told.journal if event["event"] == "worker_started"] == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("cards", "least"),
    [("ab", 1), *(pytest.param(*each, marks=pytest.mark.long) for each in [("abc", 2), ("aab", 1)])],
)
def test_a_card_that_fails_before_the_first_step_costs_no_bit(cards: str, least: int, tmp_path: Path) -> None:
    """Another one takes its place; or the run begins with fewer workers."""
    settings = settings_for(pipelines.Mlp, Layout(2), **PLAIN)
    chance = lambda drawn: Preparing(drawn, ECC, cards, "a")  # noqa: E731
    told, outcome = through(tmp_path / "run", settings, chance)
    assert outcome.error is None
    assert outcome.digest == train(pipelines.Mlp, **PLAIN).digest
    assert all(event["why"].startswith("failed on its GPU a as it prepared (gpu.ecc): ") for event in lost(told))
    first = next(event for event in told.journal if event["event"] == "generation_started")
    assert len(first["members"]) == least


@pytest.mark.parametrize("prepares", [True, False])
@pytest.mark.parametrize(
    ("says", "code"), [(ASSERTION, "gpu.assertion"), (ECC, "gpu.ecc"), (ILLEGAL, "gpu.illegal-access")]
)
def test_a_card_that_ends_the_process_is_told_as_its_failure(
    says: str, code: str, prepares: bool, tmp_path: Path
) -> None:
    settings = settings_for(pipelines.Mlp, Layout(2), **PLAIN)
    told, outcome = through(tmp_path / "run", settings, lambda drawn: Aborts(drawn, says, 1, prepares=prepares))
    assert outcome.error is None
    assert outcome.digest == train(pipelines.Mlp, **PLAIN).digest
    (event,) = lost(told)
    assert re.match(rf"failed on its GPU GPU-\d{' as it prepared' * prepares} \({code}\): ", event["why"])
    where = "" if prepares else r" \(in step \d+, shard \d\)"
    assert re.search(rf"it ended the process{where}$", event["why"])


@pytest.mark.parametrize("prepares", [True, False])
def test_a_card_that_ends_the_process_wherever_a_micro_batch_is_computed_is_the_pipelines(
    prepares: bool, tmp_path: Path
) -> None:
    settings = settings_for(pipelines.Mlp, Layout(3), **PLAIN)
    told, outcome = through(tmp_path / "run", settings, lambda drawn: Aborts(drawn, ASSERTION, 9, prepares=prepares))
    assert ended_by(outcome).code == "gpu.assertion"
    assert len(lost(told)) == 1


@pytest.mark.long
@pytest.mark.parametrize("activity", thinned(["exchange", "compute", "update"], 3))
def test_who_stands_still_in_a_kernel_is_ended_and_costs_no_bit(activity: str, tmp_path: Path) -> None:
    """Also in an exchange, where others would wait for it without end."""
    settings = settings_for(pipelines.Mlp, Layout(3), **PLAIN)
    told, outcome = through(tmp_path / "run", settings, lambda drawn: StandsStill(drawn, activity))
    assert outcome.error is None
    assert outcome.digest == train(pipelines.Mlp, **PLAIN).digest
    (event,) = lost(told)
    assert f"in the {activity} phase of step 2" in event["why"]
    assert f"a kernel on its GPU GPU-{event['worker']} may not end" in event["why"]


@pytest.mark.parametrize("seed", thinned(range(60), 60))
def test_whatever_cards_do_and_when_no_bit_differs(seed: int, tmp_path: Path) -> None:
    """Or the run ends as too many have failed."""
    plain = train(pipelines.Mlp, **PLAIN).digest
    settings = settings_for(pipelines.Mlp, Layout(4), **PLAIN)
    told, outcome = through(tmp_path / "run", settings, lambda drawn: Drawn(drawn, seed))
    if outcome.error is None:
        assert outcome.digest == plain
    else:
        started = any(each["event"] == "generation_started" for each in told.journal)
        assert outcome.error.code == "gpu.none-left" if started else outcome.error.code.startswith("gpu.")


def ended_by(outcome: RunOutcome) -> OrchestratorError:
    assert outcome.error is not None
    return outcome.error


def test_an_assertion_that_comes_again_elsewhere_is_the_pipelines(tmp_path: Path) -> None:
    told, outcome = lived(tmp_path / "run", settings_for(pipelines.Mlp, Layout(3), **PLAIN), ASSERTION, 9)
    assert ended_by(outcome).code == "gpu.assertion"
    assert len(lost(told)) == 1


def test_what_the_pipeline_does_to_every_card_is_told_with_its_micro_batch(tmp_path: Path) -> None:
    settings = settings_for(faulty.FailsOnTheGpu, Layout(2), **PLAIN, args={"held_out": None})
    told, outcome = lived(tmp_path / "run", settings, "", 0)
    error = ended_by(outcome)
    assert isinstance(error, PipelineRaised)
    assert (error.code, "shard " in error.message, "look for an index or a label out of range" in error.remedy) == (
        "pipeline.raised",
        True,
        True,
    )
    assert len(lost(told)) == 1


def test_a_driver_that_does_not_match_ends_the_run_at_once(tmp_path: Path) -> None:
    told, outcome = lived(
        tmp_path / "run",
        settings_for(pipelines.Mlp, Layout(2), **PLAIN),
        "CUDA error: system has unsupported display driver / cuda driver combination",
        9,
    )
    error = ended_by(outcome)
    assert (error.code, error.exit_code) == ("gpu.driver-mismatch", 2)
    assert "reboot, or reload the module" in error.remedy
    assert lost(told) == []
