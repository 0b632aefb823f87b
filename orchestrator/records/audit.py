"""An audit: some segments of a run, between checkpoints that were kept, are repeated in place of the whole.

    audited         same inputs, and every segment that was drawn came out the same to the last bit
    diverged        same inputs, and a segment did not: the first step that differs is named
    inputs-differ   as of a rerun

It is never `exact`: of what was not drawn nothing is known but how probable it is that a change there stays unseen. A segment
is the same if it begins with the parameters of which the trace tells, and if its results come out again. These are the lines
of the trace, the state at its end, with all that the optimizer keeps, and the metrics of evaluations on the way. So all
segments together prove the run. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb
from types import MappingProxyType
from typing import Any, NamedTuple

from orchestrator.errors import few
from orchestrator.records.trace import Line
from orchestrator.records.verdict import Divergence, divergence_text, first_divergence, of_evaluations, worded

_RARELY = 0.05
_NAMED = 10
_Evaluations = Mapping[int, Mapping[str, Any]]
_NONE: Mapping[int, str] = MappingProxyType({})


class Segment(NamedTuple):
    """The steps from `first` up to `end`, exclusive. begins: the digest of the parameters before it, by the trace, None before
    the first step; state: of all that was kept after it, None where the trace alone tells of its end; without_streams: of that
    without the places of shards in streams, None where none were kept."""

    first: int
    end: int
    begins: str | None
    state: str | None
    without_streams: str | None = None

    @property
    def steps(self) -> int:
        return self.end - self.first


@dataclass(frozen=True)
class AuditedSegment:
    """A segment that was repeated. parted: where it came out otherwise."""

    segment: Segment
    parted: Divergence | None


@dataclass(frozen=True)
class Audit:
    """The repeated parts of a run."""

    parts: tuple[AuditedSegment, ...]  # the segments that were repeated
    segments: int  # how many the run has
    steps: int  # likewise
    seed: str  # of the draw
    differences: tuple[str, ...] = ()  # of the inputs, as phrases
    machines: tuple[str, ...] = ()  # how processors and GPUs differ, as phrases

    @property
    def word(self) -> str:
        if self.differences or (self.machines and self.parted is not None):
            return "inputs-differ"
        return "audited" if self.parted is None else "diverged"

    @property
    def parted(self) -> Divergence | None:
        """The first."""
        return next((part.parted for part in self.parts if part.parted is not None), None)

    @property
    def repeated(self) -> int:
        """Steps."""
        return sum(part.segment.steps for part in self.parts)

    @property
    def share(self) -> float:
        return self.repeated / self.steps

    def missed(self, changed: int) -> float:
        """How probable it is that of so many changed segments none is drawn, where the draw could not be foreseen."""
        return missed(self.segments, len(self.parts), changed)

    @property
    def likely_seen(self) -> int:
        """The least number of changed segments of which one is drawn with a probability of 95 %."""
        return next(changed for changed in range(1, self.segments + 1) if self.missed(changed) <= _RARELY)

    @property
    def text(self) -> str:
        same = [part.segment for part in self.parts if part.parted is None]
        sentence = (
            f"{len(self.parts)} of {self.segments} segments, {self.repeated} of {self.steps} steps ({self.share:.1%})"
        )
        if self.parted is None:
            found = f"{sentence} were repeated and agree to the last bit: {_named(same)}"
        else:
            agree = f"; {_named(same)} agree{'s' * (len(same) == 1)}" if same else ""
            found = f"{divergence_text(self.parted)}; of {sentence} that were repeated, {_others(self.parts)}{agree}"
        verdict = worded(self.word, found, self.differences, self.machines, parted=self.parted is not None)
        return verdict + (f"\n{self._chance}" if self.word == "audited" else "")

    @property
    def _chance(self) -> str:
        least = self.likely_seen
        rest = self.segments - len(self.parts)
        if not rest:
            return f"these are all of its segments; seed {self.seed}"
        return (
            f"nothing is claimed of the other {rest}: one changed segment stays unseen with probability {self.missed(1):.2f}, "
            f"{least} with at most {_RARELY} (seed {self.seed})"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "segments": self.segments,
            "steps": self.steps,
            "repeated_steps": self.repeated,
            "share": round(self.share, 6),
            "seed": self.seed,
            "drawn": [
                {"first": part.segment.first, "end": part.segment.end, "first_divergence": part.parted}
                for part in self.parts
            ],
            "missed": {"one_segment": self.missed(1), "at_most_0.05": self.likely_seen},
        }


def segments_of(
    first: int, trace: Sequence[Line], kept: Mapping[int, str], without_streams: Mapping[int, str] = _NONE
) -> list[Segment]:
    """The segments of a run, in order. first: its first step; kept: steps that were done -> the digest of the state kept then;
    without_streams: the same of those with places in streams. A checkpoint counts if the trace tells of its parameters; the end
    of the trace, if it does so there."""
    known = {line["step"] + 1: str(line["parameters"]) for line in trace if "parameters" in line}
    ends = sorted(step for step in known if step in kept or step == first + len(trace))
    return [
        Segment(begin, end, known.get(begin) if begin > first else None, kept.get(end), without_streams.get(end))
        for begin, end in pairwise([first, *ends])
    ]


def drawn(segments: Sequence[Segment], count: int, seed: str) -> list[Segment]:
    """So many of them, in order, by the seed: those with the least SHA-256 of `SEED/NUMBER`."""
    order = sorted(range(len(segments)), key=lambda number: hashlib.sha256(f"{seed}/{number}".encode()).digest())
    return [segments[number] for number in sorted(order[:count])]


def missed(segments: int, drawn: int, changed: int) -> float:
    """The probability that of so many segments none of the changed ones is drawn."""
    return comb(segments - changed, drawn) / comb(segments, drawn)


def compared(
    segment: Segment,
    trace: Iterable[Line],
    again: Iterable[Line],
    begun: Mapping[int, str],
    saved: Mapping[int, str],
    without_streams: Mapping[int, str] = _NONE,
    evaluations: tuple[_Evaluations, _Evaluations] = (MappingProxyType({}), MappingProxyType({})),
) -> AuditedSegment:
    """The outcome of a segment that was repeated. begun: first steps -> the digest of the parameters that it began with;
    saved: steps that were done -> that of the state then; without_streams: as of `segments_of`. The rest
    is compared if one of the two has kept no places in streams, as a model in stages does not. evaluations: of both, as of
    `verdict.RunResult`; those count that both have made."""
    got = begun.get(segment.first)
    if segment.begins is not None and got != segment.begins:
        return AuditedSegment(segment, _divergence(segment.first - 1, "parameters", segment.begins, got))
    parted = first_divergence(_within(segment, trace), _within(segment, again))
    expected, state = segment.state, saved.get(segment.end)
    if expected != state and (segment.without_streams is None) != (segment.end not in without_streams):
        expected, state = segment.without_streams or expected, without_streams.get(segment.end, state)
    if parted is None and expected is not None and state != expected:
        parted = _divergence(segment.end - 1, "state", expected, state)
    parted = parted or of_evaluations(*evaluations, range(segment.first, segment.end))
    return AuditedSegment(segment, parted)


def _within(segment: Segment, trace: Iterable[Line]) -> list[Line]:
    return [line for line in trace if segment.first <= line["step"] < segment.end]


def _divergence(step: int, what: str, expected: str, got: str | None) -> Divergence:
    return {"step": step, "what": what, "expected": expected, "got": got}


def _named(segments: Sequence[Segment]) -> str:
    """By their first and their last step."""
    return few([f"{each.first}-{each.end - 1}" for each in segments], _NAMED)


def _others(parts: Sequence[AuditedSegment]) -> str:
    count = sum(part.parted is not None for part in parts)
    return f"{count} came out otherwise ({_named([part.segment for part in parts if part.parted is not None])})"
