"""Starting what is missing after the first members: replacements, spares, and workers to grow by (rule D4)."""

from __future__ import annotations

from orchestrator.control.events import Role
from orchestrator.control.membership import living
from orchestrator.control.turn import Turn

RETRY_S = 10.0  # a start is tried again so long after there was no room
FAILURES = 3  # starts in a row that come to nothing before no more are tried


def came_to_nothing(turn: Turn, why: str) -> None:
    failures = turn.state.failures + 1
    turn.set(failures=failures, trouble=why)
    turn.say(why)
    if failures >= FAILURES:
        turn.say(f"{failures} starts in a row came to nothing, so no more are tried")
    staff(turn)


def staff(turn: Turn) -> None:
    """Start what is missing. Where there was no room, one at a time."""
    state = turn.state
    if state.phase not in ("running", "regrouping", "paused") or state.interrupted or state.failures >= FAILURES:
        return
    missing: list[Role] = ["worker"] * (state.terms.most + state.terms.spares - len(living(state, "worker")))
    missing += ["server"] * (state.terms.servers - len(living(state, "server")))
    if missing and state.retry is not None:
        if turn.now < state.retry:
            return
        missing = missing[:1]
        turn.set(retry=turn.now + RETRY_S)
    for role in missing:
        turn.start(role)
    if missing:
        turn.say(f"starting {', '.join(f'{role}' for role in missing)}")
