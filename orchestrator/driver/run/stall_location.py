"""Tells where the members of a step that stalls stand: their stacks for the journal, and a sentence for a person."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.records import stacks
from orchestrator.records.stacks import Frame, Home
from orchestrator.worker.member.stack_dump import ProcessStacks

_SOURCE = 80  # characters of a line
_STATES = {
    "T": "its process is stopped (SIGSTOP) and answers nothing",
    "t": "its process is held by a debugger",
    "D": "its process waits for a disk or a device, which no signal interrupts",
    "Z": "its process has ended",
}


@dataclass(frozen=True)
class StallLocation:
    """The line of code at which a member stands. sentence: where a member stands; at: the line alone, None where it is not
    known; stacks: of each thread, as lines; seen_by: what has seen them."""

    sentence: str
    at: str | None
    stacks: list[list[str]]
    seen_by: str

    def as_dict(self) -> dict[str, Any]:
        return {"at": self.at, "why": self.sentence, "seen_by": self.seen_by, "stacks": self.stacks}


def location(seen: ProcessStacks | None, home: Home | None) -> StallLocation:
    """Find out where a member stands. seen: None of a member that was out of reach."""
    if seen is None or home is None:
        return StallLocation("its stack is out of reach", None, [], "")
    threads, seen_by = stacks.parse(seen.text), "faulthandler"
    if not threads:
        threads, seen_by = stacks.parse_spied(seen.spied), "py-spy"
    found = stacks.held_up_at(threads, home)
    state = _STATES.get(seen.state)
    at = None if found is None else _line(*found, home)
    card = "it waits for its GPU" if stacks.waits_for_card(threads) else ""
    description = "; ".join(filter(None, [state, card, at])) or "its stack is not known"
    return StallLocation(description, at, stacks.as_lines(threads), seen_by if threads else "")


def _line(frame: Frame, is_users: bool, home: Home) -> str:
    """The line of a frame with its source. The driver's copy of it is read, since a run has one code."""
    source = linecache.getline(str(Path(home.project) / frame.file), frame.line).strip()[:_SOURCE]
    return f"{'' if is_users else 'no line of the project, but '}{frame}{f': {source}' if source else ''}"
