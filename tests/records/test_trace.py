"""The trace: lines that two equal runs have in common, and the merger that finds where two replicas part."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.trace import Disagreement, Line, Merger, line


@given(st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1))
def test_a_line_holds_every_bit(loss: float, fingerprint: int) -> None:
    entry = line(3, loss, fingerprint)
    assert float.fromhex(entry["loss"]).hex() == loss.hex()
    assert int(entry["gradient"], 16) == fingerprint % 2**64
    assert len(entry["gradient"]) == 16
    assert list(entry) == ["step", "loss", "gradient"]


def test_a_line_with_a_digest() -> None:
    assert line(0, 1.5, -1, "ab") == {
        "step": 0,
        "loss": "0x1.8000000000000p+0",
        "gradient": "f" * 16,
        "parameters": "ab",
    }
    assert line(1, math.inf, 0)["loss"] == "inf"


TRACE: list[Line] = [line(step, 1 / (step + 1), step, "digest" if step % 3 == 2 else None) for step in range(9)]


@st.composite
def interleavings(draw: st.DrawFn) -> list[list[Line]]:
    """What comes next, until each of 1 to 4 reporters has sent the whole trace; in order, or each piece at any time."""
    sent = [0] * draw(st.integers(1, 4))
    batches: list[list[Line]] = []
    while waiting := [reporter for reporter, count in enumerate(sent) if count < len(TRACE)]:
        reporter = draw(st.sampled_from(waiting))
        count = draw(st.integers(1, len(TRACE) - sent[reporter]))
        batches.append(TRACE[sent[reporter] : sent[reporter] + count])
        sent[reporter] += count
    return draw(st.permutations(batches)) if draw(st.booleans()) else batches


@given(interleavings())
def test_any_interleaving_gives_the_trace_once(batches: list[list[Line]]) -> None:
    """A line comes out as soon as it and all before it have come."""
    merger = Merger()
    written: list[Line] = []
    seen: set[int] = set()
    for lines in batches:
        seen |= {entry["step"] for entry in lines}
        written += merger.add(lines)
        whole = next(step for step in range(len(TRACE) + 1) if step not in seen)
        assert written == TRACE[:whole]
        assert merger.written == whole
    assert written == TRACE


WHAT = [(step, what) for step in range(9) for what in TRACE[step] if what != "step"]


@given(interleavings(), interleavings(), st.sampled_from(WHAT))
def test_a_replica_that_parts_is_found(
    batches: list[list[Line]], others: list[list[Line]], place: tuple[int, str]
) -> None:
    """Whoever is wrong and whenever it reports, the second report of the step tells."""
    step, what = place
    wrong = [[{**entry, what: "other"} if entry["step"] == step else entry for entry in lines] for lines in others]
    for first, second in ((batches, wrong), (wrong, batches)):
        merger = Merger()
        for lines in first:
            merger.add(lines)
        with pytest.raises(Disagreement, match=f"the {what} of step {step}:"):
            merger.add([entry for lines in second for entry in lines])


@given(st.integers(0, 9), st.sampled_from(WHAT))
def test_steps_that_are_computed_again_are_compared_with_what_they_were(start: int, place: tuple[int, str]) -> None:
    """After a resume from step `start` the lines from there on are written anew."""
    step, what = place
    merger = Merger(start)
    merger.expect(TRACE[start:])
    assert merger.add(TRACE[start:]) == TRACE[start:]
    again = Merger(start)
    again.expect(TRACE[start:])
    spoilt: list[Line] = [{**entry, what: "other"} if entry["step"] == step else entry for entry in TRACE[start:]]
    if step < start:
        assert again.add(spoilt) == TRACE[start:]
    else:
        with pytest.raises(Disagreement):
            again.add(spoilt)


def test_a_digest_that_only_one_has_is_no_contradiction() -> None:
    merger = Merger()
    assert merger.add([line(0, 1.0, 1)]) == [line(0, 1.0, 1)]
    assert merger.add([line(0, 1.0, 1, "digest")]) == []
    with pytest.raises(Disagreement, match="gradient"):
        merger.add([line(0, 1.0, 2)])
