"""Lines of a trace that travel alone: what they are cannot be told otherwise than the root has it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import excerpt, merkle

LOSS = st.floats(allow_nan=False, width=32)


@st.composite
def excerpts(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """With the root of its trace."""
    first = draw(st.integers(0, 50))
    losses = draw(st.lists(LOSS, min_size=2, max_size=30))
    trace = [json.dumps({"step": first + i, "loss": loss.hex()}).encode() for i, loss in enumerate(losses)]
    begin = draw(st.integers(first, first + len(trace) - 1))
    end = draw(st.integers(begin + 1, first + len(trace)))
    told = excerpt.make("a" * 32, trace, first, begin, end)
    return json.loads(json.dumps(told)), merkle.head([merkle.leaf(line) for line in trace])


@given(excerpts())
def test_what_was_taken_out_of_a_trace_is_believed(case: tuple[dict[str, Any], str]) -> None:
    told, root = case
    assert told["root"] == root
    assert excerpt.problem(told, root) is None


@given(excerpts(), st.data())
def test_another_loss_step_place_order_or_root_is_refused(
    case: tuple[dict[str, Any], str], data: st.DataObject
) -> None:
    told, root = case
    at = data.draw(st.integers(0, len(told["lines"]) - 1))
    line = json.loads(told["lines"][at])

    def refused(**changed: Any) -> None:
        assert excerpt.problem({**told, **changed}, root) is not None, changed

    def instead(**values: Any) -> list[str]:
        return [*told["lines"][:at], json.dumps({**line, **values}), *told["lines"][at + 1 :]]

    refused(lines=instead(loss="0x1p-3"))
    refused(lines=instead(step=line["step"] + 1))
    refused(lines=[*told["lines"][:at], *told["lines"][at + 1 :]])
    refused(lines=[*told["lines"], told["lines"][-1]])
    refused(begin=told["begin"] + 1)
    if "0" * 64 not in root:
        assert excerpt.problem(told, f"{root.partition(':')[0]}:{'0' * 64}") is not None
    lines, _, digest = root.partition(":")
    moved = [json.dumps({**json.loads(each), "step": json.loads(each)["step"] + 1}) for each in told["lines"]]
    refused(lines=moved, begin=told["begin"] + 1)
    if told["path"]:
        refused(path=told["path"][1:])
        refused(path=[*told["path"][1:], told["path"][0]] if len(told["path"]) > 1 else ["00" * 32])
    assert excerpt.problem(told, f"{int(lines) + 64}:{digest}") is not None


@pytest.mark.parametrize(
    "told",
    [
        {},
        [],
        {"lines": 3},
        {"lines": ["{"], "first": 0, "begin": 0, "path": []},
        {"lines": ["{}"], "first": math.inf, "begin": 0, "path": []},  # 1e999 in JSON
        {"lines": ['{"step": 0, "loss": "\ud800"}'], "first": 0, "begin": 0, "path": []},
    ],
)
def test_what_is_no_excerpt_is_said(told: Any) -> None:
    assert "no part of a trace" in str(excerpt.problem(told, f"3:{'0' * 64}"))


def test_there_are_no_lines_outside_of_a_trace() -> None:
    with pytest.raises(ValueError, match="there are none from 3 up to 5"):
        excerpt.make("a", [b"{}"] * 4, 0, 3, 5)
