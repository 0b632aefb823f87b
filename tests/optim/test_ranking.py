"""The ranking of evaluations is what sorting all of them gives, also when it was put down and taken up in between."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.optim.ranking import Best, Ranking

VALUES = st.lists(st.sampled_from([0.5, 0.25, -0.0, math.inf, -math.inf, math.nan, 2.0]) | st.floats(), max_size=12)


@given(values=VALUES, keep=st.integers(1, 4), mode=st.sampled_from(["min", "max"]))
def test_it_is_what_sorting_gives(values: list[float], keep: int, mode: str) -> None:
    ranking = Ranking(Best("validation/loss", "min" if mode == "min" else "max", keep))
    for steps, value in enumerate(values, start=1):
        entered = ranking.after(value, steps)
        assert entered.has(steps) == (entered != ranking)
        ranking = ranking.resumed(json.loads(json.dumps(entered.as_list())))
        assert ranking == entered == entered.after(value, steps)  # an evaluation that is done once more changes nothing
    sign = 1 if mode == "min" else -1
    known = [(value, steps) for steps, value in enumerate(values, start=1) if not math.isnan(value)]
    expected = sorted(known, key=lambda entry: (sign * entry[0], entry[1]))[:keep]
    assert ranking.entries == tuple(expected)
