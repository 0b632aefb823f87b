"""Architectures that people train, disturbed: members are lost in each place of the mesh, stopped runs go on in other stages.

A disturbed run tells what the unsplit, undisturbed one tells: each line of the trace, each evaluation, the digest.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from orchestrator.comm.collectives import VOTE
from orchestrator.comm.topologies import voting
from orchestrator.config.settings import Every
from orchestrator.worker.pipeline_parallel import messages
from tests.products import thinned
from tests.worker.elastic import Elastic, Fault, Sending, Told, elastic_settings, survive
from tests.worker.pipeline_parallel.zoo import ZOO
from tests.worker.runs import ONE, Layout

SQUARE = Layout(4, stages=2)  # members 0 and 2 host stage 0, members 1 and 3 stage 1
THREE, RAGGED = Layout(3, "tree", stages=3), Layout(5, "tree", stages=2)
STEPS = 5
SETTINGS: dict[str, Any] = {
    "steps": STEPS,
    "shards": 4,
    "batch_size": 8,
    "clip": 0.5,
    "optimizer": {"name": "adamw", "lr": 0.01},
    "evaluate_every": Every(steps=2),
    "tensors_every": STEPS,
}
# The agreement of step 2 comes along the chain 0, 1, 2, 3: the first and the last send once a vote, the others twice.
AGREES = {0: 2, 1: 5, 2: 5, 3: 2}
PARTS = [0.25, 0.5, 0.75]  # of what a member does in a run
GOES_ON = [(SQUARE, ONE), (ONE, SQUARE), (SQUARE, THREE), (Layout(4, stages=4), RAGGED), (THREE, SQUARE)]
KINDS = thinned(ZOO, len(ZOO))


@pytest.fixture(autouse=True)
def _one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Votes go along a chain, so that members hear one after the other what was agreed on."""
    monkeypatch.setattr(voting, "ARITY", 1)


@functools.cache
def undisturbed(kind: Any, layout: Layout) -> Told:
    return survive(kind, layout, **SETTINGS)


def survives(kind: Any, *faults: Fault, every: int | None = None) -> Told:
    told, expected = survive(kind, SQUARE, faults, every, **SETTINGS), undisturbed(kind, ONE)
    assert (told.trace, told.digest, told.metrics) == (expected.trace, expected.digest, expected.metrics), faults
    return told


@pytest.mark.slow
@pytest.mark.parametrize("member", thinned(range(4), 4))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_who_dies_between_its_sum_and_its_end_costs_no_step(kind: Any, member: int) -> None:
    told = survives(kind, Fault(member, Sending(messages.DONE, AGREES[member]), "die"))
    assert (told.went_back, told.generations) == (0, 2)


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("member", range(4))
@pytest.mark.parametrize("kind", ZOO, ids=lambda kind: kind.__name__)
def test_who_dies_at_some_moment_costs_no_step(kind: Any, member: int, part: float) -> None:
    at = int(undisturbed(kind, SQUARE).actions[member] * part)
    told = survives(kind, Fault(member, at, "die"))
    assert (told.went_back, told.generations) == (0, 2)


@pytest.mark.long
@pytest.mark.parametrize("every", [None, 2])
@pytest.mark.parametrize("kind", ZOO, ids=lambda kind: kind.__name__)
def test_the_last_host_of_a_stage_takes_all_back(kind: Any, every: int | None) -> None:
    """Without a checkpoint to values that are made anew, and with one to that; whoever replaces it stands by before."""
    lost = Fault(1, Sending(messages.DONE, AGREES[1]), "die"), Fault(3, Sending(VOTE, 4), "die")
    assert survives(kind, *lost, every=every).went_back == 1


@pytest.mark.long
@pytest.mark.parametrize("kind", ZOO, ids=lambda kind: kind.__name__)
def test_one_joins_where_another_was_lost(kind: Any) -> None:
    actions = undisturbed(kind, SQUARE).actions
    told = survives(kind, Fault(1, actions[1] // 3, "die"), Fault(2, actions[2] // 2, "join"))
    assert told.went_back == 0
    assert len(told.ends) == 5


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), GOES_ON, ids=str)
@pytest.mark.parametrize("kind", ZOO, ids=lambda kind: kind.__name__)
def test_what_is_stopped_goes_on_in_other_stages(kind: Any, before: Layout, after: Layout) -> None:
    expected = undisturbed(kind, ONE)
    at = undisturbed(kind, before).actions[0] // 2
    first = Elastic(elastic_settings(kind, before, **SETTINGS), before, [Fault(0, at, "stop")])
    stopped = first.run()
    assert stopped.stopped
    assert 0 < len(stopped.trace) < STEPS
    done = Elastic(elastic_settings(kind, after, **SETTINGS), after, saved=first.saved).run()
    assert (stopped.trace + done.trace, done.digest) == (expected.trace, expected.digest)
    assert stopped.metrics | done.metrics == expected.metrics
