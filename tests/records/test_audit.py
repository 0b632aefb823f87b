"""The draws, the comparisons and the claims of an audit: never more than was repeated."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import audit
from orchestrator.records.audit import Audit, AuditedSegment, Segment
from orchestrator.records.trace import Line, line

FIRST, KEPT = 0, {3: "s3", 6: "s6", 8: "s8", 12: "s12"}
TRACE: list[Line] = [
    line(step, 1 / (step + 1), step, f"p{step + 1}" if step + 1 in (3, 6, 7, 12) else None) for step in range(12)
]
SEGMENTS = audit.segments_of(FIRST, TRACE, KEPT)
BEGUN, SAVED = {3: "p3", 6: "p6"}, {3: "s3", 6: "s6", 12: "s12"}


def test_segments_lie_between_kept_states_of_which_the_trace_tells() -> None:
    """Not at step 8, of whose parameters it tells nothing, and not at 7, where nothing was kept."""
    assert [Segment(0, 3, None, "s3"), Segment(3, 6, "p3", "s6"), Segment(6, 12, "p6", "s12")] == SEGMENTS
    unfinished = audit.segments_of(FIRST, TRACE[:11], KEPT)
    assert unfinished == SEGMENTS[:2]
    without_last = audit.segments_of(FIRST, TRACE, {3: "s3"})
    assert without_last == [SEGMENTS[0], Segment(3, 12, "p3", None)]
    begun = audit.segments_of(3, TRACE[3:], KEPT)
    assert begun == [Segment(3, 6, None, "s6"), SEGMENTS[2]]
    assert audit.segments_of(0, [], {}) == []


@given(st.integers(1, 60), st.data())
def test_a_seed_draws_so_many_different_ones_in_order_and_the_same_again(total: int, data: st.DataObject) -> None:
    segments = [Segment(number, number + 1, None, None) for number in range(total)]
    count, seed = data.draw(st.integers(1, total)), data.draw(st.text())
    drawn = audit.drawn(segments, count, seed)
    assert len(set(drawn)) == count
    assert drawn == sorted(drawn)
    assert drawn == audit.drawn(segments, count, seed)


def test_every_segment_is_drawn_as_often_as_the_others() -> None:
    segments = [Segment(number, number + 1, None, None) for number in range(10)]
    counts = dict.fromkeys(segments, 0)
    for seed in range(2000):
        for each in audit.drawn(segments, 3, str(seed)):
            counts[each] += 1
    assert all(abs(count - 600) < 5 * math.sqrt(600) for count in counts.values())


@given(st.integers(1, 12), st.data())
def test_the_chance_of_missing_a_change_is_that_of_all_draws(total: int, data: st.DataObject) -> None:
    drawn, changed = data.draw(st.integers(1, total)), data.draw(st.integers(0, total))
    draws = list(itertools.combinations(range(total), drawn))
    unseen = sum(all(each >= changed for each in draw) for draw in draws)
    assert math.isclose(audit.missed(total, drawn, changed), unseen / len(draws))


def parts(
    again: list[Line] = TRACE, begun: dict[int, str] = BEGUN, saved: dict[int, str] = SAVED
) -> list[dict[str, Any] | None]:
    found = [audit.compared(segment, TRACE, again, begun, saved).parted for segment in SEGMENTS]
    return [None if each is None else dict(each) for each in found]


def test_what_comes_out_the_same_is_the_same() -> None:
    assert parts() == [None, None, None]


@given(st.integers(0, 11), st.sampled_from(["loss", "gradient", "parameters"]))
def test_a_changed_line_is_found_in_its_segment_alone(step: int, what: str) -> None:
    if what not in TRACE[step]:
        return
    again = [{**each, what: "0x1p+9"} if each["step"] == step else each for each in TRACE]
    found = parts(again)
    for segment, parted in zip(SEGMENTS, found, strict=True):
        if segment.first <= step < segment.end:
            assert parted == {"step": step, "what": what, "expected": TRACE[step][what], "got": "0x1p+9"}
        else:
            assert parted is None
    missing = parts([each for each in TRACE if each["step"] != step])
    assert sum(parted is not None for parted in missing) == 1


def test_a_segment_has_to_begin_and_to_end_with_the_recorded_state() -> None:
    begins = {"step": 2, "what": "parameters", "expected": "p3", "got": "other"}
    assert parts(begun={**BEGUN, 3: "other"}) == [None, begins, None]
    assert parts(begun={6: "p6"}) == [None, {**begins, "got": None}, None]
    ends = {"step": 5, "what": "state", "expected": "s6", "got": "other"}
    assert parts(saved={**SAVED, 6: "other"}) == [None, ends, None]
    assert parts(saved={3: "s3", 12: "s12"}) == [None, {**ends, "got": None}, None]


def test_an_evaluation_on_the_way_comes_out_again_where_both_have_made_one() -> None:
    then = {1: {"acc": 0.5}, 4: {"acc": 0.5}, 8: {"acc": 1.0}, 11: {"acc": 0.5}}
    now = {4: {"acc": 0.5}, 5: {"acc": 0.1}, 8: {"acc": 0.75}, 11: {"acc": 0.1}}
    parted = [audit.compared(each, TRACE, TRACE, BEGUN, SAVED, {}, (then, now)).parted for each in SEGMENTS]
    assert parted == [None, None, {"step": 8, "what": "metric:acc", "expected": "1.0", "got": "0.75"}]


def test_where_one_side_kept_places_in_streams_the_rest_is_compared() -> None:
    placed = [each._replace(without_streams="w6") if each.end == 6 else each for each in SEGMENTS]

    def state(segment: Segment, saved: str, without: str | None = None) -> Any:
        rest = {} if without is None else {6: without}
        parted = audit.compared(segment, TRACE, TRACE, BEGUN, {6: saved}, rest).parted
        return parted and (parted["expected"], parted["got"])

    assert [state(placed[1], "s6", "w6"), state(placed[1], "w6"), state(SEGMENTS[1], "p6", "s6")] == [None] * 3
    assert state(placed[1], "s6") is None  # an older version writes no other digest
    assert state(placed[1], "other", "w6") == ("s6", "other"), "both have places, and they differ"
    assert state(placed[1], "other") == ("w6", "other")
    assert state(SEGMENTS[1], "p6", "other") == ("s6", "other")


def test_it_claims_no_more_than_was_repeated() -> None:
    same = [AuditedSegment(segment, None) for segment in SEGMENTS]
    two = Audit((same[0], same[2]), 3, 12, "seed")
    assert (two.word, two.repeated, two.share) == ("audited", 9, 0.75)
    assert two.text == (
        "audited: 2 of 3 segments, 9 of 12 steps (75.0%) were repeated and agree to the last bit: 0-2, 6-11\n"
        "nothing is claimed of the other 1: one changed segment stays unseen with probability 0.33, 2 with at most 0.05 "
        "(seed seed)"
    )
    parted = audit.compared(SEGMENTS[1], TRACE, [], BEGUN, SAVED)
    diverged = Audit((same[0], parted), 3, 12, "seed")
    assert diverged.word == "diverged"
    assert diverged.text.startswith("diverged: step 3: loss: the rerun has none; of 2 of 3 segments")
    assert diverged.as_dict()["drawn"][1]["first_divergence"] == parted.parted
    for one in (two, diverged):
        other = replace(one, differences=("package torch: 1 -> 2",))
        assert other.word == "inputs-differ"
        assert other.text.startswith("inputs-differ: package torch: 1 -> 2. ")
    whole = Audit(tuple(same), 3, 12, "seed")
    assert (whole.word, whole.missed(1)) == ("audited", 0)
    assert "these are all of its segments" in whole.text


@pytest.mark.parametrize("word", [Audit((), 3, 12, "s", ("x",)).word, Audit((), 3, 12, "s").word])
def test_it_is_never_called_exact(word: str) -> None:
    assert word != "exact"
