"""State transfers when a generation of stages begins: nobody is left behind while its stage can follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.controller.state_recovery import Standing, StateRecovery, plan_recovery
from orchestrator.records.progress import Progress, behind, latest

BEFORE, DONE, EVALUATED = Progress(4), Progress(5, evaluated=False), Progress(5)


@pytest.mark.parametrize(
    ("standings", "expected"),
    [
        ([Standing(0, None), Standing(1, None)], StateRecovery()),
        ([Standing(0, DONE), Standing(1, DONE)], StateRecovery()),
        # a new member of stage 1 gets its stage's state
        ([Standing(0, DONE), Standing(1, DONE), Standing(1, None)], StateRecovery(transfers=((1, 2),))),
        # stage 1 has not applied the step, and holds its sum; the rest of the state comes from stage 0
        ([Standing(0, DONE), Standing(1, BEFORE, holds_sum=True)], StateRecovery((1,), ((0, 1),))),
        # so it is where another one of stage 1 has applied it: that is cheaper than to send parameters
        (
            [Standing(0, DONE), Standing(1, BEFORE, holds_sum=True), Standing(1, DONE), Standing(1, None)],
            StateRecovery((1,), ((0, 1),), ((2, 3),)),
        ),
        # two of stage 1 hold it, a third one is new
        (
            [
                Standing(0, DONE),
                Standing(1, BEFORE, holds_sum=True),
                Standing(1, BEFORE, holds_sum=True),
                Standing(1, None),
            ],
            StateRecovery((1, 2), ((0, 1), (0, 2)), ((1, 3),)),
        ),
        # nobody has applied the step: it is computed again
        ([Standing(0, BEFORE, holds_sum=True), Standing(1, BEFORE, holds_sum=True)], StateRecovery()),
        # stage 0 has evaluated: its metrics are handed over, no parameters
        ([Standing(0, EVALUATED), Standing(1, DONE)], StateRecovery(run_states=((0, 1),))),
        # stage 1 is new altogether
        ([Standing(0, DONE), Standing(1, None)], StateRecovery(lost=(1,))),
        # without a second vote stage 1 may be a step behind with nothing to follow by
        ([Standing(0, DONE), Standing(1, BEFORE)], StateRecovery(lost=(1,))),
        ([Standing(0, Progress(0)), Standing(1, None)], StateRecovery(run_states=((0, 1),))),
    ],
)
def test_some_hand_overs(standings: list[Standing], expected: StateRecovery) -> None:
    assert plan_recovery(standings, 2) == expected


@st.composite
def after_two_votes(draw: st.DrawFn) -> tuple[list[Standing], int]:
    """As the votes leave them: where one has applied a step, all others have, or hold its sum; some are new."""
    stages = draw(st.integers(1, 4))
    applied = draw(st.booleans())
    kinds = [Standing(0, BEFORE, holds_sum=True), *([Standing(0, DONE), Standing(0, EVALUATED)] if applied else [])]
    standings = []
    for stage in range(stages):
        old = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
        new = [Standing(0, None)] * draw(st.integers(0, 2))
        standings += [Standing(stage, each.progress, each.holds_sum) for each in (*old, *new)]
    return draw(st.permutations(standings)), stages


@given(after_two_votes())
def test_everybody_comes_to_the_top(case: tuple[list[Standing], int]) -> None:
    standings, stages = case
    found = plan_recovery(standings, stages)
    assert found.lost == ()
    top = latest(standing.progress for standing in standings)
    parameters = [standing.progress for standing in standings]  # as of where the parameters of a rank are
    whole = [standing.progress == top for standing in standings]
    for rank in found.applies:
        assert standings[rank].holds_sum
        assert [recipient for _, recipient in found.run_states].count(
            rank
        ) == 1  # from whom it hears of the second vote
        assert behind(parameters[rank], top) == 1
        parameters[rank] = top
    for donor, recipient in found.run_states:
        assert whole[donor]
        assert not whole[recipient]
        whole[recipient] = True
    for donor, recipient in found.transfers:
        assert standings[donor].stage == standings[recipient].stage
        assert whole[donor]
        assert not whole[recipient]
        parameters[recipient], whole[recipient] = parameters[donor], True
    assert all(whole)
    assert all(behind(each, top) == 0 for each in parameters)
