"""A machine that computes wrongly is found within `check.every` steps and named, its step is repeated, and no bit is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import NonFinite
from orchestrator.numerics import digests
from orchestrator.records.progress import steps_of
from orchestrator.worker.step.checking import Checks
from orchestrator.worker.step_report import Consensus, Shape, StepReport
from orchestrator.worker.worker import Worker
from tests.products import thinned
from tests.refusals import refused
from tests.worker import pipelines as p
from tests.worker.elastic import Elastic, Told, elastic_settings
from tests.worker.runs import ONE, Layout, train
from tests.worker.toys import ERROR_FEEDBACK

pytestmark = pytest.mark.threads

EVERY, STEPS = 4, 12
RUN: dict[str, Any] = {"steps": STEPS, "shards": 6, "batch_size": 18, "digest_every": 0}
Where = Literal["gradient", "parameters", "region"]


@given(st.integers(0, 2**40), st.integers(1, 600), st.integers(0, 10**9))
def test_of_any_so_many_steps_one_is_checked(seed: int, every: int, first: int) -> None:
    checks = Checks(seed, every)
    assert sum(checks.due(step) for step in range(first, first + every)) == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=8))
def test_a_vote_tells_which_answers_differ(given_: list[tuple[int, int]]) -> None:
    """Each of them by another member; some twice by one that is alone."""
    shape = Shape(3, 1, 0, checked=True)
    vectors = [StepReport(checks={shard: [answer]}).encode(shape) for shard, answer in given_]
    agreed = Consensus.decode(torch.stack([StepReport().encode(shape), *vectors]).max(0).values, shape)
    of = {shard: {answer for each, answer in given_ if each == shard} for shard, _ in given_}
    assert agreed.disputed == sorted(shard for shard, answers in of.items() if len(answers) > 1)
    alone = StepReport(checks={1: [4, 4], 2: [4, 5]}).encode(shape)
    assert Consensus.decode(alone, shape).disputed == [2]


# ---- bits that are flipped


@dataclass
class Flips:
    """From a step on one bit of what a member has is wrong, always the same or another one each time."""

    run: Elastic
    member: int
    where: Where
    first: int
    dice: Random
    alike: bool = True
    spoils: bool = False  # not a bit, but a number, which is not finite from then on

    def plant(self) -> None:
        member = self.run.everybody[self.member].member
        assert isinstance(member, Worker)
        self._worker = member
        held: Any = member._strategy.model_state
        replica, summation = held.replica, member._strategy._summation  # type: ignore[attr-defined]
        self._place = self.dice.random(), self.dice.randrange(12, 23)  # so that rounding does not hide it
        if self.where == "gradient":
            replica.contribution = self._after(replica.contribution, lambda found: self._flip(found[0]))
        elif self.where == "parameters":
            replica.begin_step = self._before(replica.begin_step, lambda: self._flip(replica.parameters[-1]))
        else:
            region = summation._memory.contribution
            summation.total = self._before(summation.total, lambda: self._flip(region[: replica.parameters[0].numel()]))

    def _is_time(self) -> bool:
        steps = steps_of(self._worker.progress)
        # An update writes what the next step begins with, and changes what stays.
        return steps + 1 == self.first if self.where == "parameters" else steps >= self.first

    def _flip(self, tensor: torch.Tensor) -> None:
        if self.spoils:
            tensor.data.view(-1)[0] = torch.inf
            return
        if not self.alike:
            self._place = self.dice.random(), self.dice.randrange(12, 23)
        at, bit = self._place
        bits = torch.as_strided(tensor.detach(), (tensor.numel(),), (1,)).view(
            torch.int64 if tensor.dtype == torch.float64 else torch.int32
        )
        bits.numpy()[int(at * tensor.numel())] ^= 1 << bit  # which raises no version

    def _before(self, original: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
        def found(*arguments: Any) -> Any:
            if self._is_time():
                act()
            return original(*arguments)

        return found

    def _after(self, original: Callable[..., Any], act: Callable[[Any], None]) -> Callable[..., Any]:
        def found(*arguments: Any, **options: Any) -> Any:
            result = original(*arguments, **options)
            if self._is_time():
                act(result)
            return result

        return found


def flipped(
    where: Where,
    seed: int,
    layout: Layout,
    *,
    alike: bool = True,
    first: int | None = None,
    spoils: bool = False,
    **more: Any,
) -> tuple[Elastic, int, int, Told]:
    """A run in which bits of one member are flipped from a step on; the run, the member, that step and what was told."""
    dice = Random(seed)
    settings = {**RUN, "seed": seed, "check_every": EVERY, **more}
    run = Elastic(elastic_settings(p.Mlp, layout, **settings), layout, keeps_width=dice.random() < 0.5)
    member = dice.randrange(layout.workers)
    first = dice.randrange(1, STEPS - EVERY + 1) if first is None else first
    Flips(run, member, where, first, dice, alike, spoils).plant()
    return run, member, first, run.run()


@pytest.mark.parametrize("where", thinned(["gradient", "parameters", "region"], 2))
@pytest.mark.parametrize("seed", thinned(range(20), 20, 10))
def test_a_flipped_bit_is_found_in_time_and_its_worker_named(where: Where, seed: int) -> None:
    """20 of 20, at random steps, workers and places; one seed of each topology where it has to be short."""
    topology = ("ring", "tree", "parameter_server", "peer_to_peer")[seed % 4]
    run, member, first, told = flipped(where, seed, Layout(3 + seed % 2, topology, nodes=1 + seed % 3 % 2))
    (verdict,) = run.verdicts
    assert verdict.wrong == (member,)
    assert 0 <= verdict.step - first < EVERY
    assert verdict.since <= first
    assert [line["step"] for line in told.trace] == list(range(STEPS))
    if verdict.step == first:
        assert told.digest == train(p.Mlp, ONE, **RUN, seed=seed).digest


@pytest.mark.parametrize("where", thinned(["gradient", "parameters"], 2, 1))
@pytest.mark.parametrize("seed", thinned(range(4), 4, 1))
def test_so_it_is_where_a_device_makes_prints_of_gradients(
    monkeypatch: pytest.MonkeyPatch, where: Where, seed: int
) -> None:
    monkeypatch.setattr(digests, "in_host_memory", lambda _: False)
    run, member, first, told = flipped(where, seed, Layout(3), check_every=1)
    assert [(each.step, each.wrong) for each in run.verdicts] == [(first, (member,))]
    assert told.digest == train(p.Mlp, ONE, **RUN, seed=seed).digest


@pytest.mark.parametrize("where", thinned(["gradient", "parameters", "region"], 3, 2))
@pytest.mark.parametrize("seed", thinned(range(3), 3))
def test_what_is_found_before_it_spreads_changes_no_bit(where: Where, seed: int) -> None:
    whole = train(p.Mlp, ONE, **{**RUN, "digest_every": 1}, seed=seed)
    more: dict[str, Any] = {"digest_every": 1, "check_every": 1}
    run, member, first, told = flipped(where, seed, Layout(3, nodes=3), **more)
    assert [(each.step, each.wrong) for each in run.verdicts] == [(first, (member,))]
    assert (told.digest, told.trace) == (whole.digest, whole.trace)


def test_of_two_workers_the_one_that_contradicts_itself_is_named() -> None:
    run, member, first, told = flipped("gradient", 5, Layout(2), alike=False, check_every=1)
    assert [(each.step, each.wrong) for each in run.verdicts] == [(first, (member,))]
    assert told.digest == train(p.Mlp, ONE, **RUN, seed=5).digest


@pytest.mark.parametrize("where", thinned(["gradient", "parameters"], 2))
@pytest.mark.parametrize("topology", thinned(["ring", "parameter_server"], 2, 1))
def test_a_number_that_is_not_finite_at_one_worker_alone_ends_no_run(where: Where, topology: str) -> None:
    """Whether a check is due or not."""
    never: dict[str, Any] = {"check_every": 1000}
    run, member, first, told = flipped(where, 5, Layout(3, topology), spoils=True, first=4, **never)
    assert [(each.step, each.wrong) for each in run.verdicts] == [(first, (member,))]
    assert told.digest == train(p.Mlp, ONE, **RUN, seed=5).digest


def test_a_number_that_is_not_finite_at_all_ends_the_run() -> None:
    settings = {**RUN, "optimizer": {"name": "sgd", "lr": 1e38}, "check_every": 1000}
    with pytest.raises(NonFinite):
        Elastic(elastic_settings(p.Mlp, Layout(3), **settings), Layout(3)).run()


@pytest.mark.parametrize("layout", [Layout(2), ONE])
def test_where_it_cannot_be_told_who_is_wrong_the_run_ends(layout: Layout) -> None:
    """Two that are both sure of their answer; one that is alone and gives two."""
    with refused("check.nobody-named"):
        flipped("gradient", 5, layout, alike=layout.workers > 1)


# ---- no bit is changed by looking


BESIDE: dict[str, dict[str, Any]] = {
    "buffers": {"pipeline": p.Batchnorm},
    "claims": {"claims": True},
    "divided": {"reduction": "exact", "sharded": True, "optimizer": {"name": "adamw", "lr": 0.01}},
    "local": {"local": {"steps": 2, "optimizer": {"name": "sgd", "lr": 0.05}}, "shards": 5},
    "quantize": {"compression": {"name": "quantize", "error_feedback": False}},
}


@pytest.mark.parametrize(
    "layout", thinned([Layout(4, "tree", nodes=2), ONE, Layout(3, "parameter_server"), Layout(2)], 4), ids=str
)
@pytest.mark.parametrize("name", thinned(BESIDE, 6))
def test_checks_change_no_bit(layout: Layout, name: str) -> None:
    settings = {**RUN, "steps": 5, **BESIDE[name]}
    pipeline = settings.pop("pipeline", p.Mlp)
    plain = Elastic(elastic_settings(pipeline, ONE, **settings), ONE).run()
    run = Elastic(elastic_settings(pipeline, layout, **settings, check_every=1), layout)
    told = run.run()
    assert (told.digest, told.trace, run.verdicts) == (plain.digest, plain.trace, [])


def test_what_a_shard_keeps_is_refused() -> None:
    settings = elastic_settings(p.Mlp, Layout(2), **RUN, check_every=1)
    with refused("check.kept"):
        Elastic(settings, Layout(2), contribution=ERROR_FEEDBACK)
