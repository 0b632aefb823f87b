"""Whether a rerun repeated its original to the last bit, and if not, where they part.

    exact           same inputs, every line of the traces, the final digest and the evaluations agree; also on another processor
                    or GPU, which is named
    diverged        same inputs, and something differs: `first_divergence` says at which step, what, and both values
    inputs-differ   code, data, settings or environment differ, so no exactness is claimed, whether the traces agree or not
                    (F7); or bits do, on another processor or GPU, which is the first to be suspected

A line is compared in the order in which a step makes its parts: loss, gradient, parameters. Parameters, and digests of single
tensors, are compared where both lines have them. Evaluations come last, at the steps after which both runs have made one, and
at the end of both: how often they are made may be changed, and what they give is as exact as a step. In asynchronous runs the
sync barriers are compared, too, and the original's trace up to its last sync barrier: no record says in which order later
updates were computed. An original that did not finish (it has no final digest) is repeated as far as it went: what the rerun
computed beyond is no divergence. Which inputs count is decided in `comparison.py`. Pure; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, TypedDict

from orchestrator.errors import few
from orchestrator.records.barriers import ORDER, OUTCOME, Barrier
from orchestrator.records.identity import canonical
from orchestrator.records.trace import Line, is_hidden

Word = Literal["exact", "diverged", "inputs-differ"]
TENSOR = "tensor:"
METRIC = "metric:"
NAMED = 5  # tensors in a sentence


class RunResult(TypedDict, total=False):
    """The result of a run."""

    trace: Iterable[Line]  # in order of the steps; to be gone through more than once
    rests: Sequence[Barrier]  # the records of the sync barriers of an asynchronous run
    digest: str | None  # SHA-256 of the final parameters; None if the run did not finish
    best: str | None  # likewise of the run's model, if that is not the last one
    evaluations: Mapping[int, Mapping[str, Any]]  # the metrics of each by the last step before it


class Divergence(TypedDict):
    """The first difference between two runs. what: `loss`, `gradient`, `parameters`, `tensor:NAME`, `metric:NAME`, or `KEY
    of rest NUMBER`; expected, got: None where a side has no such thing."""

    step: int
    what: str
    expected: str | None
    got: str | None


class Parting(NamedTuple):
    """The first sync barrier in which two runs differ. step: the last one before it; what: the first key that differs, None
    where only one of them has this sync barrier; a, b: what they say there."""

    barrier: int
    step: int
    what: str | None
    a: Any
    b: Any

    @property
    def is_order(self) -> bool:
        """Whether the order of updates differs, and not only what came of it."""
        return self.what not in OUTCOME


@dataclass(frozen=True)
class Verdict:
    """Whether a rerun repeated its original, and if not, where they part."""

    word: Word  # exact, diverged or inputs-differ
    first_divergence: Divergence | None  # where the two part; None where they do not
    steps: int  # how many were the same before the first that differs, or all
    differences: tuple[str, ...] = ()  # of the inputs, as phrases
    # the first step at which digests of single tensors differ, and the names of those tensors; None: none differ
    tensors: tuple[int, tuple[str, ...]] | None = None
    finished: bool = True  # the original has final parameters to compare with
    machines: tuple[str, ...] = ()  # how processors and GPUs differ, as phrases

    @property
    def is_trained_alike(self) -> bool:
        """Whether all steps and the final parameters agree, and an evaluation at most does not."""
        return self.first_divergence is None or self.first_divergence["what"].startswith(METRIC)

    @property
    def text(self) -> str:
        """The verdict in a sentence or two."""
        found = self.first_divergence
        if self.is_trained_alike:
            what = (
                f"all {self.steps} steps and the final parameters"
                if self.finished
                else f"the {self.steps} steps made then"
            )
            same = f"{what} agree to the last bit"
        if found is not None and self.is_trained_alike:
            same = f"{divergence_text(found)}; {same}"
        elif found is not None:
            before = f"; the {self.steps} steps before agree" if self.steps else ""
            same = divergence_text(found) + before
        if self.tensors is not None:
            same += f"; tensors that differ after step {self.tensors[0]}: {few(self.tensors[1], NAMED)}"
        return worded(self.word, same, self.differences, self.machines, parted=found is not None)


def worded(word: str, same: str, differences: Sequence[str], machines: Sequence[str], *, parted: bool) -> str:
    """A verdict with what of its inputs differs. same: what agrees and what does not; parted: whether any bit differs."""
    if word != "inputs-differ":
        return f"{word}: {same}" + (f"; another machine changed nothing: {'; '.join(machines)}" if machines else "")
    if not parted:
        return f"inputs-differ: {'; '.join([*differences, *machines])}. Even so, {same}"
    suspected = [f"{machines[0]} (suspected first)", *machines[1:]] if machines else []
    return f"inputs-differ: {'; '.join([*suspected, *differences])}. {same}"


def judge(
    original: RunResult, repeated: RunResult, differences: Sequence[str] = (), machines: Sequence[str] = ()
) -> Verdict:
    """The verdict over a rerun. differences: of the inputs (`Comparison.inputs`); machines: `Comparison.machines`.

    Raises ValueError when there is nothing to compare and no input differs, because then nothing may be called exact.
    """
    digest, barriers = original.get("digest"), original.get("rests", ())
    expected = original.get("trace", ())
    if "rests" in original:
        reached = barriers[-1]["steps"] if barriers else 0
        expected = (line for line in expected if line["step"] < reached)  # the first may be above 0
    walk = _Walk(prefix=digest is None)
    found = walk.through(expected, repeated.get("trace", ()))
    parted = parting(barriers, repeated.get("rests", ()), prefix=digest is None)
    if parted is not None and (found is None or parted.step < found["step"]):
        found = _of_barrier(parted)
    if not differences and found is None and not walk.steps and digest is None:
        raise ValueError("nothing to compare: the original has no step and no final digest")
    if found is None and digest is not None and digest != repeated.get("digest"):
        found = _divergence(max(0, walk.steps - 1), "parameters", digest, repeated.get("digest"))
    best = original.get("best")
    if found is None and best is not None and best != repeated.get("best"):
        found = _divergence(max(0, walk.steps - 1), "best model", best, repeated.get("best"))
    if found is None and "evaluations" in original and "evaluations" in repeated:
        ends = [] if digest is None else [walk.last]
        found = of_evaluations(original["evaluations"], repeated["evaluations"], range(walk.last + 1), ends)
    differ = bool(differences) or (bool(machines) and found is not None)
    word: Word = "inputs-differ" if differ else "exact" if found is None else "diverged"
    return Verdict(
        word, found, walk.steps, tuple(differences), walk.tensors, finished=digest is not None, machines=tuple(machines)
    )


def first_divergence(expected: Iterable[Line], got: Iterable[Line]) -> Divergence | None:
    """The place at which two traces part; a step that only one of them has counts."""
    return _Walk(prefix=False).through(expected, got)


def parting(a: Iterable[Barrier], b: Iterable[Barrier], *, prefix: bool = False) -> Parting | None:
    """The place at which two runs part. prefix: what b has beyond the end of a does not count."""
    steps = 0
    for number, (left, right) in enumerate(zip_longest(a, b)):
        if left is None and prefix:
            return None
        if left is None or right is None:
            return Parting(
                number, max(0, steps - 1), None, *(None if each is None else "a rest" for each in (left, right))
            )
        steps = max(left["steps"], right["steps"])
        for key in (*ORDER, *OUTCOME):
            if left.get(key) != right.get(key):
                return Parting(number, max(0, steps - 1), key, left.get(key), right.get(key))
    return None


def divergence_text(divergence: Divergence, runs: tuple[str, str] = ("the original", "the rerun")) -> str:
    """A divergence in words, losses as decimal numbers. runs: the names of the two."""
    values = (divergence["expected"], divergence["got"])
    if None in values:
        return f"step {divergence['step']}: {divergence['what']}: {runs[values.index(None)]} has none"
    before, now = (_shown(divergence["what"], str(value)) for value in values)
    return f"step {divergence['step']}: {divergence['what']} was {before}, is {now}"


def _of_barrier(parted: Parting) -> Divergence:
    """The rest after a step is its last part."""
    what = f"rest {parted.barrier}" if parted.what is None else f"{parted.what} of rest {parted.barrier}"
    expected, got = (None if value is None else canonical(value) for value in (parted.a, parted.b))
    return _divergence(parted.step, what, expected, got)


def of_evaluations(
    expected: Mapping[int, Mapping[str, Any]],
    got: Mapping[int, Mapping[str, Any]],
    steps: range,
    ends: Sequence[int] = (),
) -> Divergence | None:
    """The first metric that differs, of evaluations after these steps that both have made. ends: steps after which both have
    made one if they have a validation set."""
    both = {step for step in expected.keys() & got.keys() if step in steps}
    for step in sorted(both.union(ends)):
        left, right = expected.get(step, {}), got.get(step, {})
        for name in sorted({*left, *right}):
            values = [None if side.get(name) is None else str(side[name]) for side in (left, right)]
            if values[0] != values[1]:
                return _divergence(step, f"{METRIC}{name}", *values)
    return None


class _Walk:
    """Two traces side by side. steps: those that are equal, from the first; last: the last of them, -1 for none; tensors: as in
    Verdict."""

    def __init__(self, *, prefix: bool) -> None:
        self.steps = 0
        self.last = -1
        self.tensors: tuple[int, tuple[str, ...]] | None = None
        self._prefix = prefix

    def through(self, expected: Iterable[Line], got: Iterable[Line]) -> Divergence | None:
        """The first divergence. After it, goes on only as far as needed to name the tensors."""
        found: Divergence | None = None
        for left, right in _aligned(expected, got):
            if left is None and self._prefix:
                return found
            found = found or _compare(left, right)
            if found is None:
                self.steps += 1
                self.last = (left or right or {"step": -1})["step"]
            elif left is not None and right is not None and (names := tensors_of(differing(left, right))):
                self.tensors = (left["step"], names)
                return found
        return found


def _aligned(expected: Iterable[Line], got: Iterable[Line]) -> Iterator[tuple[Line | None, Line | None]]:
    """The lines of each step; None for a side that has none."""
    left, right = iter(expected), iter(got)
    a, b = next(left, None), next(right, None)
    while a is not None or b is not None:
        step = min(line["step"] for line in (a, b) if line is not None)
        mine = a if a is not None and a["step"] == step else None
        theirs = b if b is not None and b["step"] == step else None
        yield mine, theirs
        a = next(left, None) if mine is not None else a
        b = next(right, None) if theirs is not None else b


def tensors_of(names: Iterable[str]) -> tuple[str, ...]:
    """The names of the tensors among what differs."""
    return tuple(what.removeprefix(TENSOR) for what in names if what.startswith(TENSOR))


def differing(left: Line | None, right: Line | None) -> list[str]:
    """In what two lines of one step differ, in the order of comparison; of a step that one side lacks, the loss."""
    if left is None or right is None:
        return [] if left is right else ["loss"]
    early = [what for what in ("loss", "gradient") if left[what] != right[what]]
    late = ["parameters"] if "parameters" in left and "parameters" in right else []
    return [*early, *_differing_tensors(left, right), *(what for what in late if left[what] != right[what])]


def value_of(line: Line | None, what: str) -> str | None:
    """The value of `what`, a word of Divergence, in a line; None if it has none."""
    if line is None:
        return None
    found: str | None = (
        line.get("tensors", {}).get(what.removeprefix(TENSOR)) if what.startswith(TENSOR) else line.get(what)
    )
    return found


def _compare(left: Line | None, right: Line | None) -> Divergence | None:
    there = left or right
    found = differing(left, right)
    if there is None or not found:
        return None
    return _divergence(there["step"], found[0], value_of(left, found[0]), value_of(right, found[0]))


def _differing_tensors(left: Line, right: Line) -> list[str]:
    """In name order; none where a side has no digests of tensors."""
    mine: Mapping[str, Any] | None = left.get("tensors")
    theirs: Mapping[str, Any] | None = right.get("tensors")
    if mine is None or theirs is None:
        return []
    return [f"{TENSOR}{name}" for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]


def _divergence(step: int, what: str, expected: str | None, got: str | None) -> Divergence:
    return {"step": step, "what": what, "expected": expected, "got": got}


def _shown(what: str, value: str) -> str:
    if what.startswith(METRIC):
        return value
    if what != "loss" or is_hidden(value):
        return value if len(value) <= 16 else f"{value[:12]}..."
    return repr(float.fromhex(value))
