"""Members fail at any moment while replicas run free. The run tells in the end what comes out when its rests are repeated on
another layout, though members are lost there too.

Two live runs of one configuration differ, so nothing is compared with an undisturbed one.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from orchestrator.config.settings import Every
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.elastic import Elastic, Fault, Saved, Told, What, elastic_settings
from tests.worker.runs import Layout

pytestmark = pytest.mark.slow

RICH: dict[str, Any] = {
    "steps": 7,
    "shards": 4,
    "batch_size": 8,
    "args": {"rows": 18, "held_out": 4},
    "optimizer": {"name": "adam", "lr": 0.02},
    "clip": 0.5,
    "evaluate_every": Every(steps=2),
    "checkpoint_every": 2,
}
MODES: list[dict[str, Any]] = [
    {"name": "bap"},
    {"name": "ssp", "staleness": 1},
    {"name": "asp", "threshold": 0.05},
    {"name": "asp", "staleness": 2},
]
TOPOLOGIES = [
    Layout(2, "ring"),
    Layout(3, "tree"),
    Layout(2, "parameter_server", servers=2),
    Layout(3, "peer_to_peer"),
    Layout(4, "ring"),
]


def run_of(layout: Layout, faults: list[Fault], number: int, **how: Any) -> tuple[Told, Elastic]:
    """number: of the mode, and of how often it rests."""
    mode = {**MODES[number % 4], "rest_every": [1, 3, 20][number % 3]}
    run = Elastic(elastic_settings(p.Batchnorm, layout, **RICH, sync=mode), layout, faults, **how)
    return run.run(), run


def assert_repeated(told: Told, number: int, faults: list[Fault] | None = None) -> Elastic:
    layout = TOPOLOGIES[(number + 1) % len(TOPOLOGIES)]
    again, run = run_of(layout, faults or [], number, replay=told.rests)
    assert again.rests == told.rests
    assert again.trace == told.trace
    assert again.metrics == told.metrics
    assert again.digest == told.digest
    return run


@pytest.mark.long
@pytest.mark.parametrize("number", range(5))
def test_nothing_happens(number: int) -> None:
    told, run = run_of(TOPOLOGIES[number], [], number)
    assert (told.generations, run.went_back) == (1, 0)
    assert_repeated(told, number)


PERIOD = 23


@pytest.mark.parametrize("first", thinned(range(PERIOD), PERIOD, 13))
def test_a_generation_may_be_called_off_at_any_moment(first: int) -> None:
    told, run = run_of(
        TOPOLOGIES[first % 5], [Fault(first % 2, first + PERIOD * i, "call off") for i in range(6)], first
    )
    assert told.generations > 1
    assert (run.went_back, run.inherited) == (0, [])
    assert_repeated(told, first)


@pytest.mark.parametrize("first", thinned(range(PERIOD), PERIOD, 13))
def test_members_may_die_at_any_moment(first: int) -> None:
    """Nobody goes back: what their shards kept is replaced by what the lowest living one keeps."""
    layout = [Layout(4, "ring"), Layout(4, "tree"), Layout(4, "parameter_server")][first % 3]
    told, run = run_of(layout, [Fault(i, first + PERIOD * i, "die") for i in range(3)], first)
    assert sum(ends[-1] == "dead" for ends in told.ends) >= 2
    assert run.went_back == 0
    assert_repeated(told, first)


@pytest.mark.parametrize("first", thinned(range(PERIOD), PERIOD, 7))
def test_so_they_may_in_a_replay(first: int) -> None:
    """There all go back, for another heir would change bits."""
    told, _ = run_of(Layout(3), [Fault(1, 3 * first, "die")], first)
    faults = [Fault(i, first + PERIOD * i, "die") for i in range(2)]
    faults += [Fault(0, first + PERIOD * i + 5, "call off") for i in range(3)]
    assert_repeated(told, first, faults)


@pytest.mark.long
@pytest.mark.parametrize("first", thinned(range(PERIOD), PERIOD, 1))
def test_gossip_may_be_disturbed_at_any_moment(first: int) -> None:
    """Also between the sum of a rest and its last message: who has not heard that, is where it was."""

    def gossip(layout: Layout, faults: list[Fault], **how: Any) -> tuple[Told, Elastic]:
        sync = {"name": "gossip", "rest_every": 2}
        run = Elastic(elastic_settings(p.Batchnorm, layout, **RICH, sync=sync), layout, faults, **how)
        return run.run(), run

    layout, other = [Layout(3), Layout(3, "tree"), Layout(3, "peer_to_peer")][first % 3], Layout(2)
    whole, _ = gossip(other, [])
    called_off, run = gossip(layout, [Fault(first % 2, first + PERIOD * i, "call off") for i in range(6)])
    assert run.went_back == 0
    assert (called_off.trace, called_off.digest, called_off.metrics) == (whole.trace, whole.digest, whole.metrics)
    told, run = gossip(layout, [Fault(i, first + PERIOD * i, "die") for i in range(2)])
    assert run.went_back == 0
    faults = [Fault(1, first + 7, "die"), Fault(0, first + PERIOD, "call off")]
    again, _ = gossip(other, faults, replay=told.rests)
    assert (again.rests, again.trace, again.metrics, again.digest) == (
        told.rests,
        told.trace,
        told.metrics,
        told.digest,
    )


@pytest.mark.long
@pytest.mark.parametrize("at", range(4, 60, 4))
def test_members_may_join_at_any_moment(at: int) -> None:
    told, run = run_of(Layout(1), [Fault(0, at, "join"), Fault(0, at, "join"), Fault(0, at + 30, "join")], at)
    assert run.went_back == 0
    assert_repeated(told, at)


@pytest.mark.long
@pytest.mark.parametrize("at", thinned(range(0, 40, 3), 14, 6))
@pytest.mark.parametrize("what", thinned(["die", "call off"], 2))
def test_a_handover_may_be_interrupted_anywhere(at: int, what: What) -> None:
    joins = [Fault(0, 24, "join"), Fault(0, 24, "join")]
    told, _ = run_of(Layout(2), [*joins, Fault(2, at, what), Fault(1, 24 + 2 * at, "call off")], at)
    assert_repeated(told, at)


@pytest.mark.parametrize("at", thinned(range(10, 70, 5), 12, 6))
def test_all_may_die_and_the_last_checkpoint_brings_the_run_back(at: int) -> None:
    told, _ = run_of(Layout(2), [Fault(0, at, "die"), Fault(1, at + at % 3, "die")], at)
    assert_repeated(told, at)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(48))
def test_chaos(seed: int) -> None:
    disturbed(seed)


def disturbed(seed: int) -> None:
    """A run and its replay, to both of which everything happens, whenever it comes."""
    draw = random.Random(seed)
    topology = draw.choice(["ring", "tree", "parameter_server", "peer_to_peer", "hierarchical"])
    nodes = 2 if topology == "hierarchical" else 1
    servers = draw.choice([1, 2]) if topology == "parameter_server" else None
    kinds: list[What] = ["die", "join", "join", "call off", "regroup", "save"]
    faults = [Fault(draw.randrange(7), draw.randrange(120), draw.choice(kinds)) for _ in range(12)]
    layout = Layout(draw.randint(1, 4), topology, servers=servers, nodes=nodes)
    number, busy_for = draw.randrange(12), draw.choice([0, 0, 3])
    told, _ = run_of(layout, faults, number, busy_for=busy_for)
    assert_repeated(told, number)
    assert_repeated(told, number, [Fault(draw.randrange(5), draw.randrange(120), draw.choice(kinds)) for _ in range(8)])


@pytest.mark.long
@pytest.mark.parametrize("number", range(4))
def test_a_stopped_run_goes_on_with_other_workers(number: int) -> None:
    saved = Saved()
    before, _ = run_of(Layout(3), [Fault(1, 26 + 5 * number, "stop")], number, saved=saved)
    assert before.stopped
    after, _ = run_of(TOPOLOGIES[number], [], number, saved=saved)
    assert after.trace[: len(before.trace)] == before.trace
    assert_repeated(after, number)
