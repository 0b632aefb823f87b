"""Starting what is missing after the first members: replacements, spares, and workers to grow by (rule D4)."""

from __future__ import annotations

from orchestrator.controller.decision import Decision
from orchestrator.controller.events import Role

RETRY_S = 10.0  # how long after a lack of room a start is tried again
FAILURES = 3  # failed starts in a row, after which they are tried seldom
SELDOM_S = 300.0  # a run of days outlives a fault of a node, or of a store that every start needs


def start_failed(decision: Decision, member: int, why: str) -> None:
    """A worker that was ordered before the last failure was known fails along with it: a lost node fails all starts on it at
    once."""
    state = decision.state
    if member >= state.failed:
        decision.set(failures=state.failures + 1, failed=state.next_member)
    decision.set(trouble=why)
    decision.say(why)
    if decision.state.failures >= FAILURES:
        decision.set(later=decision.now + SELDOM_S)
        decision.say(
            f"{decision.state.failures} starts in a row failed, so the next one is tried in {SELDOM_S / 60:g} min"
        )
    start_missing(decision)


def start_missing(decision: Decision) -> None:
    """Start the members that are missing; one at a time where there was no room, or too many starts have failed."""
    state = decision.state
    if state.phase not in ("running", "regrouping", "paused") or state.interrupted:
        return
    fails = state.failures >= FAILURES
    if fails and (state.phase == "paused" or state.later is None or decision.now < state.later):
        return
    asked = state.requirements.members
    missing: list[Role] = ["worker"] * (asked.most + asked.spares - state.members.count("worker", leaves=False))
    missing += ["server"] * (asked.servers - state.members.count("server", leaves=False))
    if missing and state.retry is not None:
        if decision.now < state.retry:
            return
        missing = missing[:1]
        decision.set(retry=decision.now + RETRY_S)
    if fails:
        missing = missing[:1]
        decision.set(later=decision.now + SELDOM_S)
    for role in missing:
        decision.start(role)
    if missing:
        decision.say(f"starting {', '.join(f'{role}' for role in missing)}")
