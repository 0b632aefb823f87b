"""Starting what is missing after the first members: replacements, spares, and workers to grow by (rule D4)."""

from __future__ import annotations

from orchestrator.control.decision import Decision
from orchestrator.control.events import Role
from orchestrator.control.membership import remaining

RETRY_S = 10.0  # how long after a lack of room a start is tried again
FAILURES = 3  # failed starts in a row, after which no more are tried


def start_failed(decision: Decision, member: int, why: str) -> None:
    """Who was ordered before the last failure was known fails along with it: a lost node fails all starts on it at once."""
    state = decision.state
    if member >= state.failed:
        decision.set(failures=state.failures + 1, failed=state.next_member)
    decision.set(trouble=why)
    decision.say(why)
    if decision.state.failures >= FAILURES:
        decision.say(f"{decision.state.failures} starts in a row failed, so no more are tried")
    start_missing(decision)


def start_missing(decision: Decision) -> None:
    """Start the members that are missing; one at a time where there was no room."""
    state = decision.state
    if state.phase not in ("running", "regrouping", "paused") or state.interrupted or state.failures >= FAILURES:
        return
    missing: list[Role] = ["worker"] * (
        state.requirements.most + state.requirements.spares - len(remaining(state, "worker"))
    )
    missing += ["server"] * (state.requirements.servers - len(remaining(state, "server")))
    if missing and state.retry is not None:
        if decision.now < state.retry:
            return
        missing = missing[:1]
        decision.set(retry=decision.now + RETRY_S)
    for role in missing:
        decision.start(role)
    if missing:
        decision.say(f"starting {', '.join(f'{role}' for role in missing)}")
