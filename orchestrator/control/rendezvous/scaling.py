"""Starting what is missing after the first members: replacements, spares, and workers to grow by (rule D4)."""

from __future__ import annotations

from orchestrator.control.decision import Decision
from orchestrator.control.events import Role
from orchestrator.control.membership import living

RETRY_S = 10.0  # a start is tried again so long after there was no room
FAILURES = 3  # starts in a row that come to nothing before no more are tried


def start_failed(decision: Decision, why: str) -> None:
    failures = decision.state.failures + 1
    decision.set(failures=failures, trouble=why)
    decision.say(why)
    if failures >= FAILURES:
        decision.say(f"{failures} starts in a row came to nothing, so no more are tried")
    start_missing(decision)


def start_missing(decision: Decision) -> None:
    """Start what is missing. Where there was no room, one at a time."""
    state = decision.state
    if state.phase not in ("running", "regrouping", "paused") or state.interrupted or state.failures >= FAILURES:
        return
    missing: list[Role] = ["worker"] * (
        state.requirements.most + state.requirements.spares - len(living(state, "worker"))
    )
    missing += ["server"] * (state.requirements.servers - len(living(state, "server")))
    if missing and state.retry is not None:
        if decision.now < state.retry:
            return
        missing = missing[:1]
        decision.set(retry=decision.now + RETRY_S)
    for role in missing:
        decision.start(role)
    if missing:
        decision.say(f"starting {', '.join(f'{role}' for role in missing)}")
