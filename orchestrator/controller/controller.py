"""The next action of a run: events in, commands and a reason out, the time as an argument (law 6). No I/O, Ray or torch.

    preparing --enough are ready and alike--> running --all living workers finished alike--> ended
    running   --a member died or left-->      regrouping  (the others are called off, or leave by a vote)
    regrouping --all reported or are gone-->  running | paused (too few are ready) | saving (a stop) | ended (no remedy)
    paused    --enough are ready-->           running
    any       --an error that another try would repeat, or an interruption--> ended

Source: rules C2, C5 and D. This module handles each kind of event; who belongs to a generation is in `membership`, who
is at fault in `fault_attribution`, what is decided when a generation is over in `rendezvous.conclusion`, and
what comes after it in `rendezvous.formation`. `decide` is pure: a `Decision` collects the changes of one call and is
dropped. Events are taken to be true, in any order; those of a member that is gone and those of an earlier generation
change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator.common import card_faults
from orchestrator.common.control_groups import killer_in_words
from orchestrator.controller import fault_attribution
from orchestrator.controller.decision import Decision
from orchestrator.controller.events import (
    Begin,
    CallOff,
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
    Inspect,
    Interrupt,
    NoRoom,
    Ready,
    Reported,
    StartFailed,
    Stepped,
    Tick,
    Timed,
)
from orchestrator.controller.membership import compose, disagreement
from orchestrator.controller.rendezvous import card_failures
from orchestrator.controller.rendezvous.balancing import REMEMBERED, balance
from orchestrator.controller.rendezvous.conclusion import awaits_cause, conclude, emit_recoveries
from orchestrator.controller.rendezvous.distrust import distrusted
from orchestrator.controller.rendezvous.formation import (
    ask,
    become_spare,
    begin,
    end_interrupted,
    form,
    go_back_further,
    worth_saving,
)
from orchestrator.controller.rendezvous.leaving import drained, watch
from orchestrator.controller.rendezvous.scaling import RETRY_S, start_failed, start_missing
from orchestrator.controller.state import (
    ControllerState,
    LostMember,
    Member,
    Recovery,
    Requirements,
    living,
    present,
    progressed,
    quorum,
    room,
    waiting,
)
from orchestrator.errors import ClusterUnavailable, OrchestratorError, RunFailed, WorkerLost
from orchestrator.records.progress import Progress, in_words, just_committed, passed

GRACE_S = 10.0  # how long a withdrawal waits for the failure that caused it
SAVE_S = 20.0  # how long an interrupted run waits for its checkpoint
LISTEN_S = 2.0  # a longer pause between ticks is the driver's own, and is not counted as silence of a member
START_DEATHS = 2  # deaths before the first generation that are replaced


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


# ---- becoming ready, and failing to start


def _ready(decision: Decision, event: Ready) -> None:
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
            _without_card(decision, member, why, card_failures.none_left(decision.state.card_failures))
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
    elif _is_missing(decision.state, member):
        decision.update(member.id, joins=True)
        ask(decision, "regroup", f"{member.name} is ready to join after {now - member.asked:.1f} s")
    else:
        decision.say(f"{member.name} is ready as a spare")
        become_spare(decision, member)


def _is_missing(state: ControllerState, member: Member) -> bool:
    if member.role == "worker":
        return room(state) > state.members.count("worker", joins=True)
    return True  # servers are never started in excess


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
        _card_failed_at_start(decision, member, event)
    elif not elsewhere or member.rank is None:
        _failed(decision, Failed(event.member, event.error))
    elif found := card_failures.lost(decision, event):
        _lost(decision, found)


def _card_failed_at_start(decision: Decision, member: Member, event: CardFailed) -> None:
    failures = (*decision.state.card_failures, event)
    decision.set(card_failures=failures)
    if card_failures.is_of_code(failures):
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
            _without_card(decision, each, why, card_failures.none_left(failures))
    else:
        _lost_at_start(decision, member, why, event.error.details, event.error)


def _without_card(decision: Decision, member: Member, why: str, error: RunFailed) -> None:
    """There is room for this member on a card only that has failed twice: the run begins without it, if it may."""
    if decision.state.phase != "preparing":
        return
    if member.role == "worker" and card_failures.may_do_without(decision.state):
        decision.set(without_card=decision.state.without_card + 1)
        decision.say(f"{member.name} {why}; the run begins with {quorum(decision.state)} workers")
        _begin_first(decision)
    else:
        _lost_at_start(decision, member, why, error.details, error)


def _start_failed(decision: Decision, event: StartFailed) -> None:
    member = decision.state.members.get(event.member)
    if member is None or member.ready is not None:
        return
    if decision.state.phase == "preparing":
        _lost_at_start(decision, member, f"could not be started: {event.why}", "")
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
        _without_card(decision, member, f"has no room: {event.why}", error)
    elif event.taken or not card_failures.ends_without_cards(decision):
        trouble = f"there is no room for {member.name}: {event.why}"
        decision.set(retry=decision.now + RETRY_S, trouble=trouble)
        decision.say(f"{trouble}; the next try is in {RETRY_S:g} s")


# ---- losing members


def _died(decision: Decision, event: Died) -> None:
    member = decision.state.members.get(event.member)
    if member is None:
        return
    if decision.state.phase == "preparing":
        _lost_at_start(decision, member, f"died: {event.why}", event.details, oom_kills=event.oom_kills)
    else:
        decision.remove(member)
        certain = event.last is not None
        lost_member = LostMember(
            member=replace(member, heartbeat=event.last) if certain else member, how="died", certain=certain
        )
        _lost(decision, [(lost_member, f"died: {event.why}")])


def _lost_at_start(
    decision: Decision,
    member: Member,
    why: str,
    details: str,
    error: OrchestratorError | None = None,
    *,
    oom_kills: int | None = None,
) -> None:
    """error: what the run ends with where too many are lost; None: that they are. oom_kills: as of `Died`."""
    deaths = decision.state.deaths + 1
    decision.remove(member)
    decision.set(deaths=deaths)
    if deaths > START_DEATHS:
        error = error or WorkerLost(
            f"{member.name} {why}; it is loss {deaths} before the first step",
            killer_in_words(oom_kills),
            details,
            code="worker.lost-at-start",
        )
        decision.end(error, f"{deaths} members were lost before the first step")
    else:
        decision.start(member.role)
        decision.say(f"{member.name} {why}; loss {deaths} of {START_DEATHS} that are replaced before the first step")


def _lost(decision: Decision, losses: list[tuple[LostMember, str]]) -> None:
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
    _open_loss(decision)
    _call_off(decision)


def _open_loss(decision: Decision) -> None:
    """Begin a recovery; several losses before the next step are one recovery."""
    if all(recovery.kind == "joined" for recovery in decision.state.recoveries):
        decision.set(recoveries=(*decision.state.recoveries, Recovery(kind="lost", since=decision.now)))


def _call_off(decision: Decision) -> None:
    generation = decision.generation()
    if generation.called_off is not None:
        return
    if members := tuple(member.id for member in waiting(decision.state)):
        decision.set_generation(called_off=decision.now)
        decision.do(CallOff(generation.number, members))
        decision.say(f"generation {generation.number} is called off for {len(members)} members")


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
        _open_loss(decision)
        _call_off(decision)
    if ended.verdict is not None and not decision.generation().judged:
        decision.set_generation(judged=True)
        _lost(decision, distrusted(decision, ended.verdict))


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


# ---- time


def _tick(decision: Decision, _: Tick) -> None:
    _forgive_own_pause(decision)
    for look in (_watch_start, _watch_joiners, _watch_members, _watch_withdrawal, _watch_stop, _watch_pause, watch):
        if decision.state.phase != "ended":
            look(decision)
    state = decision.state
    if (state.retry is not None or state.later is not None) and state.phase != "ended":
        start_missing(decision)


def _forgive_own_pause(decision: Decision) -> None:
    """Do not count the driver's own pause as silence of members: a long time between two ticks counts as `LISTEN_S`."""
    pause = decision.now - decision.state.listened - LISTEN_S
    decision.set(listened=decision.now)
    if pause > 0:
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
            _card_failed_at_start(decision, member, event)
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
        _open_loss(decision)
        _call_off(decision)
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
        _lost(decision, found)


def _may_be_stuck(decision: Decision) -> bool:
    """Whether anybody has been quiet for so long that members are to be looked at one by one. At most ticks nobody has."""
    timeouts = decision.state.requirements.timeouts
    limit = min(timeouts.step_s, timeouts.unreachable_s)
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
    if decision.now - max(state.since, state.interrupted[0]) > SAVE_S:
        end_interrupted(decision, f"{SAVE_S:g} s have passed in phase {state.phase}")


def _watch_pause(decision: Decision) -> None:
    if decision.state.phase == "paused":
        form(decision)


_HANDLERS: dict[type[Event], Callable[[Decision, Any], None]] = {
    Ready: _ready,
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
    Tick: _tick,
}
