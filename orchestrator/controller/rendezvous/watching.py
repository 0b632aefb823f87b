"""Limits of time: who is late, stuck or silent, and for what the run has waited too long."""

from __future__ import annotations

from orchestrator.controller import fault_attribution
from orchestrator.controller.decision import Decision
from orchestrator.controller.events import Inspect
from orchestrator.controller.membership import compose
from orchestrator.controller.rendezvous import beginning, card_failures, leaving, losses
from orchestrator.controller.rendezvous.conclusion import awaits_cause
from orchestrator.controller.rendezvous.formation import end_interrupted, form
from orchestrator.controller.rendezvous.scaling import start_failed, start_missing
from orchestrator.controller.state import Member, present, progressed, waiting
from orchestrator.errors import ClusterUnavailable, RunFailed

GRACE_S = 10.0  # how long a withdrawal waits for the failure that caused it
SAVE_S = 20.0  # how long an interrupted run waits for its checkpoint, once nobody writes it any more
LISTEN_S = 2.0  # a longer pause between ticks is the driver's own, and is not counted as silence of a member


def watch(decision: Decision) -> None:
    """Look at each limit of time, until one ends the run."""
    _forgive_own_pause(decision)
    for look in (
        _watch_start,
        _watch_joiners,
        _watch_members,
        _watch_withdrawal,
        _watch_stop,
        _watch_pause,
        leaving.watch,
    ):
        if decision.state.phase != "ended":
            look(decision)
    state = decision.state
    if (state.retry is not None or state.later is not None) and state.phase != "ended":
        start_missing(decision)


def _forgive_own_pause(decision: Decision) -> None:
    """Do not count the driver's own pause as silence of members, nor as a part of the phase: a long time between two ticks
    counts as `LISTEN_S`."""
    pause = decision.now - decision.state.listened - LISTEN_S
    decision.set(listened=decision.now)
    if pause > 0:
        decision.set(since=min(decision.now, decision.state.since + pause))
        for member in decision.state.members.values():
            decision.update(
                member.id, heard=min(decision.now, member.heard + pause), moved=min(decision.now, member.moved + pause)
            )


def _watch_start(decision: Decision) -> None:
    state = decision.state
    limit = state.requirements.timeouts.start_s
    if state.phase != "preparing" or decision.now - state.start_moved <= limit:
        return
    last = max((progressed(member) for member in state.members.values()), default=state.started)
    decision.set(start_moved=last)
    if decision.now - last <= limit or _stood_still_at_start(decision):
        return
    late = [f"{member.name} ({_how_far(member)})" for member in state.members.values() if member.ready is None]
    plan = compose(state)
    what = f"{', '.join(late)} not ready" if late else str(plan)
    error = ClusterUnavailable(
        f"{what}, and nothing has progressed for {limit:g} s",
        "if the machine is busy (uptime), end what else runs there; raise cluster.start_timeout_s, or ask for less",
        code="worker.no-progress",
    )
    decision.end(error, "the start has stalled")


def _stood_still_at_start(decision: Decision) -> bool:
    """Whether members are lost because their cards do not end what they prepare with."""
    found = card_failures.standing_at_start(decision.state, decision.now)
    stuck = tuple(event.member for event in found)
    if stuck:
        decision.do(Inspect(stuck, stuck))
    for event in found:
        member = decision.state.members.get(event.member)  # None: it shares a card that is left out by now
        if member is not None and decision.state.phase != "ended":
            beginning.card_failed(decision, member, event)
    return bool(found)


def _how_far(member: Member) -> str:
    return "its process has not started" if member.heartbeat is None else "it is preparing"


def _watch_joiners(decision: Decision) -> None:
    if decision.state.phase == "preparing" or not decision.state.members.count(ready=False):
        return
    limit = decision.state.requirements.timeouts.start_s
    if decision.now - decision.state.joiners_moved <= limit:
        return
    _stood_still_at_start(decision)
    preparing = [member for member in decision.state.members.values() if member.ready is None]
    decision.set(joiners_moved=min(map(progressed, preparing), default=decision.now))
    for member in preparing:
        if decision.now - progressed(member) > limit:
            decision.kill(member, f"its start has not progressed for {limit:g} s: {_how_far(member)}")
            if member.heartbeat is None:  # no room, which may last: a node or a site is away
                decision.set(retry=decision.now)
                continue
            start_failed(decision, member.id, f"the start of {member.name} has not progressed for {limit:g} s")


def _watch_members(decision: Decision) -> None:
    if decision.state.phase not in ("running", "regrouping") or not _may_be_stuck(decision):
        return
    found = fault_attribution.stuck(decision.state, decision.now)
    if not found and fault_attribution.all_wait(decision.state, decision.now):
        decision.say("all members wait for each other, and none has moved for longer than any may wait")
        decision.enter("regrouping")
        losses.open_loss(decision)
        losses.call_off(decision)
    if found:
        stuck = tuple(lost_member.member.id for lost_member, _ in found)
        decision.do(Inspect(tuple(member.id for member in present(decision.state)), stuck))
    if decision.state.phase == "regrouping":
        known = {lost_member.member.id for lost_member, _ in found}
        found += [
            (lost_member, why)
            for lost_member, why in fault_attribution.silent(decision.state, decision.now)
            if lost_member.member.id not in known
        ]
    for lost_member, why in found:
        decision.kill(lost_member.member, why)
    found += card_failures.stood_still(decision, found)
    if found:
        losses.lost(decision, found)


def _may_be_stuck(decision: Decision) -> bool:
    """Whether anybody has been quiet for so long that members are to be looked at one by one. At most ticks nobody has."""
    limit = min(fault_attribution.silence_s(decision.state), decision.state.requirements.timeouts.unreachable_s)
    if decision.now - decision.state.all_heard <= limit:
        return False
    quiet = [min(member.heard, member.moved) for member in waiting(decision.state)]
    decision.set(all_heard=min(quiet, default=decision.now))
    return decision.now - decision.state.all_heard > limit


def _watch_withdrawal(decision: Decision) -> None:
    generation = decision.state.generation
    if generation is None or generation.withdrawn is None or not awaits_cause(decision.state):
        return
    since, text = generation.withdrawn
    if decision.now - since > GRACE_S:
        decision.end(RunFailed(text, code="worker.no-cause"), f"no member named the cause within {GRACE_S:g} s")


def _watch_stop(decision: Decision) -> None:
    state = decision.state
    if state.interrupted is None or state.phase not in ("regrouping", "saving"):
        return
    # Parts differ in size, and disks in speed. A member that writes for too long counts as stuck.
    if any(each.heartbeat is not None and each.heartbeat.activity == "checkpoint" for each in waiting(state)):
        return
    if decision.now - max(state.since, state.interrupted[0]) > SAVE_S:
        end_interrupted(decision, f"{SAVE_S:g} s have passed in phase {state.phase}")


def _watch_pause(decision: Decision) -> None:
    if decision.state.phase == "paused":
        form(decision)
