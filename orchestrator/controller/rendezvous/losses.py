"""The losses of a generation: it is called off, a recovery begins, and what is missing is started."""

from __future__ import annotations

from orchestrator.controller.decision import Decision
from orchestrator.controller.events import CallOff
from orchestrator.controller.rendezvous import card_failures
from orchestrator.controller.rendezvous.conclusion import conclude
from orchestrator.controller.rendezvous.formation import end_interrupted
from orchestrator.controller.rendezvous.scaling import start_failed, start_missing
from orchestrator.controller.state import LostMember, Recovery, present, waiting


def lost(decision: Decision, losses: list[tuple[LostMember, str]]) -> None:
    """Handle losses, after the first generation began, of members that are removed already; several at once are handled
    together."""
    for lost_member, why in losses:
        decision.say(f"{lost_member.member.name} {why}")
        decision.set(trouble=f"{lost_member.member.name} {why}")
        if lost_member.member.rank is None:
            if lost_member.member.ready is None:
                start_failed(decision, lost_member.member.id, f"{lost_member.member.name} was lost before it was ready")
        elif decision.state.phase in ("running", "regrouping"):
            if card_failures.left_out(decision.state.card_failures):
                decision.set(failures=0, later=None)  # its place is free, and not only that of a card that is left out
            _note_loss(decision, lost_member)
    if decision.state.phase == "saving" and not decision.state.members.count("worker", takes_part=True):
        end_interrupted(decision, "all workers are lost")
    elif decision.state.phase in ("running", "regrouping"):
        conclude(decision)
    start_missing(decision)


def _note_loss(decision: Decision, lost_member: LostMember) -> None:
    """Call off the generation, which has lost a member, unless that member and another one of its stage had done all steps."""
    member, generation = lost_member.member, decision.generation()
    if member.has_finished and any(
        other.has_finished and other.stage == member.stage
        for other in present(decision.state)
        if other.role == "worker"
    ):
        decision.say("it had finished, and so has another one")
        return
    lost = generation.lost_members if member.report is not None else (*generation.lost_members, lost_member)
    decision.set_generation(lost=generation.lost + 1, lost_members=lost)
    decision.enter("regrouping")
    open_loss(decision)
    call_off(decision)


def open_loss(decision: Decision) -> None:
    """Begin a recovery; several losses before the next step are one recovery."""
    if all(recovery.kind == "joined" for recovery in decision.state.recoveries):
        decision.set(recoveries=(*decision.state.recoveries, Recovery(kind="lost", since=decision.now)))


def call_off(decision: Decision) -> None:
    generation = decision.generation()
    if generation.called_off is not None:
        return
    if members := tuple(member.id for member in waiting(decision.state)):
        decision.set_generation(called_off=decision.now)
        decision.do(CallOff(generation.number, members))
        decision.say(f"generation {generation.number} is called off for {len(members)} members")
