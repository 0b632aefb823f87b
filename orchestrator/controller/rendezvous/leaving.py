"""Members that leave because their node goes away: others take their places first, where there is room, and then they leave at
a step boundary, so that no step is lost.

    drained   others are started elsewhere, and they stay
    watch     when those are there, or there is no room for them, or half of the time has gone: all leave by a vote, and the
              next generation is made without them (`membership.compose`); who has no part in it is ended

If only members that leave have the state, a newcomer gets it in a generation with one of them, which leaves after that. If
shards keep a state, which their host alone has, or nobody else hosts a stage, they stay until they are lost.
"""

from __future__ import annotations

from orchestrator.controller.decision import Decision
from orchestrator.controller.events import Drained, Retire
from orchestrator.controller.membership import may_leave
from orchestrator.controller.rendezvous.formation import ask
from orchestrator.controller.rendezvous.scaling import start_missing
from orchestrator.controller.state import staying

WAIT_PART = 0.5  # of the time that is left, for others to come


def drained(decision: Decision, event: Drained) -> None:
    state = decision.state
    members = [state.members[id_] for id_ in event.members if id_ in state.members]
    leaving = [member for member in members if member.leaves is None]
    if not leaving:
        return
    wait_s = state.requirements.timeouts.start_s if event.seconds is None else max(0.0, WAIT_PART * event.seconds)
    for member in leaving:
        decision.update(member.id, leaves=decision.now + wait_s)
    names = ", ".join(member.name for member in leaving)
    decision.say(f"the node of {names} goes away: others are to take over, within {wait_s:.0f} s")
    start_missing(decision)


def watch(decision: Decision) -> None:
    """At each tick."""
    if not decision.state.members.count(leaves=True) or decision.state.phase not in ("running", "regrouping"):
        return
    leaving = [member for member in decision.state.members.values() if member.leaves is not None]
    for member in leaving:
        if member.rank is None:
            decision.remove(member)
            decision.do(Retire(member.id))
            decision.say(f"{member.name} ends: its node goes away")
    names = ", ".join(member.name for member in leaving if member.rank is not None)
    if names and decision.state.phase == "running" and _is_time(decision):
        ask(decision, "regroup", f"{names} leave after their step: their node goes away")


def _is_time(decision: Decision) -> bool:
    """Whether the others can go on, and nobody else is waited for. Once in a generation, since all are heard then."""
    state = decision.state
    if "regroup" in decision.generation().asked or not may_leave(state):
        return False
    by = min(member.leaves for member in state.members.values() if member.leaves is not None)
    workers, servers = (len(staying(state, role)) for role in ("worker", "server"))
    all_there = workers >= state.requirements.members.most and servers >= state.requirements.members.servers
    return all_there or state.retry is not None or decision.now >= by
