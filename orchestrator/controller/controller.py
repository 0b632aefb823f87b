"""The next action of a run: events in, commands and a reason out, the time as an argument (law 6). No I/O, Ray or torch.

    preparing --enough are ready and alike--> running --all living workers finished alike--> ended
    running   --a member died or left-->      regrouping  (the others are called off, or leave by a vote)
    regrouping --all reported or are gone-->  running | paused (too few are ready) | saving (a stop) | ended (no remedy)
    paused    --enough are ready-->           running
    any       --an error that another try would repeat, or an interruption--> ended

Source: rules C2, C5 and D. This module handles each kind of event; who belongs to a generation is in `membership`, who
is at fault in `fault_attribution`. In `rendezvous`, `beginning` has how members get ready, `losses` how a generation loses
some, `watching` limits of time, `conclusion` what is decided when a generation is over, and `formation` what comes after
it. `decide` is pure: a `Decision` collects the changes of one call and is dropped. Events are taken to be true, in any order;
those of a member that is gone and those of an earlier generation change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator.common import card_faults
from orchestrator.controller.decision import Decision
from orchestrator.controller.events import (
    CardFailed,
    CheckpointRestored,
    CheckpointSaved,
    Command,
    Died,
    Drained,
    Ended,
    Event,
    Failed,
    Heartbeat,
    Interrupt,
    NoRoom,
    Ready,
    Reported,
    StartFailed,
    Stepped,
    Tick,
    Timed,
)
from orchestrator.controller.rendezvous import beginning, card_failures, losses
from orchestrator.controller.rendezvous.balancing import REMEMBERED, balance
from orchestrator.controller.rendezvous.conclusion import conclude, emit_recoveries
from orchestrator.controller.rendezvous.distrust import distrusted
from orchestrator.controller.rendezvous.formation import (
    ask,
    end_interrupted,
    form,
    go_back_further,
    worth_saving,
)
from orchestrator.controller.rendezvous.leaving import drained
from orchestrator.controller.rendezvous.scaling import RETRY_S, start_failed
from orchestrator.controller.rendezvous.watching import watch
from orchestrator.controller.state import (
    ControllerState,
    LostMember,
    Member,
    Requirements,
)
from orchestrator.records.progress import Progress, in_words, just_committed, passed


def initial(requirements: Requirements, now: float) -> tuple[ControllerState, tuple[Command, ...]]:
    """The state before anything has happened, and the commands that start the first workers, spares and servers."""
    done = requirements.checkpoint or 0
    state = ControllerState(
        requirements=requirements,
        started=now,
        start_moved=now,
        joiners_moved=now,
        since=now,
        listened=now,
        next_member=requirements.member,
        checkpoint=requirements.checkpoint,
        steps_seen=done,
        best=done,
        mark=Progress(done) if done else None,
    )
    decision = Decision(state, now)
    members = requirements.members
    for _ in range(members.start + members.spares):
        decision.start("worker")
    for _ in range(members.servers):
        decision.start("server")
    return decision.state, tuple(decision.commands)


def decide(state: ControllerState, event: Event, now: float) -> tuple[ControllerState, tuple[Command, ...], str]:
    """The next state, what to do in this order, and why (empty when nothing changes)."""
    decision = Decision(state, now)
    if state.phase != "ended":
        _HANDLERS[type(event)](decision, event)
    return decision.state, tuple(decision.commands), "; ".join(decision.reasons)


# ---- failing to start


def _failed(decision: Decision, event: Failed) -> None:
    member = None if event.member is None else decision.state.members.get(event.member)
    if member is None and event.member is not None:
        return
    takes_part = member is None or decision.state.phase == "preparing" or member.rank is not None
    if member is None or takes_part:
        decision.end(event.error, f"{'the run' if member is None else member.name} failed: {event.error.kind}")
        return
    decision.kill(member, event.error.message)
    start_failed(decision, member.id, f"{member.name} could not join: {event.error.message}")


def _card_failed(decision: Decision, event: CardFailed) -> None:
    member = decision.state.members.get(event.member)
    if member is None:
        return
    elsewhere = card_faults.BY_CODE[event.code].elsewhere
    if elsewhere and member.ready is None:
        beginning.card_failed(decision, member, event)
    elif not elsewhere or member.rank is None:
        _failed(decision, Failed(event.member, event.error))
    elif found := card_failures.lost(decision, event):
        losses.lost(decision, found)


def _start_failed(decision: Decision, event: StartFailed) -> None:
    member = decision.state.members.get(event.member)
    if member is None or member.ready is not None:
        return
    if decision.state.phase == "preparing":
        beginning.lost_at_start(decision, member, f"could not be started: {event.why}", "")
    else:
        decision.remove(member)
        start_failed(decision, member.id, f"{member.name} could not be started: {event.why}")


def _no_room(decision: Decision, event: NoRoom) -> None:
    member = decision.state.members.get(event.member)
    if member is None or member.ready is not None:
        return
    decision.remove(member)
    if decision.state.phase == "preparing":
        error = card_failures.none_left(decision.state.card_failures)
        beginning.without_card(decision, member, f"has no room: {event.why}", error)
    elif event.taken or not card_failures.ends_without_cards(decision):
        trouble = f"there is no room for another {member.role}: {event.why}"
        if decision.state.trouble != trouble:  # else it was said when it began
            decision.say(f"{trouble}; it is tried again every {RETRY_S:g} s")
        decision.set(retry=decision.now + RETRY_S, trouble=trouble)


# ---- losing members


def _died(decision: Decision, event: Died) -> None:
    member = decision.state.members.get(event.member)
    if member is None:
        return
    decision.set(oom_kills=event.oom_kills)
    if decision.state.phase == "preparing":
        beginning.lost_at_start(decision, member, f"died: {event.why}", event.details)
    else:
        decision.remove(member)
        certain = event.last is not None
        lost_member = LostMember(
            member=replace(member, heartbeat=event.last) if certain else member, how="died", certain=certain
        )
        losses.lost(decision, [(lost_member, f"died: {event.why}")])


# ---- leaving and finishing


def _reported(decision: Decision, event: Reported) -> None:
    member, ended = _reporter(decision, event), event.ended
    if member is None:
        return
    decision.update(
        member.id,
        report=ended,
        progress=ended.progress,
        held=ended.held,
        staged=ended.staged,
        holds_sum=ended.holds_sum,
        heard=decision.now,
        moved=decision.now,
    )
    if ended.kind == "finished":
        decision.say(f"{member.name} finished")
    else:
        _left(decision, member, ended)
    if decision.state.phase != "ended":
        conclude(decision)


def _left(decision: Decision, member: Member, ended: Ended) -> None:
    decision.enter("regrouping")
    decision.say(f"{member.name} left ({ended.kind}) {in_words(ended.progress)}{': ' + ended.why if ended.why else ''}")
    if ended.kind == "withdrew" and decision.generation().withdrawn is None:
        decision.set_generation(withdrawn=(decision.now, f"{member.name}: {ended.why}"))
    if ended.kind == "peer":
        losses.open_loss(decision)
        losses.call_off(decision)
    if ended.verdict is not None and not decision.generation().judged:
        decision.set_generation(judged=True)
        losses.lost(decision, distrusted(decision, ended.verdict))


def _reporter(decision: Decision, event: Reported) -> Member | None:
    """The member that reports; None when the report is of another generation, or of a member that has reported or is
    gone."""
    generation = decision.state.generation
    if generation is None or event.generation != generation.number:
        return None
    member = decision.state.members.get(event.member)
    return member if member is not None and member.rank is not None and member.report is None else None


# ---- progress


def _stepped(decision: Decision, event: Stepped) -> None:
    state, done = decision.state, event.step + 1
    decision.set(steps_seen=max(state.steps_seen, done), clocks=event.clocks or state.clocks)
    if done > state.best:
        decision.set(best=done, restarts=0)
    if passed(just_committed(done), state.mark):
        decision.set(mark=just_committed(done), without_progress=(0, 0))
    generation = state.generation
    # A step below that is of an earlier generation.
    if state.phase == "running" and generation is not None and event.step >= generation.steps:
        emit_recoveries(decision)
        if state.failures and None in generation.before.values():  # who came has taken part in a step
            decision.set(failures=0, later=None)


def _timed(decision: Decision, event: Timed) -> None:
    member = decision.state.members.get(event.member)
    if member is not None and event.seconds > 0:
        decision.update(member.id, lately=(*member.lately, event.seconds)[-REMEMBERED:])
        balance(decision, member)


def _heartbeat(decision: Decision, event: Heartbeat) -> None:
    member = decision.state.members.get(event.member)
    if member is None:
        return
    old = member.heartbeat
    same = old is not None and (old.activity, old.beats) == (event.activity, event.beats)
    moved, card = member.moved if same else decision.now, member.card or event.card
    decision.update(member.id, heartbeat=event, heard=decision.now, moved=moved, card=card)


# ---- stopping


def _interrupt(decision: Decision, event: Interrupt) -> None:
    state = decision.state
    if event.urgent:
        decision.set(interrupted=(decision.now, event.signal))
        end_interrupted(decision, "at once, as asked")
        return
    if state.interrupted is not None:
        return
    decision.set(interrupted=(decision.now, event.signal))
    if state.phase == "preparing":
        end_interrupted(decision, "the run had not begun")
    elif state.phase == "paused":
        form(decision)
    else:
        ask(decision, "stop", f"{event.signal}: the members are to stop after their step")


def _saved(decision: Decision, event: CheckpointSaved) -> None:
    decision.set(checkpoint=event.step)
    if decision.state.phase == "saving" and not worth_saving(decision.state):
        end_interrupted(decision, f"the checkpoint of step {event.step} is saved")


def _restored(decision: Decision, event: CheckpointRestored) -> None:
    decision.set(checkpoint=event.step)
    go_back_further(decision, event.step or 0)


_HANDLERS: dict[type[Event], Callable[[Decision, Any], None]] = {
    Ready: beginning.ready,
    Reported: _reported,
    Failed: _failed,
    CardFailed: _card_failed,
    Died: _died,
    Heartbeat: _heartbeat,
    Stepped: _stepped,
    Timed: _timed,
    CheckpointSaved: _saved,
    CheckpointRestored: _restored,
    NoRoom: _no_room,
    Drained: drained,
    StartFailed: _start_failed,
    Interrupt: _interrupt,
    Tick: lambda decision, _: watch(decision),
}
