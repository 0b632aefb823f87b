"""How members become ready, and how the first generation begins: who is refused, and who is lost before the first step."""

from __future__ import annotations

from typing import Any

from orchestrator.common.control_groups import killer_in_words
from orchestrator.controller.decision import Decision
from orchestrator.controller.events import Begin, CardFailed, Ready
from orchestrator.controller.membership import compose, disagreement, lacks_writer
from orchestrator.controller.rendezvous import card_failures
from orchestrator.controller.rendezvous.formation import ask, become_spare, begin, form
from orchestrator.controller.rendezvous.scaling import RETRY_S, start_failed
from orchestrator.controller.state import ControllerState, Member, living, quorum, room
from orchestrator.errors import OrchestratorError, RunFailed, WorkerLost

START_DEATHS = 2  # deaths before the first generation that are replaced


def ready(decision: Decision, event: Ready) -> None:
    member = decision.state.members.get(event.member)
    if member is None or member.ready is not None:
        return
    if decision.state.run_manifest is not None and member.role == "worker":
        error = disagreement("the run", decision.state.run_manifest, member.name, event.run_manifest)
        if error is not None:
            decision.kill(member, f"{error.message}; {error.remedy}")
            start_failed(decision, member.id, f"{member.name} is refused: {error.message}")
            return
    now = decision.now
    if event.card in card_failures.left_out(decision.state.card_failures):
        decision.kill(member, why := f"GPU {event.card} has failed twice")
        if decision.state.phase == "preparing":
            without_card(decision, member, why, card_failures.none_left(decision.state.card_failures))
            return
        card_failures.refused(decision, member.id, f"there is room on GPU {event.card} only, which has failed twice")
        return
    if event.node in decision.state.distrusted:
        decision.kill(member, "another worker of its machine has computed wrongly")
        decision.set(retry=now + RETRY_S, trouble="there is room on a machine only that has computed wrongly")
        return
    facts: dict[str, Any] = {"run_manifest": event.run_manifest, "can_restore": event.can_restore, "node": event.node}
    decision.update(
        member.id, ready=now, speed=event.speed, sites=event.sites, card=event.card, **facts, heard=now, moved=now
    )
    decision.set(retry=None)
    if decision.state.phase == "preparing":
        _begin_first(decision)
    elif decision.state.phase == "paused":
        decision.set(since=now)
        if decision.state.members.count("worker", ready=True) >= quorum(decision.state):
            form(decision)
    elif _is_missing(decision.state, member) or (event.can_restore and _lacks_writer(decision.state)):
        decision.update(member.id, joins=True)
        ask(decision, "regroup", f"{member.name} is ready to join after {now - member.asked:.1f} s")
    else:
        decision.say(f"{member.name} is ready as a spare")
        become_spare(decision, member)


def _is_missing(state: ControllerState, member: Member) -> bool:
    if member.role == "worker":
        return room(state) > state.members.count("worker", joins=True)
    return True  # servers are never started in excess


def _lacks_writer(state: ControllerState) -> bool:
    """Whether no worker of the present generation writes checkpoints, and none that does is about to join."""
    workers = [member for member in living(state, "worker") if member.rank is not None]
    joining = [member for member in living(state, "worker") if member.joins]
    return lacks_writer(state, workers) and not any(member.can_restore for member in joining)


def _begin_first(decision: Decision) -> None:
    if decision.state.members.count("worker", ready=True) < quorum(decision.state):
        return
    ready = [member for member in living(decision.state, "worker") if member.ready is not None]
    for other in ready[1:]:
        error = disagreement(ready[0].name, ready[0].run_manifest, other.name, other.run_manifest)
        if error is not None:
            decision.end(error, "the workers disagree")
            return
    plan = compose(decision.state)
    if isinstance(plan, Begin):
        begin(decision, plan)


def card_failed(decision: Decision, member: Member, event: CardFailed) -> None:
    failures = (*decision.state.card_failures, event)
    decision.set(card_failures=failures)
    # Once a generation has begun, the pipeline has been seen to prepare.
    if decision.state.phase == "preparing" and card_failures.is_of_code(failures):
        decision.end(event.error, "GPUs fail wherever a worker prepares")
        return
    out = card_failures.left_out(failures)
    why = card_failures.why_lost(event, out - card_failures.left_out(failures[:-1]))
    decision.kill(member, why)
    if decision.state.phase != "preparing":
        if event.card in out:
            card_failures.refused(decision, member.id, f"{member.name} {why}")
        else:
            start_failed(decision, member.id, f"{member.name} {why}")
    elif event.card in out:
        sharing = [each for each in decision.state.members.values() if each.card == event.card]
        for each in sharing:
            decision.kill(each, f"computes on GPU {event.card}, which has failed twice")
        for each in (member, *sharing):
            without_card(decision, each, why, card_failures.none_left(failures))
    else:
        lost_at_start(decision, member, why, event.error.details, event.error)


def without_card(decision: Decision, member: Member, why: str, error: RunFailed) -> None:
    """There is room for this member on a card only that has failed twice: the run begins without it, if it may."""
    if decision.state.phase != "preparing":
        return
    if member.role == "worker" and card_failures.may_do_without(decision.state):
        decision.set(without_card=decision.state.without_card + 1)
        decision.say(f"{member.name} {why}; the run begins with {quorum(decision.state)} workers")
        _begin_first(decision)
    else:
        lost_at_start(decision, member, why, error.details, error)


def lost_at_start(
    decision: Decision,
    member: Member,
    why: str,
    details: str,
    error: OrchestratorError | None = None,
) -> None:
    """Replace a member that was lost before the first step, or end the run. error: what the run ends with where too many
    are lost; None: that they are."""
    deaths = decision.state.deaths + 1
    decision.remove(member)
    decision.set(deaths=deaths)
    if deaths > START_DEATHS:
        error = error or WorkerLost(
            f"{member.name} {why}; it is loss {deaths} before the first step",
            killer_in_words(decision.state.oom_kills),
            details,
            code="worker.lost-at-start",
        )
        decision.end(error, f"{deaths} members were lost before the first step")
    else:
        decision.start(member.role)
        decision.say(f"{member.name} {why}; loss {deaths} of {START_DEATHS} that are replaced before the first step")
