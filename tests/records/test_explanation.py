"""Two repetitions tell chance within a step from what has changed since the original, and name what differs between them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.explanation import Explanation, explain
from orchestrator.records.trace import Line, line
from orchestrator.records.verdict import Divergence, first_divergence, judge

STEPS = 8
steps = st.integers(0, STEPS - 1)
tensors_every = st.integers(1, 5)


def trace(tensors_every: int = 1, *, other_from: int = STEPS, salt: str = "") -> list[Line]:
    """From step `other_from` on everything is another thing, called by `salt`."""
    found = []
    for step in range(STEPS):
        mark = salt if step >= other_from else ""
        names = {name: f"{name}{step}{mark}" for name in "ab"} if step % tensors_every == tensors_every - 1 else None
        found.append(line(step, step + len(mark) / 8, 10 * step + len(mark), tensors=names))
    return found


def parting(original: list[Line], first: list[Line]) -> Divergence:
    found = first_divergence(original, first)
    assert found is not None
    return found


@given(steps, tensors_every, steps)
def test_the_same_twice_is_no_chance(at: int, every: int, more: int) -> None:
    """However far the second repetition goes beyond the step."""
    original, first = trace(every), trace(other_from=at, salt="x")
    second = trace(other_from=at, salt="x")[: max(at, more) + 1]
    found = explain(parting(original, first), original, first, second)
    assert found == Explanation(at, ())
    assert f"step {at} came out the same twice here: not chance within the step" in found.text


@given(steps, tensors_every)
def test_what_differs_between_repetitions_is_named(at: int, every: int) -> None:
    original, first, second = trace(every), trace(other_from=at, salt="x"), trace(other_from=at, salt="yy")
    found = explain(parting(original, first), original, first, second)
    assert found == Explanation(at, ("loss", "gradient", "tensor:a", "tensor:b"))
    assert f"step {at} came out in yet another way: chance within the step" in found.text
    assert found.text.endswith("between the two repetitions differ: loss, gradient, the tensors a, b")


@given(steps, tensors_every)
def test_a_second_repetition_that_comes_out_as_the_original_is_chance_too(at: int, every: int) -> None:
    original, first = trace(every), trace(other_from=at, salt="x")
    found = explain(parting(original, first), original, first, trace())
    assert (found.step, found.as_original) == (at, True)
    assert f"step {at} came out as in the original: chance" in found.text


@given(steps, steps, tensors_every)
def test_repetitions_that_part_before_the_original_did(one: int, other: int, every: int) -> None:
    early, late = sorted((one, other))
    original, first, second = trace(every), trace(other_from=late, salt="x"), trace(other_from=early, salt="yy")
    found = explain(parting(original, first), original, first, second)
    assert (found.step, found.as_original) == (early, False)


def test_one_tensor() -> None:
    original, first, second = trace(3), trace(other_from=4, salt="x"), trace(other_from=4, salt="x")
    second[4]["tensors"]["b"] = "z"
    found = explain(parting(original, first), original, first, second)
    assert found.as_dict() == {"step": 4, "differs": ["tensor:b"], "as_original": False}
    assert found.text.endswith("differ: the tensors b")


def test_a_final_digest_is_all_that_differed() -> None:
    """The original has no digests to tell whether the second repetition came out as it did."""
    original, first, second = trace(STEPS + 1), trace(), trace()
    parted = judge({"trace": original, "digest": "d"}, {"trace": first, "digest": "e"}).first_divergence
    assert parted is not None
    assert explain(parted, original, first, second) == Explanation(STEPS - 1, ())
    second[-1]["tensors"]["a"] = "z"
    assert explain(parted, original, first, second) == Explanation(STEPS - 1, ("tensor:a",))


def test_a_step_that_the_repetitions_do_not_have() -> None:
    original, first = trace(), trace()[:5]
    parted = parting(original, first)
    assert explain(parted, original, first, first) == Explanation(5, ())
    assert explain(parted, original, first, original) == Explanation(5, ("loss",), as_original=True)
