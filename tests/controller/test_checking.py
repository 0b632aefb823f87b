"""The choice of who checks whom, and of who is wrong when two answers differ."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.controller.checking import chosen, judge
from orchestrator.controller.shard_assignment import assign_shards

workers = st.integers(2, 7)
TRUTH = 11
answers = st.integers(0, 3) | st.just(TRUTH)


@given(workers, st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 4))
def test_each_checks_a_micro_batch_of_another_of_another_node_if_there_is_one(
    count: int, draw: int, more: int, nodes: int
) -> None:
    nodes = min(nodes, count)
    dealt = assign_shards(count + more, count)
    places = [rank * nodes // count for rank in range(count)]
    for rank in range(count):
        shards = chosen(draw, rank, dealt, places, dealt[rank])
        hosts = {other for other, own in enumerate(dealt) if {*shards} & {*own}}
        assert hosts == {
            other for other in range(count) if other != rank and (nodes == 1 or places[other] != places[rank])
        }


def test_who_is_alone_checks_itself_and_who_has_computed_all_nobody() -> None:
    assert chosen(7, 0, ((0, 1, 2),), (0,), (0, 1, 2)) == [1, 2, 0]
    assert chosen(7, 0, ((0,), (1,)), (0, 0), (0, 1)) == []  # it has claimed those of the other one


@st.composite
def disputes(draw: st.DrawFn) -> tuple[int, set[int], dict[int, int], dict[int, int]]:
    """So many workers, of which so few are wrong; their answers, and those of two at first, which differ."""
    count = draw(workers)
    wrong = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=max(1, (count - 1) // 2)))

    def answer(rank: int) -> int:
        return draw(answers) if rank in wrong else TRUTH

    again = {rank: answer(rank) for rank in range(count)}
    one = draw(st.sampled_from(sorted(wrong)))
    other = draw(st.sampled_from([rank for rank in range(count) if rank != one]))
    first = {one: draw(answers.filter(lambda each: each != TRUTH)), other: answer(other)}
    return count, wrong, first, again


@given(disputes())
def test_nobody_is_blamed_who_is_right(dispute: tuple[int, set[int], dict[int, int], dict[int, int]]) -> None:
    _, wrong, first, again = dispute
    assert {*judge(first, again)} <= wrong


@given(disputes())
def test_of_three_or_more_all_are_named_who_gave_a_wrong_answer(
    dispute: tuple[int, set[int], dict[int, int], dict[int, int]],
) -> None:
    count, wrong, first, again = dispute
    gave = {rank for rank in wrong if again[rank] != TRUTH or first.get(rank, TRUTH) != TRUTH}
    assert count == 2 or {*judge(first, again)} == gave


def test_of_two_the_one_that_contradicts_itself_is_wrong() -> None:
    assert judge({0: 5, 1: 6}, {0: 5, 1: 7}) == (1,)
    assert judge({0: 5, 1: 6}, {0: 6, 1: 6}) == (0,)
    assert judge({0: 5, 1: 6}, {0: 5, 1: 6}) == ()  # each is sure
    assert judge({0: 5, 1: 6}, {0: 7, 1: 7}) == ()  # neither was
    assert judge({0: 5}, {0: 6}) == ()  # alone


def test_a_pipeline_that_gives_each_time_something_else_blames_no_machine() -> None:
    assert judge({0: 1, 1: 2}, {0: 3, 1: 4, 2: 5}) == ()
    assert judge({0: 1, 1: 2}, {0: 3, 1: 3, 2: 3}) == ()
