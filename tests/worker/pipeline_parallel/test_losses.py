"""Losses of members of a model in stages: no step is lost while every stage keeps a host, and nobody is left behind."""

from __future__ import annotations

import random
from typing import Any

import pytest
from torch import nn

from orchestrator.comm.collectives import STATE_TRANSFER, VOTE
from orchestrator.comm.topologies import voting
from orchestrator.config.settings import Every
from orchestrator.errors import Inconsistent
from orchestrator.worker.pipeline_parallel import messages
from orchestrator.worker.strategies import PipelineStrategy
from orchestrator.worker.worker import Ended, Worker
from tests.products import thinned
from tests.worker import pipelines
from tests.worker.elastic import EVERYTHING, Elastic, Fault, Sending, Told, What, elastic_settings, survive
from tests.worker.runs import ONE, Layout, _Members, members_end, settings_for

SQUARE = Layout(4, stages=2)  # members 0 and 2 host stage 0, members 1 and 3 stage 1
RAGGED = Layout(5, "tree", stages=3)
SMALL: dict[str, Any] = {
    "steps": 4,
    "shards": 4,
    "batch_size": 8,
    "optimizer": {"name": "adam", "lr": 0.02},
    "clip": 0.5,
    "evaluate_every": Every(steps=2),
}


def _unsplit(kind: Any, settings: dict[str, Any]) -> Told:
    return survive(kind, ONE, **settings)


def _survives(layout: Layout, *faults: Fault, every: int | None = 2, **settings: Any) -> Told:
    """The run tells what the unsplit run tells, in every record."""
    kind = settings.pop("kind", pipelines.Mlp)
    settings = settings or SMALL
    told, unsplit = survive(kind, layout, faults, every, **settings), _unsplit(kind, settings)
    assert (told.trace, told.digest, told.metrics) == (unsplit.trace, unsplit.digest, unsplit.metrics), faults
    return told


@pytest.fixture(autouse=True)
def _one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Votes go along a chain, so that members hear one after the other what was agreed on."""
    monkeypatch.setattr(voting, "ARITY", 1)


# The agreement comes along the chain 0, 1, 2, 3: member 0 tells it first, the others with every second message.
AGREED = {0: Sending(messages.DONE, 2), 1: Sending(messages.DONE, 5), 2: Sending(messages.DONE, 5)}  # of step 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("member", "applied"),
    [(1, 2), pytest.param(0, 0, marks=pytest.mark.long), pytest.param(2, 1, marks=pytest.mark.long)],
)
def test_who_missed_the_end_of_the_second_vote_applies_the_sum_that_it_holds(member: int, applied: int) -> None:
    """A member dies before it hands on what step 2 agreed on; nobody has applied it where the first one does."""
    told = _survives(SQUARE, Fault(member, AGREED[member], "die"), every=None)
    assert (told.went_back, told.generations, told.applied) == (0, 2, applied)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "nth", "applied"), [("die", 2, 3), pytest.param("call off", 1, 3, marks=pytest.mark.long)]
)
def test_one_who_could_not_apply_it_yet_still_holds_it(what: What, nth: int, applied: int) -> None:
    """Member 1 is lost. Member 0, which alone has applied, tells member 2 the state of the run, and then cannot tell member 3,
    which hears of it in the next generation, from member 2 where member 0 is lost too."""
    again = Fault(0, Sending(STATE_TRANSFER, nth), what)
    told = _survives(SQUARE, Fault(1, AGREED[1], "die"), again, every=None)
    assert (told.went_back, told.generations, told.applied) == (0, 3, applied)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "member", "nth"),
    [
        (messages.DIGESTED, 1, 5),
        pytest.param(messages.DIGESTED, 2, 5, marks=pytest.mark.long),
        pytest.param(messages.SAVING, 1, 2, marks=pytest.mark.long),
    ],
)
def test_a_digest_or_a_checkpoint_that_some_have_finished_is_taken_by_all_or_none(
    phase: int, member: int, nth: int
) -> None:
    """Nobody is lost."""
    told = _survives(SQUARE, Fault(member, Sending(phase, nth), "call off"))
    assert (told.went_back, told.generations) == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, pytest.param(None, marks=pytest.mark.long)])
def test_the_last_host_of_a_stage_takes_all_back_to_the_checkpoint(every: int | None) -> None:
    """Both hosts of stage 1 die; without a checkpoint all go back to the beginning."""
    told = _survives(SQUARE, Fault(1, AGREED[1], "die"), Fault(3, Sending(VOTE, 4), "die"), every=every)
    assert told.went_back == 1


@pytest.mark.slow
def test_a_spare_holds_no_values_until_it_has_a_stage() -> None:
    members = _Members(settings_for(pipelines.Batchnorm, Layout(2, stages=2), **SMALL))
    expected = members_end(pipelines.Batchnorm, ONE, **SMALL)
    for member in members.members:
        assert isinstance(member, Worker)
        tensors = [*member._workload.model.parameters(), *member._workload.model.buffers()]
        member.become_spare()
        assert sum(tensor.untyped_storage().nbytes() for tensor in tensors) == 0
        assert isinstance(member._strategy, PipelineStrategy)
        assert member._strategy._replica is None
    (one,) = {end.digest for end in members.run() if isinstance(end, Ended)}
    assert [one] == [end.digest for end in expected if isinstance(end, Ended)]


class OtherwiseAgain(pipelines.Mlp):
    """Another model at the second call."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def model(self) -> nn.Module:
        found = super().model()
        for parameter in found.parameters():
            parameter.data += self.made
        self.made += 1
        return found


@pytest.mark.slow
def test_a_model_that_comes_out_otherwise_when_it_is_made_anew_is_told() -> None:
    members = _Members(settings_for(OtherwiseAgain, Layout(2, stages=2), **SMALL))
    for member in members.members:
        assert isinstance(member, Worker)
        member.become_spare()
    for end in members.run():
        assert isinstance(end, Inconsistent)
        assert "model() gave other first values when it was called once more" in str(end)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("layout", thinned([SQUARE, RAGGED], 2))
def test_one_more_joins_wherever_the_mesh_is_thinnest(layout: Layout) -> None:
    told = _survives(layout, Fault(1, 60, "join"), Fault(2, 90, "die"), kind=pipelines.Batchnorm, **EVERYTHING)
    assert told.went_back <= (layout is RAGGED)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("member", thinned(range(4), 4))
def test_a_stop_that_is_asked_of_any_member_is_gone_on_from_elsewhere(member: int) -> None:
    elsewhere = [Layout(3, "tree", stages=2), ONE][member % 2]
    settings = [elastic_settings(pipelines.Batchnorm, layout, **EVERYTHING) for layout in (SQUARE, elsewhere)]
    first = Elastic(settings[0], SQUARE, [Fault(member, 70, "stop")])
    stopped = first.run()
    assert stopped.stopped
    assert 0 < len(stopped.trace) < len(_unsplit(pipelines.Batchnorm, EVERYTHING).trace)
    done = Elastic(settings[1], elsewhere, saved=first.saved).run()
    expected = _unsplit(pipelines.Batchnorm, EVERYTHING)
    assert (stopped.trace + done.trace, done.digest) == (expected.trace, expected.digest)
    assert stopped.metrics | done.metrics == expected.metrics


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", thinned(range(60), 60))
def test_chaos(seed: int) -> None:
    """Several at once, also in the midst of a recovery; wherever a stage keeps a host, nobody goes back. A recovery from a
    checkpoint that is interrupted is begun once more, by each interruption at most."""
    dice = random.Random(seed)
    layout = dice.choice([SQUARE, RAGGED, Layout(3, "peer_to_peer", stages=2)])
    faults = [
        Fault(
            dice.randrange(layout.workers + 2), dice.randrange(10, 260), dice.choice(["die", "die", "call off", "join"])
        )
        for _ in range(dice.randint(2, 4))
    ]
    told = _survives(layout, *faults, kind=pipelines.Batchnorm, **EVERYTHING)
    deaths = sum(fault.what == "die" for fault in faults)
    assert told.went_back <= (len(faults) if deaths else 0)
