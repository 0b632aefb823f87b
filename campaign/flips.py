"""The fate of a planted flipped bit: when it was found, who was named, and what had been computed wrongly by then. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from campaign import modes
from campaign.kinds import memory
from orchestrator.worker.step.checking import Checks


def outcome(
    fault: Mapping[str, Any], every: int, kept: Sequence[int], journal: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """fault: as it was told; kept: the steps that its process committed from then on.

    first: the step that was computed wrongly first; due: the first one from there on that is checked; found: in which step,
    None if it was not; named: its worker and no other one; out: that worker was lost for it; wrong: how many steps with a wrong
    bit were applied; repeated: the step of the check was not among them.
    """
    first = int(fault["step"]) + (fault["kind"] == memory.PARAMETER)
    checks = Checks(modes.SEED, every)
    due = next(step for step in range(first, first + every) if checks.due(step))
    worker = next((event["worker"] for event in journal if event.get("pid") == fault["pid"]), None)
    verdicts = [event for event in journal if event["event"] == "answers_differ"]
    found = verdicts[0]["step"] if verdicts else None
    left = [event for event in journal if event["event"] == "worker_lost" and event["worker"] == worker]
    wrong = [step for step in kept if step >= first]
    return {
        "every": every,
        "first": first,
        "due": due,
        "found": found,
        "named": [event["workers"] for event in verdicts] == [[worker]],
        "out": any("computed wrongly" in str(event.get("why")) for event in left),
        "wrong": len(wrong),
        "repeated": found is not None and all(step < found for step in wrong),
    }


def is_found(told: Mapping[str, Any]) -> bool:
    """Within `every` steps, with the right worker named and left out, and the step of the check repeated."""
    found = told["found"]
    in_time = found is not None and found - told["first"] < told["every"]
    return bool(in_time and told["named"] and told["out"] and told["repeated"])


def findings(told: Mapping[str, Any], digest: str | None, expected: str) -> Iterator[str]:
    """The claims that do not hold. A parameter's bit is found as soon as it changes an answer, which may be later, or
    never."""
    if told["found"] is None:
        if told["kind"] == memory.GRADIENTS:
            yield f"flip: of step {told['first']} was not found"
        return
    if told["kind"] == memory.GRADIENTS and told["found"] != told["due"]:
        yield f"flip: of step {told['first']} was found in step {told['found']}, and the check was in step {told['due']}"
    if not told["named"]:
        yield "flip: another worker was named"
    if not told["out"]:
        yield "flip: its worker was not left out"
    if not told["repeated"]:
        yield "flip: the step of the check was applied with it"
    if not told["wrong"] and digest != expected:
        yield "bits: no step was wrong, and the digest is another one than the undisturbed run's"
