"""The claims that have to hold after a launch under faults: bits, steps lost, liveness, leftovers, messages. Each finding is
a sentence.

Nothing here is widened for a busy machine; only how long a missing answer is waited for is (`campaign.launches`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign import damages, flips
from campaign.kinds import BY_NAME
from campaign.modes import Mode

MOST_LOST = 1  # that only those who died had applied


@dataclass(frozen=True)
class Ended:
    """A launch that has come to its end. code: of the last driver that ended in order; report: the last line of stdout;
    faults: as told by `campaign.launches`; trace: the bytes of the file; left: what should not be there."""

    code: int | None
    report: Mapping[str, Any]
    err: str
    faults: Sequence[Mapping[str, Any]]
    journal: Sequence[Mapping[str, Any]]
    trace: bytes
    left: Sequence[str]
    fails: bool = False  # one of its faults is of a kind after which a run may say that it cannot go on

    @property
    def flipped(self) -> list[Mapping[str, Any]]:
        """Its faults that have flipped a bit."""
        return [fault for fault in self.faults if fault["struck"] and BY_NAME[fault["kind"]].family == "memory"]


@dataclass(frozen=True)
class Undisturbed:
    digest: str
    trace: bytes
    metrics: Mapping[str, Any] = field(default_factory=dict)


def findings(ended: Ended, mode: Mode, expected: Undisturbed | None, verdict: str | None = None) -> list[str]:
    """The claims that do not hold. expected: of lockstep; verdict: of the repetition, of a run whose replicas ran free."""
    if ended.code is None:
        return ["liveness: it did not end"]
    found = [*_ended(ended), *_messages(ended), *_steps(ended, mode), *(f"left behind: {what}" for what in ended.left)]
    if ended.flipped:
        assert expected is not None
        for fault in ended.flipped:
            found += flips.findings(fault, ended.report.get("digest"), expected.digest)
    for fault in ended.faults:
        found += damages.findings(fault, ended.code) if "damage" in fault else []
    if not ended.flipped and ended.report.get("status") == "finished":
        found += _bits(ended, expected) if mode.lockstep else _repeated(verdict)
    return found


def _ended(ended: Ended) -> Iterator[str]:
    for fault in ended.faults:
        if "ended" in fault and BY_NAME[fault["kind"]].effect == "fails":
            yield from _could_not_go_on(**fault["ended"])
        elif "ended" in fault:
            yield f"it ended after {fault['kind']}: {fault['ended']['why']}"
    status, error = ended.report.get("status"), ended.report.get("error") or {}
    if status == "finished":
        return
    if not ended.fails:
        yield f"it ended as {status}: {error.get('kind')}: {error.get('message')}"
    else:
        saved = any(event["event"] == "checkpoint_saved" for event in ended.journal)
        yield from _could_not_go_on(ended.code, error.get("message"), "resume=" in ended.err, saved)


def _could_not_go_on(code: int | None, why: str | None, says_how: bool, saved: bool) -> Iterator[str]:
    """saved: whether there is a checkpoint to go on from."""
    if code != 1 or not why:
        yield f"it could not go on and says neither why nor by its exit code: {code}"
    elif saved and not says_how:
        yield "it could not go on and does not say how it is resumed"


def _bits(ended: Ended, expected: Undisturbed | None) -> Iterator[str]:
    assert expected is not None
    if ended.report.get("digest") != expected.digest:
        yield "bits: another digest than the undisturbed run's"
    if ended.trace != expected.trace:
        yield f"bits: {_first_difference(ended.trace, expected.trace)}"


def _first_difference(trace: bytes, expected: bytes) -> str:
    for number, (one, other) in enumerate(zip(trace.splitlines(), expected.splitlines(), strict=False)):
        if one != other:
            here, there = json.loads(one), json.loads(other)
            keys = [key for key in here.keys() | there.keys() if here.get(key) != there.get(key)]
            return f"line {number} of the trace differs in {sorted(keys)}"
    return f"the trace has {len(trace.splitlines())} lines, the undisturbed one {len(expected.splitlines())}"


def _repeated(verdict: str | None) -> Iterator[str]:
    if verdict != "exact":
        yield f"bits: the repetition's verdict is {verdict}"


def _steps(ended: Ended, mode: Mode) -> Iterator[str]:
    """None that was committed: a step that only the dead had applied is computed again. If shards run free a sprint is given
    up; only a bound on staleness bounds how much a fast shard has done in it."""
    sync = mode.settings.get("sync", {})
    most = MOST_LOST if mode.lockstep else sync["rest_every"] + sync.get("staleness", math.inf)
    # The state of a shard is held by its host and, on the driver's machine alone, by the driver.
    far = any(event["event"] == "shard_state_unprotected" for event in ended.journal)
    allowed = sum(fault["struck"] and (_ends_all(fault) or (far and _ends_host(fault))) for fault in ended.faults)
    for place, event in enumerate(ended.journal):
        if event["event"] == "recovered" and event["kind"] in ("lost", "joined") and event["steps_lost"] > most:
            yield f"steps: {event['steps_lost']} were lost with a worker: {event.get('why')}"
        if event["event"] != "recovered" or event["kind"] != "restarted" or lacks_stage(ended.journal[:place]):
            continue
        allowed -= 1
        if allowed < 0:
            yield f"steps: all went back, {event['steps_lost']} steps, though a worker of each stage lived: {event.get('why')}"


def lacks_stage(journal: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all workers of a stage, or of the run, were lost of a generation since the one that did a step after the last
    recovery."""
    generations: list[Mapping[str, Any]] = []
    lost: set[int] = set()
    for event in journal:
        match event["event"]:
            case "generation_started":
                generations.append(event)
            case "worker_lost":
                lost.add(event["worker"])
            case "recovered":
                generations = generations[-1:]
    return any(not living for each in generations for living in _living(each, lost).values())


def _living(generation: Mapping[str, Any], lost: Collection[int]) -> dict[int, set[int]]:
    """Its workers that are not lost, by stage."""
    workers = generation["members"][: generation["workers"]]
    found: dict[int, set[int]] = {}
    for worker, stage in zip(workers, generation.get("stages") or [0] * len(workers), strict=True):
        found.setdefault(stage, set()).update({worker}.difference(lost))
    return found


def _ends_all(fault: Mapping[str, Any]) -> bool:
    """A driver that is silent for longer than its lease: all workers end themselves, and go back to the checkpoint."""
    return BY_NAME[fault["kind"]].family == "driver" and BY_NAME[fault["kind"]].effect == "stalls"


def _ends_host(fault: Mapping[str, Any]) -> bool:
    """All workers of a host may be lost by it in one moment."""
    return BY_NAME[fault["kind"]].family in ("node", "network")


def _messages(ended: Ended) -> Iterator[str]:
    if "Traceback" in ended.err:
        yield f"message: a traceback: {ended.err[ended.err.index('Traceback') :][:1500]}"
    pids = {_member(event): event["pid"] for event in ended.journal if "pid" in event and _member(event) is not None}
    lost = [event for event in ended.journal if event["event"].endswith("_lost") and event["event"] != "driver_lost"]
    told = {pids[_member(event)] for event in lost if _member(event) in pids}
    words = " ".join(str(event.get("why")) for event in lost)
    # The driver may not know the process of a newcomer that ends before it was ready.
    unknown = sum(_member(event) not in pids and "(pid " not in str(event.get("why")) for event in lost)
    drivers = [event for event in ended.journal if event["event"] == "driver_lost"]
    for fault in ended.faults if ended.report.get("status") == "finished" else ():
        kind = BY_NAME[fault["kind"]]
        if not fault["struck"] or kind.effect not in ("ends", "stalls") or fault["moment"] == "end":
            continue
        if kind.family == "driver":
            if kind.effect == "ends" and not drivers:
                yield f"message: the journal does not tell of the driver that was struck ({fault['kind']})"
        elif fault["pid"] not in told and f"(pid {fault['pid']})" not in words and not drivers:
            is_new = fault["moment"] in ("prepare", "admission")
            if is_new and kind.effect == "stalls":  # it may have gone on before it was given up
                continue
            unknown -= is_new
            if unknown < 0 or not is_new:
                yield f"message: process {fault['pid']}, struck by {kind.name} at {fault['moment']}, is not told as lost"
    if lost and ended.err.count("was lost") < len({_member(event) for event in lost}) and not drivers:
        yield "message: the terminal tells of fewer losses than the journal"


def _member(event: Mapping[str, Any]) -> int | None:
    number = event.get("worker", event.get("server"))
    return None if number is None else int(number)


def last_report(out: Path) -> dict[str, Any]:
    """The JSON of the last driver that ended in order; empty where none did."""
    lines = [line for line in out.read_text().splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return found
