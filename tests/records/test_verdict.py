"""The verdict names the first step that differs and what of it, whatever comes after, and never says exact of nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.records.trace import Line, line
from orchestrator.records.verdict import Verdict, divergence_text, first_divergence, judge


def trace(steps: int = 12, digest_every: int = 3, tensors_every: int = 4) -> list[Line]:
    lines = [
        line(step, 1 / (step + 1), step, f"digest {step}" if step % digest_every == 2 else None)
        for step in range(steps)
    ]
    for entry in lines[tensors_every - 1 :: tensors_every]:
        entry["tensors"] = {name: f"{name} {entry['step']}" for name in ("b", "a.weight", "c")}
    return lines


def judged(
    expected: list[Line], got: list[Line], digest: str | None, got_digest: str | None, differences: Sequence[str] = ()
) -> Verdict:
    return judge({"trace": expected, "digest": digest}, {"trace": got, "digest": got_digest}, differences)


def spoil(lines: list[Line], step: int, what: str) -> list[Line]:
    """A copy in which everything from `what` of `step` on is other, as it is when two runs part."""
    spoilt = copy.deepcopy(lines)
    for entry in spoilt[step:]:
        order = ["loss", "gradient", "tensors", "parameters"]
        for key in order[order.index(what) if entry["step"] == step else 0 :]:
            if key == "tensors" and key in entry:
                entry[key] = dict.fromkeys(entry[key], "other")
            elif key in entry:
                entry[key] = (-1.0).hex() if key == "loss" else "other"
    return spoilt


@given(st.integers(0, 11), st.sampled_from(["loss", "gradient", "parameters", "tensors"]))
def test_the_first_difference_is_found(step: int, what: str) -> None:
    lines = trace()
    assume(what in lines[step])
    found = judged(lines, spoil(lines, step, what), "d", "e")
    assert found.word == "diverged"
    assert found.first_divergence is not None
    assert found.steps == found.first_divergence["step"] == step
    assert found.first_divergence["what"] == {"tensors": "tensor:a.weight"}.get(what, what)
    assert found.first_divergence["expected"] != found.first_divergence["got"]
    follows = [
        entry["step"] for entry in lines[step:] if "tensors" in entry and (entry["step"], what) != (step, "parameters")
    ]
    assert found.tensors == ((follows[0], ("a.weight", "b", "c")) if follows else None)
    assert f"step {step}: " in found.text


@given(st.integers(0, 12), st.integers(1, 5), st.integers(1, 5))
def test_equal_traces_are_exact_also_with_other_intervals(steps: int, digests: int, tensors: int) -> None:
    found = judged(trace(steps), trace(steps, digests + 2, tensors), "d", "d")
    assert (found.word, found.first_divergence, found.steps, found.tensors) == ("exact", None, steps, None)
    assert found.text == f"exact: all {steps} steps and the final parameters agree to the last bit"


@given(st.integers(0, 11))
def test_a_missing_end_is_a_divergence(steps: int) -> None:
    lines = trace()
    short = judged(lines, lines[:steps], "d", None)
    assert short.first_divergence == {"step": steps, "what": "loss", "expected": lines[steps]["loss"], "got": None}
    long = judged(lines[:steps], lines, "d", "d")
    assert long.first_divergence == {"step": steps, "what": "loss", "expected": None, "got": lines[steps]["loss"]}
    assert (short.word, long.word) == ("diverged", "diverged")
    assert short.text.startswith(f"diverged: step {steps}: loss: the rerun has none")


@given(st.integers(1, 11))
def test_an_original_that_did_not_finish_is_repeated_as_far_as_it_went(steps: int) -> None:
    lines = trace()
    found = judged(lines[:steps], lines, None, "d")
    assert (found.word, found.steps) == ("exact", steps)
    assert found.text == f"exact: the {steps} steps made then agree to the last bit"
    spoilt = spoil(lines, steps - 1, "loss")
    assert judged(lines[:steps], spoilt, None, "d").word == "diverged"


def test_a_hole_is_found() -> None:
    lines = trace()
    found = first_divergence(lines, lines[:4] + lines[5:])
    assert found == {"step": 4, "what": "loss", "expected": lines[4]["loss"], "got": None}
    assert first_divergence([], []) is None


def test_the_final_digest_alone() -> None:
    lines = trace(5)
    found = judged(lines, lines, "d", "e")
    assert found.first_divergence == {"step": 4, "what": "parameters", "expected": "d", "got": "e"}
    assert found.word == "diverged"
    assert judged(lines, lines, "d", None).word == "diverged"


def test_inputs_that_differ_are_never_exact() -> None:
    lines = trace()
    same = judged(lines, lines, "d", "d", ["numpy is 2.1 instead of 2.0"])
    assert (same.word, same.first_divergence) == ("inputs-differ", None)
    assert same.text.startswith("inputs-differ: numpy is 2.1 instead of 2.0. Even so, all 12 steps")
    other = judged(lines, spoil(lines, 3, "gradient"), "d", "e", ["numpy"])
    assert (other.word, other.steps) == ("inputs-differ", 3)
    assert "step 3: gradient was" in other.text
    assert judged([], [], None, None, ["numpy"]).word == "inputs-differ"


def test_nothing_is_not_exact() -> None:
    for digests in ((None, None), (None, "d")):
        with pytest.raises(ValueError, match="nothing to compare"):
            judged([], [], *digests)
    assert judged([], [], "d", "d").word == "exact"
    assert judged([], [], "d", None).word == "diverged"


def test_a_tensor_that_one_side_lacks() -> None:
    left, right = trace(4), trace(4)
    del right[3]["tensors"]["b"]
    assert first_divergence(left, right) == {"step": 3, "what": "tensor:b", "expected": "b 3", "got": None}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda entry: {**entry, "loss": (0.25).hex()}, "step 1: loss was 0.5, is 0.25"),
        (lambda entry: {**entry, "loss": "nan"}, "step 1: loss was 0.5, is nan"),
        (lambda entry: {**entry, "gradient": "f" * 16}, f"step 1: gradient was {'0' * 15}1, is {'f' * 16}"),
    ],
)
def test_a_divergence_in_words(change: Callable[[Line], Line], text: str) -> None:
    lines = trace(2)
    changed: list[Any] = [lines[0], change(lines[1])]
    found = first_divergence(lines, changed)
    assert found is not None
    assert divergence_text(found) == text


@pytest.mark.parametrize(
    "machine",
    ["hardware gpu.models: H100 -> H200", "hardware cpu: EPYC -> Xeon"],
)
def test_another_machine_is_exact_with_the_same_bits_and_suspected_first_with_others(machine: str) -> None:
    original: Any = {"trace": trace(), "digest": "d"}
    same: Any = {"trace": trace(), "digest": "d"}
    other: Any = {"trace": spoil(trace(), 5, "loss"), "digest": "e"}
    found = judge(original, same, machines=[machine])
    assert (found.word, found.machines) == ("exact", (machine,))
    assert found.text.endswith(f"agree to the last bit; another machine changed nothing: {machine}")
    parted = judge(original, other, ["package numpy: 1 -> 2"], [machine])
    assert parted.word == judge(original, other, (), [machine]).word == "inputs-differ"
    assert parted.text.startswith(f"inputs-differ: {machine} (suspected first); package numpy: 1 -> 2. step 5: loss")
    agreeing = judge(original, same, ["package numpy: 1 -> 2"], [machine])
    assert agreeing.text.startswith(f"inputs-differ: package numpy: 1 -> 2; {machine}. Even so, all 12 steps")


def test_an_evaluation_that_differs_is_no_exact_repetition() -> None:
    """A validation set that follows from a clock or a service leaves every step as it was."""
    then = {
        3: {"validation/acc": 0.5, "validation/loss": 1.0},
        7: {"validation/acc": 1.0},
        11: {"validation/acc": "nan"},
    }
    now: dict[int, Any] = {3: then[3], 7: {"validation/acc": 0.75}, 11: {"validation/acc": "nan"}}
    original: Any = {"trace": trace(), "digest": "d", "evaluations": then}
    found = judge(original, {"trace": trace(), "digest": "d", "evaluations": now})
    assert (found.word, found.is_trained_alike, found.first_divergence) == (
        "diverged",
        True,
        {"step": 7, "what": "metric:validation/acc", "expected": "1.0", "got": "0.75"},
    )
    assert found.text == (
        "diverged: step 7: metric:validation/acc was 1.0, is 0.75; all 12 steps and the final parameters agree to the last bit"
    )
    lacking = judge(original, {"trace": trace(), "digest": "d", "evaluations": {3: {"validation/acc": 0.5}}})
    assert "metric:validation/loss: the rerun has none" in lacking.text
    parted = judge(original, {"trace": spoil(trace(), 9, "loss"), "digest": "e", "evaluations": now})
    assert not parted.is_trained_alike
    assert parted.first_divergence is not None
    assert parted.first_divergence["what"] == "loss"


def test_both_have_their_last_evaluation_or_none() -> None:
    """A validation set that is gone leaves no step at which both have one. A record without a journal tells of none."""
    then, ended = {11: {"validation/acc": 0.5}}, {"trace": trace(), "digest": "d"}
    original: Any = {**ended, "evaluations": then}
    found = judge(original, cast("Any", {**ended, "evaluations": {}}))
    assert (found.word, found.is_trained_alike) == ("diverged", True)
    assert "step 11: metric:validation/acc: the rerun has none; all 12 steps" in found.text
    new = judge(cast("Any", {**ended, "evaluations": {}}), original)
    assert "step 11: metric:validation/acc: the original has none" in new.text
    assert judge(original, cast("Any", ended)).word == judge(cast("Any", ended), original).word == "exact"


def test_evaluations_count_where_both_have_one_and_as_far_as_the_original_went() -> None:
    """How often is a matter of the execution. One that was interrupted had evaluated behind the step that it went back to."""
    then, now = {1: {"a": 1.0}, 8: {"a": 2.0}}, {1: {"a": 1.0}, 4: {"a": 9.0}, 8: {"a": 3.0}}
    found = judge(
        {"trace": trace()[:6], "digest": None, "evaluations": then},
        {"trace": trace(), "digest": "d", "evaluations": now},
    )
    assert (found.word, found.steps) == ("exact", 6)


def test_of_an_asynchronous_run_that_began_later_steps_behind_its_last_rest_do_not_count() -> None:
    """It was killed in a sprint, and its first step is not step 0."""
    lines = trace()[4:]
    rest = {"rest": 0, "steps": 10, "clocks": [10], "updates": "", "evaluate": False, "heirs": [], "parameters": "p"}
    again = spoil(lines, 10 - 4, "loss")
    found = judge({"trace": lines, "digest": None, "rests": [rest]}, {"trace": again, "digest": "d", "rests": [rest]})
    assert (found.word, found.steps) == ("exact", 6)
