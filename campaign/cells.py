"""Which cells there are - kind x moment x mode - which cannot be and why, and how often each was met. Pure.

Results are lines of JSON, one for each fault and one for each launch, of any number of parts that ran at any time; `read` puts
them together. `folded` makes them short, to be kept beside the code: a line for each launch, which has its faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from campaign import kinds, modes, moments
from campaign.kinds import Kind
from campaign.modes import Mode
from campaign.moments import Moment


class Cell(NamedTuple):
    kind: str
    moment: str
    mode: str


def impossible(kind: Kind, moment: Moment, mode: Mode) -> str | None:
    """Why this cell cannot be; None where it can."""
    for reason in (_of_mode(moment, mode), _of_kind(kind, moment)):
        if reason is not None:
            return reason
    return None


def _of_mode(moment: Moment, mode: Mode) -> str | None:
    match moment.name:
        case "held sum" if not mode.second_vote:
            return "only a model in stages has a second vote"
        case "sprint" | "rest" if mode.lockstep:
            return "in lockstep there are no sprints and no rests"
        case "vote" if mode.name == "gossip":
            return "gossip rests by what it gathers, without a vote of its own"
    return None


def _of_kind(kind: Kind, moment: Moment) -> str | None:
    if not kind.has_moments:
        return "it is done to the surroundings, and has no moment of the engine"
    if moment.name == moments.FROM_OUTSIDE and kind.signal is None:
        return "nobody can do it from outside"
    if kind.family == "version" and moment.name != "prepare":
        return "of another build is only who comes"
    return None


def possible(names: Iterable[str], of: Iterable[Mode] = modes.MODES) -> list[Cell]:
    """All cells of these kinds that can be."""
    found = [kinds.BY_NAME[name] for name in names]
    return [
        Cell(kind.name, moment.name, mode.name)
        for mode in of
        for kind in found
        for moment in moments.MOMENTS
        if impossible(kind, moment, mode) is None
    ]


def reasons() -> dict[str, int]:
    """Why cells cannot be, and how many for each reason."""
    told: Counter[str] = Counter()
    for kind in kinds.KINDS:
        if kind.has_moments:
            for moment in moments.MOMENTS:
                told.update(why for mode in modes.MODES if (why := impossible(kind, moment, mode)) is not None)
    return dict(told)


@dataclass(frozen=True)
class Results:
    """struck: how often each cell was met; launches, faults, lives, mutants: the lines that were told of each."""

    struck: Mapping[Cell, int] = field(default_factory=dict)
    launches: tuple[Mapping[str, Any], ...] = ()
    faults: tuple[Mapping[str, Any], ...] = ()
    lives: tuple[Mapping[str, Any], ...] = ()
    mutants: tuple[Mapping[str, Any], ...] = ()

    @property
    def unfilled(self) -> list[Cell]:
        return [cell for cell in possible(kinds.WITH_MOMENTS) if cell not in self.struck]


def read(lines: Iterable[Mapping[str, Any]]) -> Results:
    """The last line of each launch counts, however often it was tried; a fault counts if its launch came to its end."""
    launches: dict[str, Mapping[str, Any]] = {}
    faults: dict[str, list[Mapping[str, Any]]] = {}
    told: dict[str, list[Mapping[str, Any]]] = {}  # of a launch whose own line is still to come
    lives: dict[tuple[str, int], Mapping[str, Any]] = {}
    mutants: dict[str, Mapping[str, Any]] = {}
    for line in lines:
        match line["what"]:
            case "launch":
                launches[line["id"]] = line
                faults[line["id"]] = told.pop(line["id"], [])
                if "faults" in line:
                    faults[line["id"]] = [_unfolded(line["id"], *fault) for fault in line["faults"]]
            case "fault":
                told.setdefault(line["id"], []).append(line)
            case "lives":
                lives[line["kind"], line["first"]] = line
            case "mutant":
                mutants[line["name"]] = line
    done = [fault for id in launches for fault in faults[id] if fault["struck"]]
    struck = Counter(Cell(fault["kind"], fault["moment"], launches[fault["id"]]["mode"]) for fault in done)
    return Results(dict(struck), tuple(launches.values()), tuple(done), tuple(lives.values()), tuple(mutants.values()))


_SHOWN: Final = ("id", "seed", "mode", "storm", "load", "at", "recoveries", "findings")  # of a launch
# The fields of a fault, as far as it has them.
_TOLD: Final = ("seconds", "pair", "every", "first", "found", "named", "out", "repeated")


def folded(results: Results) -> Iterator[dict[str, Any]]:
    """The same results as few short lines."""
    faults: dict[str, list[Any]] = {}
    for fault in results.faults:
        more = {key: fault[key] for key in _TOLD if key in fault}
        faults.setdefault(fault["id"], []).append([fault["kind"], fault["moment"], *([more] if more else [])])
    for launch in results.launches:
        findings = [finding[:300] for finding in launch["findings"]]
        shown = {key: launch[key] for key in _SHOWN if key in launch}
        yield {"what": "launch", **shown, "findings": findings, "faults": faults.get(launch["id"], [])}
    for kind in sorted({line["kind"] for line in results.lives}):
        lines = [line for line in results.lives if line["kind"] == kind]
        count, failed = sum(line["count"] for line in lines), [each for line in lines for each in line["failed"]]
        first, ended = min(line["first"] for line in lines), [each for line in lines for each in line.get("ended", ())]
        yield {"what": "lives", "kind": kind, "first": first, "count": count, "failed": failed, "ended": ended}
    yield from (dict(line) for line in results.mutants)


def _unfolded(id: str, kind: str, moment: str, more: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    return {"id": id, "kind": kind, "moment": moment, "struck": True, **more}
