"""The trace: lines that two equal runs have in common, and the merger that finds where two replicas part."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
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
def interleavings(draw: st.DrawFn) -> list[tuple[int, list[Line]]]:
    """Who reports which lines next, until all of 1 to 4 reporters have sent the whole trace."""
    sent = [0] * draw(st.integers(1, 4))
    batches: list[tuple[int, list[Line]]] = []
    while waiting := [reporter for reporter, count in enumerate(sent) if count < len(TRACE)]:
        reporter = draw(st.sampled_from(waiting))
        count = draw(st.integers(0 if len(batches) < 30 else 1, len(TRACE) - sent[reporter]))
        batches.append((reporter, TRACE[sent[reporter] : sent[reporter] + count]))
        sent[reporter] += count
    return batches


@settings(max_examples=150)
@given(interleavings())
def test_any_interleaving_gives_the_trace_once(batches: list[tuple[int, list[Line]]]) -> None:
    """A line comes out with its first copy, and is forgotten with its last."""
    merger = Merger(1 + max(reporter for reporter, _ in batches))
    written: list[Line] = []
    furthest = 0
    for _, lines in batches:
        furthest = max(furthest, lines[-1]["step"] + 1 if lines else 0)
        written += merger.add(lines)
        assert written == TRACE[:furthest]
    assert written == TRACE
    assert not merger._pending


@settings(max_examples=150)
@given(interleavings(), st.integers(0, 8), st.sampled_from(["loss", "gradient", "parameters"]), st.data())
def test_a_replica_that_parts_is_found(
    batches: list[tuple[int, list[Line]]], step: int, what: str, data: st.DataObject
) -> None:
    """Whoever is wrong, the second report of the step tells; with one reporter there is nobody to differ."""
    reporters = 1 + max(reporter for reporter, _ in batches)
    wrong = data.draw(st.integers(0, reporters - 1))
    merger = Merger(reporters)

    def feed() -> None:
        for reporter, lines in batches:
            merger.add(
                [_spoilt(entry, what) if (reporter, entry["step"]) == (wrong, step) else entry for entry in lines]
            )

    if reporters == 1:
        feed()
    else:
        with pytest.raises(Disagreement, match=f"the {what} of step {step}:"):
            feed()


def _spoilt(entry: Line, what: str) -> Line:
    spoilt: dict[str, Any] = {**entry, what: "other"}
    return spoilt
