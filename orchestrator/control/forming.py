"""What comes after a generation: the next one, a pause until there can be one, or the end.

Who belongs to it is decided in `membership.compose`. Here is what follows: the accounts of what was lost, the pause
below the least number of workers, the restart after the loss of all state, and the end of an interrupted run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.control.events import Ask, Begin
from orchestrator.control.membership import Generation, Member, Recovery, State, compose, living, top, waiting
from orchestrator.control.staffing import FAILURES, staff
from orchestrator.control.turn import Turn
from orchestrator.errors import Interrupted, WorkerLost

RESTARTS = 10  # losses of all state without getting further than before


def form(turn: Turn) -> None:
    plan = compose(turn.state)
    if turn.state.interrupted is not None and (isinstance(plan, str) or not worth_saving(turn.state)):
        end_interrupted(turn, "there is nothing to save" if isinstance(plan, Begin) else plan)
    elif isinstance(plan, Begin):
        begin(turn, plan)
    else:
        if turn.state.phase != "paused":
            turn.say(f"paused: {plan}")
        turn.enter("paused")
        staff(turn)
        _give_up_if_nobody_comes(turn, plan)


def worth_saving(state: State) -> bool:
    """Whether a living worker is ahead of the newest checkpoint."""
    highest = top(living(state, "worker"))
    return state.terms.stores and highest is not None and highest[0] > (state.checkpoint or 0)


def _give_up_if_nobody_comes(turn: Turn, why: str) -> None:
    state = turn.state
    # An order alone is no progress: those who never come would be ordered again and again.
    moving = [each.moved for each in state.members.values() if each.ready is None and each.pulse is not None]
    late = turn.now - max([state.since, *moving]) > state.terms.start_timeout_s
    hopeless = state.failures >= FAILURES and all(member.ready is not None for member in state.members.values())
    if late or hopeless:
        error = WorkerLost(
            f"the run cannot go on: {why}" + (f"; {state.trouble}" if state.trouble else ""),
            "resume the run from its last checkpoint when the cluster has room; it waits for cluster.start_timeout_s",
        )
        turn.end(
            error, "nobody else gets ready" if hopeless else f"nobody got ready for {state.terms.start_timeout_s:g} s"
        )


def begin(turn: Turn, plan: Begin) -> None:
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
        ask(turn, "stop", "the run was interrupted")
    staff(turn)


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


def _account(turn: Turn, plan: Begin, workers: list[Member], steps: int) -> None:
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


def _restart(turn: Turn, steps: int, lost: int) -> None:
    restarts = turn.state.restarts + 1
    turn.set(seen=steps, mark=(steps, 1) if steps else (0, 0), restarts=restarts)
    turn.say(f"all living state is lost, and with it {lost} steps; the run goes on from step {steps}")
    if restarts > RESTARTS:
        error = WorkerLost(
            f"all state was lost {restarts} times without getting further than step {turn.state.best}",
            "look at what ends the workers; more workers, or a shorter checkpoint.every, lose less",
        )
        turn.end(error, f"{restarts} restarts without progress")


def ask(turn: Turn, what: Any, why: str) -> None:
    """Ask once per generation; any member that has not reported can bring it to the vote."""
    turn.say(why)
    if turn.state.phase != "running" or what in turn.generation().asked:
        return
    askable = [member for member in waiting(turn.state) if member.role == "worker"]
    if askable:
        turn.set_generation(asked=turn.generation().asked | {what})
        turn.do(Ask(askable[0].id, what))


def end_interrupted(turn: Turn, reason: str) -> None:
    assert turn.state.interrupted is not None
    signal, checkpoint = turn.state.interrupted[1], turn.state.checkpoint
    kept = "" if checkpoint is None else f"; the newest checkpoint holds {checkpoint} steps"
    turn.end(Interrupted(f"interrupted by {signal}{kept}"), f"{signal}: {reason}")
