"""The records of rests: what is checked before they are repeated, where two runs part, and how stale updates were."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import barriers, comparison, identity
from orchestrator.records.clocks import AsyncPhase, Update
from orchestrator.records.trace import line
from orchestrator.records.verdict import RunResult, judge, parting

HOSTED = ((0,), (1,))


def made(*orders: str) -> list[dict[str, Any]]:
    """Rests of two workers with a shard each. orders: of the updates in a sprint, by worker; each has read all before it."""
    clocks: tuple[int, ...] = (0, 0)
    found: list[dict[str, Any]] = []
    for number, order in enumerate(orders):
        streams: tuple[list[Update], list[Update]] = ([], [])
        read = [0, 0]
        for worker in map(int, order):
            unread = len(streams[1 - worker]) - read[worker]
            streams[worker].append(Update(worker, ((1 - worker, unread),) if unread else ()))
            read[worker] += unread
        sprint = AsyncPhase(clocks, HOSTED, (tuple(streams[0]), tuple(streams[1])))
        clocks = sprint.end
        updates = base64.b64encode(sprint.encode()).decode()
        told = {"rest": number, "steps": sum(clocks) // 2, "clocks": list(clocks), "heirs": [], "updates": updates}
        found.append({**told, "evaluate": False, "parameters": f"{number:016x}"})
    return found


RESTS = made("0011", "0101", "10")
TRACE = [line(step, 1.0, step) for step in range(5)]


def changed(number: int, **new: Any) -> list[dict[str, Any]]:
    return [{**rest, **new} if rest["rest"] == number else rest for rest in RESTS]


def test_whole_records_are_taken() -> None:
    barriers.check(RESTS)
    barriers.check(RESTS, 2)
    assert [sprint.end for sprint in barriers.async_phases(RESTS)] == [(2, 2), (4, 4), (5, 5)]


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (RESTS[1:], r"rest 0: it has the number 1"),
        (changed(1, clocks=[4, 5]), r"rest 1: its updates lead to the clocks \[4, 4\], and it has \[4, 5\]"),
        (changed(1, clocks="ab"), r"rest 1: its steps have to be a whole number"),
        (changed(2, steps=1), r"rest 2: it stands after 1 steps, and the one before after 4"),
        (changed(1, updates="?"), r"rest 1: "),
        (changed(1, updates=RESTS[1]["updates"][:-8]), r"rest 1: record of a sprint: "),
        ([{"rest": 0}], r"rest 0: it has to have clocks, evaluate"),
        ([7], r"rest 0: it has to have clocks, evaluate"),
    ],
)
def test_damaged_records_are_refused(damaged: list[Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        barriers.check(damaged)


def test_records_of_a_run_with_other_shards_are_refused() -> None:
    with pytest.raises(ValueError, match="rest 0: "):
        barriers.check(RESTS, 3)


@given(st.integers(0, 2), st.sampled_from(["clocks", "heirs", "updates", "evaluate", "steps", "parameters"]))
def test_every_part_of_a_rest_is_a_part_of_the_identity(number: int, key: str) -> None:
    other = changed(number, **{key: "other" if key == "updates" else 99})
    assert (
        barriers.digest(other)
        != barriers.digest(RESTS)
        == barriers.digest([dict(reversed(rest.items())) for rest in RESTS])
    )
    found = parting(RESTS, other)
    assert found is not None
    assert (found.barrier, found.what, found.is_order) == (number, key, key != "parameters")


def test_only_asynchronous_runs_have_rests_in_their_identity() -> None:
    parts = dict.fromkeys(identity.PARTS, "x")
    with_rests = [
        identity.of({**parts, identity.BARRIERS: barriers.digest(each)}) for each in (RESTS, RESTS[:2], RESTS)
    ]
    assert with_rests[0] == with_rests[2] != with_rests[1]
    assert identity.of(parts) not in with_rests


def test_a_comparison_says_where_the_order_of_updates_differs() -> None:
    other = made("0011", "0110", "10")
    found = comparison.compare({"rests": RESTS, "trace": TRACE}, {"rests": other, "trace": TRACE})
    (difference,) = found.differences
    assert (difference.share, difference.kind, difference.text) == (
        "result",
        "order",
        "the order of updates differs: first at rest 1",
    )
    assert comparison.compare({"rests": RESTS}, {"rests": list(RESTS)}).differences == ()
    assert (
        comparison.compare({"rests": RESTS}, {"rests": changed(1, parameters="0")}).inputs(check_environment=True) == []
    )


def _verdict(got: list[dict[str, Any]], digest: str | None = "d", trace: list[Any] = TRACE) -> Any:
    original: RunResult = {"trace": TRACE, "rests": RESTS, "digest": digest}
    return judge(original, {"trace": trace, "rests": got, "digest": "d"})


def test_a_rerun_has_the_rests_of_its_original() -> None:
    assert _verdict(list(RESTS)).word == "exact"
    found = _verdict(changed(1, parameters="0" * 16))
    assert (found.word, found.first_divergence["step"]) == ("diverged", 3)
    assert found.first_divergence["what"] == "parameters of rest 1"
    assert found.text.startswith("diverged: step 3: parameters of rest 1 was ")
    assert _verdict(RESTS[:2]).first_divergence == {"step": 3, "what": "rest 2", "expected": '"a rest"', "got": None}


@pytest.mark.parametrize(("step", "what"), [(3, "gradient"), (4, "parameters of rest 1")])
def test_what_comes_first_is_the_first_divergence(step: int, what: str) -> None:
    """The lines of a sprint come before its rest."""
    trace = [line(each, 1.0, each + (each == step)) for each in range(5)]
    found = _verdict(changed(1, parameters="0" * 16), trace=trace).first_divergence
    assert (found["step"], found["what"]) == (3, what)


def test_an_original_that_did_not_finish_is_repeated_as_far_as_it_rested() -> None:
    assert _verdict([*RESTS, {**RESTS[2], "rest": 3}], digest=None).word == "exact"
    assert _verdict([*RESTS, {**RESTS[2], "rest": 3}]).word == "diverged"


def test_steps_of_the_original_behind_its_last_rest_do_not_count() -> None:
    """No record says in which order they were computed."""
    beyond: RunResult = {"trace": [*TRACE, line(5, 1.0, 5)], "rests": RESTS, "digest": "d"}
    found = judge(beyond, {"trace": TRACE, "rests": RESTS, "digest": "d"})
    assert (found.word, found.steps) == ("exact", len(TRACE))
    with pytest.raises(ValueError, match="nothing to compare"):
        judge({"trace": TRACE, "rests": [], "digest": None}, {"trace": TRACE, "rests": [], "digest": None})


@pytest.mark.parametrize(("order", "largest"), [("0101", 0), ("0011", 1), ("000011", 3)])
def test_staleness_is_how_far_a_shard_was_ahead(order: str, largest: int) -> None:
    (found,) = barriers.staleness(made(order))
    assert found.largest == largest
    assert len(found.updates) == len(order)


def test_staleness_over_rests() -> None:
    found = barriers.staleness(RESTS)
    assert [(each.steps, each.clocks) for each in found] == [(2, (2, 2)), (4, (4, 4)), (5, (5, 5))]


def test_no_rest_is_no_damage() -> None:
    checks: list[Callable[[list[Any]], Any]] = [barriers.check, barriers.staleness, barriers.digest]
    assert [check([]) for check in checks][:2] == [None, []]
