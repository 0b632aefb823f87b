"""What a run does next: events in, commands and a reason out, the time as an argument (law 6). No I/O, no Ray, no
torch.

    preparing --enough are ready and alike--> running --all living workers finished alike--> ended
    running   --a member died or left-->      regrouping  (the others are called off, or leave by a vote)
    regrouping --all reported or are gone-->  running | paused (too few are ready) | saving (a stop) | ended (no remedy)
    paused    --enough are ready-->           running
    any       --an error that another try would repeat, or an interruption--> ended

Source: rules C2, C5 and D. Who belongs to the next generation is in `membership`, who is to blame in `blame`; here is
what follows when. `decide` is pure: `_Turn` gathers the changes of one call and is forgotten. It trusts its events to
be true, in any order; those of a member that is gone and those of an earlier generation change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator.control import blame
from orchestrator.control.events import (
    Ask,
    Begin,
    CallOff,
    Command,
    Died,
    End,
    Event,
    Failed,
    Finished,
    Interrupt,
    Kill,
    Left,
    NoRoom,
    Pulse,
    Ready,
    Recovered,
    Role,
    Saved,
    Start,
    StartFailed,
    Stepped,
    Tick,
)
from orchestrator.control.membership import (
    Fallen,
    Generation,
    Member,
    Recovery,
    State,
    Terms,
    compose,
    disagreement,
    living,
    present,
    room,
    skew,
    top,
    waiting,
)
from orchestrator.errors import (
    ClusterUnavailable,
    Inconsistent,
    Interrupted,
    OrchestratorError,
    RunFailed,
    WorkerLost,
)

GRACE_S = 10.0  # a withdrawal waits so long for the failure that caused it
SAVE_S = 20.0  # an interrupted run waits so long for its checkpoint
RETRY_S = 10.0  # a start is tried again so long after there was no room
LISTEN_S = 2.0  # longer pauses between ticks are the driver's own and are not counted as anybody's silence
START_DEATHS = 2  # deaths before the first generation that are made good
FAILURES = 3  # starts in a row that come to nothing before no more are tried
RESTARTS = 10  # losses of all state without getting further than before
FRUITLESS = (10, 25)  # generations without a committed step: such that lost nobody, and such that lost a member
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
    turn = _Turn(state, now)
    for role in ["worker"] * (terms.start + terms.spares) + ["server"] * terms.servers:
        turn.start("server" if role == "server" else "worker")
    return turn.state, tuple(turn.commands)


def decide(state: State, event: Event, now: float) -> tuple[State, tuple[Command, ...], str]:
    """The next state, what to do in this order, and why (empty when nothing changes)."""
    turn = _Turn(state, now)
    if state.phase != "ended":
        _HANDLERS[type(event)](turn, event)
    return turn.state, tuple(turn.commands), "; ".join(turn.reasons)


class _Turn:
    """One decision in the making."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.commands: list[Command] = []
        self.reasons: list[str] = []

    def set(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def enter(self, phase: str) -> None:
        if self.state.phase != phase:
            self.set(phase=phase, since=self.now)

    def say(self, reason: str) -> None:
        self.reasons.append(reason)

    def do(self, command: Command) -> None:
        self.commands.append(command)

    def update(self, member: int, **changes: Any) -> None:
        changed = replace(self.state.members[member], **changes)
        self.set(members={**self.state.members, member: changed})

    def generation(self) -> Generation:
        assert self.state.generation is not None
        return self.state.generation

    def set_generation(self, **changes: Any) -> None:
        self.set(generation=replace(self.generation(), **changes))

    def start(self, role: Role) -> None:
        member = Member(id=self.state.next_member, role=role, asked=self.now, heard=self.now, moved=self.now)
        self.set(members={**self.state.members, member.id: member}, next_member=member.id + 1)
        self.do(Start(member.id, role))

    def remove(self, member: Member) -> None:
        members = {key: value for key, value in self.state.members.items() if key != member.id}
        self.set(members=members)

    def kill(self, member: Member, why: str) -> None:
        self.remove(member)
        self.do(Kill(member.id, why))

    def end(self, error: OrchestratorError | None, reason: str) -> None:
        self.set(phase="ended")
        self.do(End(error))
        self.say(reason)


# ---- becoming ready, and coming to nothing


def _ready(turn: _Turn, event: Ready) -> None:
    member = turn.state.members.get(event.member)
    if member is None or member.ready is not None:
        return
    if turn.state.facts is not None and member.role == "worker":
        error = disagreement("the run", turn.state.facts, member.name, event.facts)
        if error is not None:
            turn.kill(member, error.message)
            _came_to_nothing(turn, f"{member.name} is refused: {error.message}")
            return
    now = turn.now
    turn.update(member.id, ready=now, facts=event.facts, can_restore=event.can_restore, heard=now, moved=now)
    turn.set(retry=None)
    if turn.state.phase == "preparing":
        _begin_first(turn)
    elif turn.state.phase == "paused":
        turn.set(since=now)
        _form(turn)
    elif _is_missing(turn.state, member):
        turn.update(member.id, joins=True)
        _ask(turn, "regroup", f"{member.name} is ready to join after {now - member.asked:.1f} s")
    else:
        turn.say(f"{member.name} is ready as a spare")


def _is_missing(state: State, member: Member) -> bool:
    if member.role == "worker":
        return room(state) > sum(other.joins and other.role == "worker" for other in state.members.values())
    return True  # servers are never started in excess


def _begin_first(turn: _Turn) -> None:
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
        _begin(turn, plan)


def _failed(turn: _Turn, event: Failed) -> None:
    member = None if event.member is None else turn.state.members.get(event.member)
    if member is None and event.member is not None:
        return
    takes_part = member is None or turn.state.phase == "preparing" or member in present(turn.state)
    if member is None or takes_part:
        turn.end(event.error, f"{'the run' if member is None else member.name} failed: {event.error.kind}")
        return
    turn.kill(member, event.error.message)
    _came_to_nothing(turn, f"{member.name} could not join: {event.error.message}")


def _start_failed(turn: _Turn, event: StartFailed) -> None:
    member = turn.state.members.get(event.member)
    if member is None or member.ready is not None:
        return
    if turn.state.phase == "preparing":
        _lost_at_start(turn, member, f"could not be started: {event.why}", "")
    else:
        turn.remove(member)
        _came_to_nothing(turn, f"{member.name} could not be started: {event.why}")


def _no_room(turn: _Turn, event: NoRoom) -> None:
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


def _came_to_nothing(turn: _Turn, why: str) -> None:
    failures = turn.state.failures + 1
    turn.set(failures=failures, trouble=why)
    turn.say(why)
    if failures >= FAILURES:
        turn.say(f"{failures} starts in a row came to nothing, so no more are tried")
    _staff(turn)


def _staff(turn: _Turn) -> None:
    """Start what is missing. Where there was no room, one at a time."""
    state = turn.state
    if state.phase not in ("running", "regrouping", "paused") or state.interrupted or state.failures >= FAILURES:
        return
    missing: list[Role] = ["worker"] * (state.terms.most + state.terms.spares - len(living(state, "worker")))
    missing += ["server"] * (state.terms.servers - len(living(state, "server")))
    if missing and state.retry is not None:
        if turn.now < state.retry:
            return
        missing = missing[:1]
        turn.set(retry=turn.now + RETRY_S)
    for role in missing:
        turn.start(role)
    if missing:
        turn.say(f"starting {', '.join(f'{role}' for role in missing)}")


# ---- losing members


def _died(turn: _Turn, event: Died) -> None:
    member = turn.state.members.get(event.member)
    if member is None:
        return
    if turn.state.phase == "preparing":
        _lost_at_start(turn, member, f"died: {event.why}", event.details)
    else:
        turn.remove(member)
        _lost(turn, [(Fallen(member=member, how="died"), f"died: {event.why}")])


def _lost_at_start(turn: _Turn, member: Member, why: str, details: str) -> None:
    deaths = turn.state.deaths + 1
    turn.remove(member)
    turn.set(deaths=deaths)
    if deaths > START_DEATHS:
        error = WorkerLost(f"{member.name} {why}; it is loss {deaths} before the first step", _KILLER, details)
        turn.end(error, f"{deaths} members were lost before the first step")
    else:
        turn.start(member.role)
        turn.say(f"{member.name} {why}; loss {deaths} of {START_DEATHS} that are made good before the first step")


def _lost(turn: _Turn, losses: list[tuple[Fallen, str]]) -> None:
    """Members, removed already, were lost after the first generation began; several at once are told together."""
    for fallen, why in losses:
        turn.say(f"{fallen.member.name} {why}")
        turn.set(trouble=f"{fallen.member.name} {why}")
        if not _took_part(turn.state, fallen.member):
            if fallen.member.ready is None:
                _came_to_nothing(turn, f"{fallen.member.name} was lost before it was ready")
        elif turn.state.phase in ("running", "regrouping"):
            _note_loss(turn, fallen)
    if turn.state.phase == "saving" and not any(member.role == "worker" for member in present(turn.state)):
        _interrupted(turn, "all workers are lost")
    elif turn.state.phase in ("running", "regrouping"):
        _settle(turn)
    _staff(turn)


def _took_part(state: State, member: Member) -> bool:
    return state.generation is not None and member.id in state.generation.begin.members


def _note_loss(turn: _Turn, fallen: Fallen) -> None:
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


def _open_loss(turn: _Turn) -> None:
    """From now on a recovery is under way; several losses before the next step are one."""
    if all(recovery.kind == "joined" for recovery in turn.state.recoveries):
        turn.set(recoveries=(*turn.state.recoveries, Recovery(kind="lost", since=turn.now)))


def _call_off(turn: _Turn) -> None:
    generation = turn.generation()
    members = tuple(member.id for member in waiting(turn.state))
    if members and not generation.called_off:
        turn.set_generation(called_off=True)
        turn.do(CallOff(generation.number, members))
        turn.say(f"generation {generation.number} is called off for {len(members)} members")


# ---- leaving and finishing


def _left(turn: _Turn, event: Left) -> None:
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
    _settle(turn)


def _finished(turn: _Turn, event: Finished) -> None:
    member = _reporter(turn, event)
    if member is None:
        return
    turn.update(member.id, report=event, position=_position(event), heard=turn.now, moved=turn.now)
    turn.say(f"{member.name} finished")
    _settle(turn)


def _position(event: Left | Finished) -> tuple[int, int] | None:
    return None if event.position is None else (event.position[0], event.position[1])


def _reporter(turn: _Turn, event: Left | Finished) -> Member | None:
    """Who reports; None when the report is of another generation, or of a member that has reported or is gone."""
    generation = turn.state.generation
    if generation is None or event.generation != generation.number:
        return None
    return next((member for member in waiting(turn.state) if member.id == event.member), None)


def _settle(turn: _Turn) -> None:
    """After a report or a loss: the generation may be over, and with it the run."""
    here = present(turn.state)
    workers = [member for member in here if member.role == "worker"]
    if workers and all(isinstance(member.report, Finished) for member in workers):
        _finish(turn, workers)
    elif not waiting(turn.state) and not _awaits_cause(turn.state):
        turn.enter("regrouping")
        _regroup(turn)


def _awaits_cause(state: State) -> bool:
    """Somebody withdrew because of a failure that nobody has told yet; a loss would explain it."""
    generation = state.generation
    return generation is not None and generation.withdrawn is not None and not generation.lost


def _finish(turn: _Turn, workers: list[Member]) -> None:
    digests = {str(member.report.digest) for member in workers if isinstance(member.report, Finished)}
    if len(digests) > 1:
        turn.end(Inconsistent(f"the workers ended with different parameters: {sorted(digests)}"), "the digests differ")
        return
    _emit_recoveries(turn)
    turn.end(None, f"all steps are done by all {len(workers)} living workers")


def _regroup(turn: _Turn) -> None:
    """Every member of the generation has reported or is gone: judge what happened, then form the next one."""
    apart = skew(turn.state)
    if apart:
        error = Inconsistent(f"replicas are more than one step apart: {apart}", "this is a fault of orchestrator")
        turn.end(error, "the skew is more than one step")
        return
    generation = turn.generation()
    _learn_of_older_checkpoint(turn, generation)
    step = _standing(turn.state, generation)
    losses, stalls = blame.suspect(turn.state, step)
    turn.set(losses=losses, stalls=stalls)
    error_or_none = blame.poison(losses, stalls) or _fruitless(turn)
    if error_or_none is not None:
        turn.end(
            error_or_none, f"generation {generation.number} ended at step {step} and another would not get further"
        )
        return
    _put_out(turn)
    if not _may_save(turn):
        _form(turn)


def _learn_of_older_checkpoint(turn: _Turn, generation: Generation) -> None:
    """A damaged checkpoint is replaced by the one before it; then the members stand at less than was promised."""
    state = turn.state
    if generation.begin.restore is None:
        return
    moved = top(
        member for member in present(state) if (member.position or (0, 0)) > (generation.before[member.id] or (0, 0))
    )
    if moved is not None and state.checkpoint is not None and moved[0] < state.checkpoint:
        turn.say(f"an older checkpoint than that of step {state.checkpoint} was restored")
        turn.set(checkpoint=moved[0], seen=min(state.seen, moved[0]))


def _standing(state: State, generation: Generation) -> int:
    """The step that the generation was in: the one that its living members have to do next."""
    highest = top(present(state))
    return max(state.seen, generation.steps) if highest is None else max(highest[0], generation.steps)


def _fruitless(turn: _Turn) -> RunFailed | None:
    """Counts the generations without progress; an error when there are too many."""
    state, generation = turn.state, turn.generation()
    highest = top(present(state))
    if highest is not None and highest > state.mark:
        turn.set(mark=highest, fruitless=(0, 0))
    quiet, deadly = turn.state.fruitless
    quiet, deadly = (quiet, deadly + 1) if generation.lost else (quiet + 1, deadly)
    turn.set(fruitless=(quiet, deadly))
    if quiet <= FRUITLESS[0] and deadly <= FRUITLESS[1]:
        return None
    return WorkerLost(
        f"{quiet + deadly} generations in a row got no further than step {turn.state.mark[0]}; "
        f"{deadly} of them lost a member",
        "look at why members lose contact or die: the journal of the run names each",
    )


def _put_out(turn: _Turn) -> None:
    """Of two living members that lost each other a second time, the younger goes."""
    out, quarrels = blame.judge_quarrels(turn.state)
    for member in [turn.state.members[id_] for id_ in out]:
        turn.kill(member, "it lost contact with the same living member twice")
        turn.set_generation(lost=turn.generation().lost + 1)
        turn.say(f"{member.name} goes, because it and an older member lost contact twice")
    turn.set(quarrels=quarrels)


# ---- the next generation


def _form(turn: _Turn) -> None:
    plan = compose(turn.state)
    if turn.state.interrupted is not None and (isinstance(plan, str) or not _worth_saving(turn.state)):
        _interrupted(turn, "there is nothing to save" if isinstance(plan, Begin) else plan)
    elif isinstance(plan, Begin):
        _begin(turn, plan)
    else:
        if turn.state.phase != "paused":
            turn.say(f"paused: {plan}")
        turn.enter("paused")
        _staff(turn)
        _give_up_if_nobody_comes(turn, plan)


def _worth_saving(state: State) -> bool:
    """Whether a living worker is ahead of the newest checkpoint."""
    highest = top(living(state, "worker"))
    return state.terms.stores and highest is not None and highest[0] > (state.checkpoint or 0)


def _give_up_if_nobody_comes(turn: _Turn, why: str) -> None:
    state = turn.state
    late = turn.now - state.since > state.terms.start_timeout_s
    hopeless = state.failures >= FAILURES and all(member.ready is not None for member in state.members.values())
    if late or hopeless:
        error = WorkerLost(
            f"the run cannot go on: {why}" + (f"; {state.trouble}" if state.trouble else ""),
            "resume the run from its last checkpoint when the cluster has room; it waits for cluster.start_timeout_s",
        )
        turn.end(
            error, "nobody else gets ready" if hopeless else f"nobody got ready for {state.terms.start_timeout_s:g} s"
        )


def _begin(turn: _Turn, plan: Begin) -> None:
    state, now = turn.state, turn.now
    workers = [state.members[member] for member in plan.members[: plan.workers]]
    steps = _first_step(state, plan, workers)
    if state.generation is not None:
        _account(turn, plan, workers, steps)
        if turn.state.phase == "ended":
            return
    turn.set(
        facts=plan.facts,
        generation=Generation(
            begin=plan, steps=steps, before={id_: state.members[id_].position for id_ in plan.members}
        ),
    )
    for member in plan.members:
        turn.update(member, report=None, joins=False, pulse=None, heard=now, moved=now)
    turn.enter("running")
    turn.do(plan)
    turn.say(_summary(plan, steps))
    if turn.state.interrupted is not None:
        _ask(turn, "stop", "the run was interrupted")
    _staff(turn)


def _summary(plan: Begin, steps: int) -> str:
    return (
        f"generation {plan.generation} begins at step {steps} with {plan.workers} workers and {plan.servers} servers, "
        f"members {list(plan.members)}, {len(plan.handovers)} hand-overs"
    )


def _first_step(state: State, plan: Begin, workers: list[Member]) -> int:
    if plan.restore is not None:
        return state.checkpoint or 0
    highest = top(workers)
    return 0 if highest is None else highest[0]


def _account(turn: _Turn, plan: Begin, workers: list[Member], steps: int) -> None:
    """What the new generation makes good: a loss, the loss of all state, a joiner; said when its first step is done."""
    state = turn.state
    lost = max(0, state.seen - steps)
    restarted = plan.restore is not None or top(workers) is None or lost > 1
    open_ones = [
        replace(recovery, kind="restarted" if restarted else recovery.kind, steps_lost=max(lost, recovery.steps_lost))
        if recovery.kind != "joined"
        else recovery
        for recovery in state.recoveries
    ]
    joiners = [state.members[id_] for id_ in plan.members if state.members[id_].joins]
    if joiners and not any(recovery.kind == "joined" for recovery in open_ones):
        since = min(member.ready for member in joiners if member.ready is not None)
        open_ones.append(Recovery(kind="joined", since=since))
    turn.set(recoveries=tuple(open_ones))
    if any(state.members[id_].position is None for id_ in plan.members):
        turn.set(failures=0)
    if restarted:
        _restart(turn, steps, lost)


def _restart(turn: _Turn, steps: int, lost: int) -> None:
    restarts = turn.state.restarts + 1
    turn.set(seen=steps, mark=(steps, 1) if steps else (0, 0), restarts=restarts)
    turn.say(f"all living state is lost, and with it {lost} steps; the run goes on from step {steps}")
    if restarts > RESTARTS:
        error = WorkerLost(
            f"all state was lost {restarts} times without getting further than step {turn.state.best}",
            "look at what ends the workers; more workers, or a shorter checkpoint.every, lose less",
        )
        turn.end(error, f"{restarts} restarts without progress")


def _ask(turn: _Turn, what: Any, why: str) -> None:
    """Ask once per generation; any member that has not reported can bring it to the vote."""
    turn.say(why)
    if turn.state.phase != "running" or what in turn.generation().asked:
        return
    askable = [member for member in waiting(turn.state) if member.role == "worker"]
    if askable:
        turn.set_generation(asked=turn.generation().asked | {what})
        turn.do(Ask(askable[0].id, what))


# ---- progress


def _stepped(turn: _Turn, event: Stepped) -> None:
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
            _emit_recoveries(turn)


def _emit_recoveries(turn: _Turn) -> None:
    for recovery in turn.state.recoveries:
        seconds = turn.now - recovery.since
        turn.do(Recovered(recovery.kind, seconds, recovery.steps_lost))
        turn.say(f"{recovery.kind}: {seconds:.2f} s to the next step, {recovery.steps_lost} steps lost")
    turn.set(recoveries=())


def _pulse(turn: _Turn, event: Pulse) -> None:
    member = turn.state.members.get(event.member)
    if member is None:
        return
    old = member.pulse
    same = old is not None and (old.place, old.beats) == (event.place, event.beats)
    turn.update(member.id, pulse=event, heard=turn.now, moved=member.moved if same else turn.now)


# ---- stopping


def _interrupt(turn: _Turn, event: Interrupt) -> None:
    state = turn.state
    if event.urgent:
        turn.set(interrupted=(turn.now, event.signal))
        _interrupted(turn, "at once, as asked")
        return
    if state.interrupted is not None:
        return
    turn.set(interrupted=(turn.now, event.signal))
    if state.phase == "preparing":
        _interrupted(turn, "the run had not begun")
    elif state.phase == "paused":
        _form(turn)
    else:
        _ask(turn, "stop", f"{event.signal}: the members are to stop after their step")


def _may_save(turn: _Turn) -> bool:
    """After a voted stop of an interrupted run nothing begins any more; its checkpoint may still be on its way."""
    state = turn.state
    stopped = all(isinstance(member.report, Left) and member.report.why == "stop" for member in present(state))
    if state.interrupted is None or not stopped or not present(state) or turn.generation().lost:
        return False
    turn.enter("saving")
    if not _worth_saving(state):
        _interrupted(turn, "all that was to be saved is saved")
    return True


def _saved(turn: _Turn, event: Saved) -> None:
    turn.set(checkpoint=event.step)
    if turn.state.phase == "saving" and not _worth_saving(turn.state):
        _interrupted(turn, f"the checkpoint of step {event.step} is saved")


def _interrupted(turn: _Turn, reason: str) -> None:
    assert turn.state.interrupted is not None
    signal, checkpoint = turn.state.interrupted[1], turn.state.checkpoint
    kept = "" if checkpoint is None else f"; the newest checkpoint holds {checkpoint} steps"
    turn.end(Interrupted(f"interrupted by {signal}{kept}"), f"{signal}: {reason}")


# ---- time


def _tick(turn: _Turn, _: Tick) -> None:
    _forgive_own_pause(turn)
    for watch in (_watch_start, _watch_joiners, _watch_members, _watch_withdrawal, _watch_stop, _watch_pause):
        if turn.state.phase != "ended":
            watch(turn)
    if turn.state.retry is not None and turn.state.phase != "ended":
        _staff(turn)


def _forgive_own_pause(turn: _Turn) -> None:
    """Who did not listen cannot say that nobody spoke: a long time between two ticks counts as `LISTEN_S`."""
    pause = turn.now - turn.state.listened - LISTEN_S
    turn.set(listened=turn.now)
    if pause > 0:
        for member in turn.state.members.values():
            turn.update(member.id, heard=min(turn.now, member.heard + pause), moved=min(turn.now, member.moved + pause))


def _watch_start(turn: _Turn) -> None:
    state = turn.state
    if state.phase != "preparing" or turn.now - state.started <= state.terms.start_timeout_s:
        return
    late = [member.name for member in state.members.values() if member.ready is None]
    plan = compose(state)
    what = f"{', '.join(late)} not ready" if late else str(plan)
    error = ClusterUnavailable(
        f"{what} after {state.terms.start_timeout_s:g} s", "raise cluster.start_timeout_s, or ask for less"
    )
    turn.end(error, "the start took too long")


def _watch_joiners(turn: _Turn) -> None:
    if turn.state.phase == "preparing":
        return
    limit = turn.state.terms.start_timeout_s
    for member in list(turn.state.members.values()):
        if member.ready is None and turn.now - member.asked > limit:
            turn.kill(member, f"it was not ready after {limit:g} s")
            _came_to_nothing(turn, f"{member.name} was not ready after {limit:g} s")


def _watch_members(turn: _Turn) -> None:
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


def _watch_withdrawal(turn: _Turn) -> None:
    generation = turn.state.generation
    if generation is None or generation.withdrawn is None or not _awaits_cause(turn.state):
        return
    since, text = generation.withdrawn
    if turn.now - since > GRACE_S:
        turn.end(RunFailed(text), f"no member named the cause within {GRACE_S:g} s")


def _watch_stop(turn: _Turn) -> None:
    state = turn.state
    if state.interrupted is None or state.phase not in ("regrouping", "saving"):
        return
    if turn.now - max(state.since, state.interrupted[0]) > SAVE_S:
        _interrupted(turn, f"{SAVE_S:g} s have passed in phase {state.phase}")


def _watch_pause(turn: _Turn) -> None:
    if turn.state.phase == "paused":
        _form(turn)


_HANDLERS: dict[type[Event], Callable[[_Turn, Any], None]] = {
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
