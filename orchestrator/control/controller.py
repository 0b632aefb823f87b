"""What a run does next: events in, commands and a reason out, the time as an argument (law 6). No I/O, Ray or torch.

    preparing --enough are ready and alike--> running --all living workers finished alike--> ended
    running   --a member died or left-->      regrouping  (the others are called off, or leave by a vote)
    regrouping --all reported or are gone-->  running | paused (too few are ready) | saving (a stop) | ended (no remedy)
    paused    --enough are ready-->           running
    any       --an error that another try would repeat, or an interruption--> ended

Source: rules C2, C5 and D. Here is what each event means; who belongs to a generation is in `membership`, who is to
blame in `blame`, what is judged when a generation is over in `regrouping`, what comes after it in `forming`. `decide`
is pure: `Turn` gathers the changes of one call and is forgotten. It trusts its events to be true, in any order; those of
a member that is gone and those of an earlier generation change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator.control import blame
from orchestrator.control.events import (
    Begin,
    CallOff,
    Command,
    Died,
    Event,
    Failed,
    Finished,
    Interrupt,
    Left,
    NoRoom,
    Pulse,
    Ready,
    Saved,
    StartFailed,
    Stepped,
    Tick,
)
from orchestrator.control.forming import ask, begin, end_interrupted, form, worth_saving
from orchestrator.control.membership import (
    Fallen,
    Member,
    Recovery,
    State,
    Terms,
    compose,
    disagreement,
    living,
    present,
    progressed,
    room,
    waiting,
)
from orchestrator.control.regrouping import awaits_cause, emit_recoveries, settle
from orchestrator.control.staffing import RETRY_S, came_to_nothing, staff
from orchestrator.control.turn import Turn
from orchestrator.errors import ClusterUnavailable, RunFailed, WorkerLost

GRACE_S = 10.0  # a withdrawal waits so long for the failure that caused it
SAVE_S = 20.0  # an interrupted run waits so long for its checkpoint
LISTEN_S = 2.0  # longer pauses between ticks are the driver's own and are not counted as anybody's silence
START_DEATHS = 2  # deaths before the first generation that are made good
_KILLER = "unless somebody killed it, look for the kernel's out-of-memory killer (dmesg)"


def initial(terms: Terms, now: float) -> tuple[State, tuple[Command, ...]]:
    """The state before anything has happened, and the starts of the first workers, then spares, then servers."""
    done = terms.checkpoint or 0
    state = State(
        terms=terms,
        started=now,
        since=now,
        listened=now,
        next_member=terms.member,
        checkpoint=terms.checkpoint,
        seen=done,
        best=done,
        mark=(done, 1) if done else (0, 0),
    )
    turn = Turn(state, now)
    for role in ["worker"] * (terms.start + terms.spares) + ["server"] * terms.servers:
        turn.start("server" if role == "server" else "worker")
    return turn.state, tuple(turn.commands)


def decide(state: State, event: Event, now: float) -> tuple[State, tuple[Command, ...], str]:
    """The next state, what to do in this order, and why (empty when nothing changes)."""
    turn = Turn(state, now)
    if state.phase != "ended":
        _HANDLERS[type(event)](turn, event)
    return turn.state, tuple(turn.commands), "; ".join(turn.reasons)


# ---- becoming ready, and coming to nothing


def _ready(turn: Turn, event: Ready) -> None:
    member = turn.state.members.get(event.member)
    if member is None or member.ready is not None:
        return
    if turn.state.facts is not None and member.role == "worker":
        error = disagreement("the run", turn.state.facts, member.name, event.facts)
        if error is not None:
            turn.kill(member, error.message)
            came_to_nothing(turn, f"{member.name} is refused: {error.message}")
            return
    now = turn.now
    turn.update(member.id, ready=now, facts=event.facts, can_restore=event.can_restore, heard=now, moved=now)
    turn.set(retry=None)
    if turn.state.phase == "preparing":
        _begin_first(turn)
    elif turn.state.phase == "paused":
        turn.set(since=now)
        form(turn)
    elif _is_missing(turn.state, member):
        turn.update(member.id, joins=True)
        ask(turn, "regroup", f"{member.name} is ready to join after {now - member.asked:.1f} s")
    else:
        turn.say(f"{member.name} is ready as a spare")


def _is_missing(state: State, member: Member) -> bool:
    if member.role == "worker":
        return room(state) > sum(other.joins and other.role == "worker" for other in state.members.values())
    return True  # servers are never started in excess


def _begin_first(turn: Turn) -> None:
    ready = [member for member in living(turn.state, "worker") if member.ready is not None]
    if len(ready) < turn.state.terms.start:
        return
    for other in ready[1:]:
        error = disagreement(ready[0].name, ready[0].facts, other.name, other.facts)
        if error is not None:
            turn.end(error, "the workers disagree")
            return
    plan = compose(turn.state)
    if isinstance(plan, Begin):
        begin(turn, plan)


def _failed(turn: Turn, event: Failed) -> None:
    member = None if event.member is None else turn.state.members.get(event.member)
    if member is None and event.member is not None:
        return
    takes_part = member is None or turn.state.phase == "preparing" or member in present(turn.state)
    if member is None or takes_part:
        turn.end(event.error, f"{'the run' if member is None else member.name} failed: {event.error.kind}")
        return
    turn.kill(member, event.error.message)
    came_to_nothing(turn, f"{member.name} could not join: {event.error.message}")


def _start_failed(turn: Turn, event: StartFailed) -> None:
    member = turn.state.members.get(event.member)
    if member is None or member.ready is not None:
        return
    if turn.state.phase == "preparing":
        _lost_at_start(turn, member, f"could not be started: {event.why}", "")
    else:
        turn.remove(member)
        came_to_nothing(turn, f"{member.name} could not be started: {event.why}")


def _no_room(turn: Turn, event: NoRoom) -> None:
    member = turn.state.members.get(event.member)
    if member is None or member.ready is not None:
        return
    turn.remove(member)
    if turn.state.phase == "preparing":
        turn.end(ClusterUnavailable(f"there is no room for {member.name}: {event.why}", "ask for less"), "no room")
        return
    trouble = f"there is no room for {member.name}: {event.why}"
    turn.set(retry=turn.now + RETRY_S, trouble=trouble)
    turn.say(f"{trouble}; the next try is in {RETRY_S:g} s")


# ---- losing members


def _died(turn: Turn, event: Died) -> None:
    member = turn.state.members.get(event.member)
    if member is None:
        return
    if turn.state.phase == "preparing":
        _lost_at_start(turn, member, f"died: {event.why}", event.details)
    else:
        turn.remove(member)
        certain = event.last is not None
        fallen = Fallen(member=replace(member, pulse=event.last) if certain else member, how="died", certain=certain)
        _lost(turn, [(fallen, f"died: {event.why}")])


def _lost_at_start(turn: Turn, member: Member, why: str, details: str) -> None:
    deaths = turn.state.deaths + 1
    turn.remove(member)
    turn.set(deaths=deaths)
    if deaths > START_DEATHS:
        error = WorkerLost(f"{member.name} {why}; it is loss {deaths} before the first step", _KILLER, details)
        turn.end(error, f"{deaths} members were lost before the first step")
    else:
        turn.start(member.role)
        turn.say(f"{member.name} {why}; loss {deaths} of {START_DEATHS} that are made good before the first step")


def _lost(turn: Turn, losses: list[tuple[Fallen, str]]) -> None:
    """Members, removed already, were lost after the first generation began; several at once are told together."""
    for fallen, why in losses:
        turn.say(f"{fallen.member.name} {why}")
        turn.set(trouble=f"{fallen.member.name} {why}")
        if not _took_part(turn.state, fallen.member):
            if fallen.member.ready is None:
                came_to_nothing(turn, f"{fallen.member.name} was lost before it was ready")
        elif turn.state.phase in ("running", "regrouping"):
            _note_loss(turn, fallen)
    if turn.state.phase == "saving" and not any(member.role == "worker" for member in present(turn.state)):
        end_interrupted(turn, "all workers are lost")
    elif turn.state.phase in ("running", "regrouping"):
        settle(turn)
    staff(turn)


def _took_part(state: State, member: Member) -> bool:
    return state.generation is not None and member.id in state.generation.begin.members


def _note_loss(turn: Turn, fallen: Fallen) -> None:
    """The generation has lost a member: the others are called off, unless it and another one had done all steps."""
    member, generation = fallen.member, turn.generation()
    others_finished = any(isinstance(other.report, Finished) for other in present(turn.state) if other.role == "worker")
    if isinstance(member.report, Finished) and others_finished:
        turn.say("it had finished, and so has another one")
        return
    told = generation.fallen if member.report is not None else (*generation.fallen, fallen)
    turn.set_generation(lost=generation.lost + 1, fallen=told)
    turn.enter("regrouping")
    _open_loss(turn)
    _call_off(turn)


def _open_loss(turn: Turn) -> None:
    """From now on a recovery is under way; several losses before the next step are one."""
    if all(recovery.kind == "joined" for recovery in turn.state.recoveries):
        turn.set(recoveries=(*turn.state.recoveries, Recovery(kind="lost", since=turn.now)))


def _call_off(turn: Turn) -> None:
    generation = turn.generation()
    members = tuple(member.id for member in waiting(turn.state))
    if members and not generation.called_off:
        turn.set_generation(called_off=True)
        turn.do(CallOff(generation.number, members))
        turn.say(f"generation {generation.number} is called off for {len(members)} members")


# ---- leaving and finishing


def _left(turn: Turn, event: Left) -> None:
    member = _reporter(turn, event)
    if member is None:
        return
    turn.update(member.id, report=event, position=_position(event), heard=turn.now, moved=turn.now)
    turn.enter("regrouping")
    turn.say(f"{member.name} left ({event.why}) at position {event.position}{': ' + event.text if event.text else ''}")
    if event.why == "withdrew" and turn.generation().withdrawn is None:
        turn.set_generation(withdrawn=(turn.now, f"{member.name}: {event.text}"))
    if event.why == "peer":
        _open_loss(turn)
        _call_off(turn)
    settle(turn)


def _finished(turn: Turn, event: Finished) -> None:
    member = _reporter(turn, event)
    if member is None:
        return
    turn.update(member.id, report=event, position=_position(event), heard=turn.now, moved=turn.now)
    turn.say(f"{member.name} finished")
    settle(turn)


def _position(event: Left | Finished) -> tuple[int, int] | None:
    return None if event.position is None else (event.position[0], event.position[1])


def _reporter(turn: Turn, event: Left | Finished) -> Member | None:
    """Who reports; None when the report is of another generation, or of a member that has reported or is gone."""
    generation = turn.state.generation
    if generation is None or event.generation != generation.number:
        return None
    return next((member for member in waiting(turn.state) if member.id == event.member), None)


# ---- progress


def _stepped(turn: Turn, event: Stepped) -> None:
    state, done = turn.state, event.step + 1
    turn.set(seen=max(state.seen, done))
    if done > state.best:
        turn.set(best=done, restarts=0)
    if (done, 0) > state.mark:
        turn.set(mark=(done, 0), fruitless=(0, 0))
    generation = state.generation
    if state.phase == "running" and generation is not None:
        late = event.step < generation.steps and generation.begin.restore is None  # what is restored may be older
        if not late:
            emit_recoveries(turn)


def _pulse(turn: Turn, event: Pulse) -> None:
    member = turn.state.members.get(event.member)
    if member is None:
        return
    old = member.pulse
    same = old is not None and (old.place, old.beats) == (event.place, event.beats)
    turn.update(member.id, pulse=event, heard=turn.now, moved=member.moved if same else turn.now)


# ---- stopping


def _interrupt(turn: Turn, event: Interrupt) -> None:
    state = turn.state
    if event.urgent:
        turn.set(interrupted=(turn.now, event.signal))
        end_interrupted(turn, "at once, as asked")
        return
    if state.interrupted is not None:
        return
    turn.set(interrupted=(turn.now, event.signal))
    if state.phase == "preparing":
        end_interrupted(turn, "the run had not begun")
    elif state.phase == "paused":
        form(turn)
    else:
        ask(turn, "stop", f"{event.signal}: the members are to stop after their step")


def _saved(turn: Turn, event: Saved) -> None:
    turn.set(checkpoint=event.step)
    if turn.state.phase == "saving" and not worth_saving(turn.state):
        end_interrupted(turn, f"the checkpoint of step {event.step} is saved")


# ---- time


def _tick(turn: Turn, _: Tick) -> None:
    _forgive_own_pause(turn)
    for watch in (_watch_start, _watch_joiners, _watch_members, _watch_withdrawal, _watch_stop, _watch_pause):
        if turn.state.phase != "ended":
            watch(turn)
    if turn.state.retry is not None and turn.state.phase != "ended":
        staff(turn)


def _forgive_own_pause(turn: Turn) -> None:
    """Who did not listen cannot say that nobody spoke: a long time between two ticks counts as `LISTEN_S`."""
    pause = turn.now - turn.state.listened - LISTEN_S
    turn.set(listened=turn.now)
    if pause > 0:
        for member in turn.state.members.values():
            turn.update(member.id, heard=min(turn.now, member.heard + pause), moved=min(turn.now, member.moved + pause))


def _watch_start(turn: Turn) -> None:
    state = turn.state
    limit = state.terms.start_timeout_s
    last = max((progressed(member) for member in state.members.values()), default=state.started)
    if state.phase != "preparing" or turn.now - last <= limit:
        return
    late = [f"{member.name} ({_how_far(member)})" for member in state.members.values() if member.ready is None]
    plan = compose(state)
    what = f"{', '.join(late)} not ready" if late else str(plan)
    error = ClusterUnavailable(
        f"{what}, and nothing has progressed for {limit:g} s",
        "if the machine is busy (uptime), end what else runs there; raise cluster.start_timeout_s, or ask for less",
    )
    turn.end(error, "the start came to a standstill")


def _how_far(member: Member) -> str:
    return "its process has not started" if member.pulse is None else "it is preparing"


def _watch_joiners(turn: Turn) -> None:
    if turn.state.phase == "preparing":
        return
    limit = turn.state.terms.start_timeout_s
    for member in list(turn.state.members.values()):
        if member.ready is None and turn.now - progressed(member) > limit:
            turn.kill(member, f"its start has not progressed for {limit:g} s: {_how_far(member)}")
            came_to_nothing(turn, f"the start of {member.name} has not progressed for {limit:g} s")


def _watch_members(turn: Turn) -> None:
    if turn.state.phase not in ("running", "regrouping"):
        return
    found = blame.stuck(turn.state, turn.now)
    if turn.state.phase == "regrouping":
        known = {fallen.member.id for fallen, _ in found}
        found += [(fallen, why) for fallen, why in blame.silent(turn.state, turn.now) if fallen.member.id not in known]
    for fallen, why in found:
        turn.kill(fallen.member, why)
    if found:
        _lost(turn, found)


def _watch_withdrawal(turn: Turn) -> None:
    generation = turn.state.generation
    if generation is None or generation.withdrawn is None or not awaits_cause(turn.state):
        return
    since, text = generation.withdrawn
    if turn.now - since > GRACE_S:
        turn.end(RunFailed(text), f"no member named the cause within {GRACE_S:g} s")


def _watch_stop(turn: Turn) -> None:
    state = turn.state
    if state.interrupted is None or state.phase not in ("regrouping", "saving"):
        return
    if turn.now - max(state.since, state.interrupted[0]) > SAVE_S:
        end_interrupted(turn, f"{SAVE_S:g} s have passed in phase {state.phase}")


def _watch_pause(turn: Turn) -> None:
    if turn.state.phase == "paused":
        form(turn)


_HANDLERS: dict[type[Event], Callable[[Turn, Any], None]] = {
    Ready: _ready,
    Left: _left,
    Finished: _finished,
    Failed: _failed,
    Died: _died,
    Pulse: _pulse,
    Stepped: _stepped,
    Saved: _saved,
    NoRoom: _no_room,
    StartFailed: _start_failed,
    Interrupt: _interrupt,
    Tick: _tick,
}
