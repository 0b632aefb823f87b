"""The successor of a generation: the next one, a pause until there can be one, or the end.

`membership.compose` decides the members of the next one. This module does the rest: it accounts for what was lost, pauses
below the least number of workers, restarts after the loss of all state, and ends an interrupted run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from orchestrator.controller import fault_attribution
from orchestrator.controller.decision import Decision
from orchestrator.controller.events import Ask, BecomeSpare, Begin
from orchestrator.controller.membership import compose, lost_shards, why_back
from orchestrator.controller.rendezvous import card_failures
from orchestrator.controller.rendezvous.scaling import FAILURES, start_missing
from orchestrator.controller.sites import away
from orchestrator.controller.state import ControllerState, GenerationStatus, Member, Recovery, living, top, waiting
from orchestrator.errors import Interrupted, WorkerLost
from orchestrator.records.progress import Progress, advances_of, steps_of

RESTARTS = 10  # losses of all state without getting further than before


def form(decision: Decision) -> None:
    plan = compose(decision.state)
    interrupted = decision.state.interrupted is not None
    if interrupted and (isinstance(plan, str) or plan.forgets or not worth_saving(decision.state)):
        end_interrupted(decision, "there is nothing to save" if isinstance(plan, Begin) else plan)
    elif isinstance(plan, Begin):
        begin(decision, plan)
    else:
        if decision.state.phase != "paused":
            decision.say(f"paused: {plan}")
        decision.enter("paused")
        _make_room(decision)
        start_missing(decision)
        _give_up_if_nobody_comes(decision, plan)


def _make_room(decision: Decision) -> None:
    """If a stage has no worker, none comes and there is no room for one: end the youngest worker of the stage that most host,
    so that a new one takes its place. At most one at each retry, since a place is not free at once."""
    state = decision.state
    if state.requirements.members.stages == 1 or state.interrupted or state.retry is None or decision.now < state.retry:
        return
    workers = living(state, "worker")
    hosted = Counter(member.stage for member in workers)
    empty = [stage for stage in range(state.requirements.members.stages) if not hosted[stage]]
    if not workers or not empty or hosted[None]:
        return
    stage, number = max(hosted.items(), key=lambda item: (item[1], item[0] or 0))
    if number > 1:
        youngest = max((member for member in workers if member.stage == stage), key=lambda member: member.id)
        why = f"stage {empty[0]} has no worker, and there is room for one only in the place of another"
        decision.kill(youngest, why)
        decision.set(since=decision.now)  # the new one has its time to start
        decision.say(f"{youngest.name} of stage {stage} is ended: {why}")


def worth_saving(state: ControllerState) -> bool:
    """Whether a living worker is ahead of the newest checkpoint."""
    return state.requirements.stores and steps_of(top(living(state, "worker"))) > (state.checkpoint or 0)


def _give_up_if_nobody_comes(decision: Decision, why: str) -> None:
    state = decision.state
    # To order a start is no progress: members that never start would be ordered again and again.
    moving = [each.moved for each in state.members.values() if each.ready is None and each.heartbeat is not None]
    late = decision.now - max([state.since, *moving]) > state.requirements.timeouts.start_s
    hopeless = state.failures >= FAILURES and all(member.ready is not None for member in state.members.values())
    if late and state.retry is not None and card_failures.ends_without_cards(decision):
        return
    if late or hopeless:
        error = WorkerLost(
            f"the run cannot go on: {why}" + (f"; {state.trouble}" if state.trouble else ""),
            "resume the run from its last checkpoint when the cluster has room; it waits for cluster.start_timeout_s",
            code="worker.nobody-comes",
        )
        decision.end(
            error,
            "nobody else gets ready" if hopeless else f"nobody got ready for {state.requirements.timeouts.start_s:g} s",
        )


def begin(decision: Decision, plan: Begin) -> None:
    state, now = decision.state, decision.now
    workers = [state.members[member] for member in plan.members[: plan.workers]]
    steps = _first_step(state, plan, workers)
    missing = lost_shards(state, workers)
    if missing:
        shards = f"shard{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        back = f"all members go back to step {steps}"
        follows = f"it goes on with what shard {plan.fallbacks[0][1]} keeps" if plan.fallbacks else back
        decision.say(f"what {shards} had kept is lost with its only holder, so {follows}")
    if back := why_back(state, plan):
        decision.say(f"{back}, so all members go back to step {steps}")
    if plan.absent:
        missing_sites = away(state.requirements.sites, [worker.sites for worker in workers])
        decision.say(
            f"{', '.join(missing_sites)} away: shards {', '.join(map(str, plan.absent))} sit out until they are back"
        )
    if state.generation is not None:
        _account(decision, plan, workers, steps)
        if decision.state.phase == "ended":
            return
    advances = advances_of(top(workers))
    decision.set(
        run_manifest=plan.run_manifest,
        fallbacks=(
            *((base, pair) for base, pair in state.fallbacks if base < advances and plan.restore is None),
            *((advances, pair) for pair in plan.all_fallbacks),
        ),
        generation=GenerationStatus(
            begin=plan, steps=steps, before={id_: state.members[id_].progress for id_ in plan.members}
        ),
    )
    taking_part = set(plan.members)
    for member in state.members.values():
        if member.rank is not None and member.id not in taking_part:
            decision.update(member.id, rank=None)
    fresh: dict[str, Any] = {"report": None, "joins": False, "holds_sum": False, "heartbeat": None}
    for rank, id_ in enumerate(plan.members):
        stage = plan.stages[rank] if plan.stages else None
        decision.update(id_, rank=rank, stage=stage, heard=now, moved=now, **fresh)
    decision.set(all_heard=now)
    decision.enter("running")
    decision.do(plan)
    for worker in living(decision.state, "worker"):
        if worker.ready is not None and worker.rank is None:
            become_spare(decision, worker)
    decision.say(_summary(plan, steps))
    if decision.state.interrupted is not None:
        ask(decision, "stop", "the run was interrupted")
    start_missing(decision)


def become_spare(decision: Decision, worker: Member) -> None:
    """One that is ready and has no place. If every worker has the whole model, a spare has it too."""
    if decision.state.requirements.members.stages > 1 and worker.stage is None:
        decision.do(BecomeSpare(worker.id))


def _summary(plan: Begin, steps: int) -> str:
    return (
        f"generation {plan.generation} begins at step {steps} with {plan.workers} workers and {plan.servers} servers, "
        f"members {list(plan.members)}, {len(plan.state_transfers)} state transfers"
    )


def _first_step(state: ControllerState, plan: Begin, workers: list[Member]) -> int:
    if plan.restore is not None:
        return state.checkpoint or 0
    return steps_of(top(workers))


def _account(decision: Decision, plan: Begin, workers: list[Member], steps: int) -> None:
    """Note the recoveries that the new generation completes: a loss, the loss of all state, a joiner. They are reported
    when its first step is done."""
    state = decision.state
    redone = plan.fallbacks or state.requirements.supersedes  # what is done again is done differently
    lost = max(0, state.steps_seen - steps, _given_up(state, steps) if redone else 0)
    restarted = plan.restore is not None or top(workers) is None or (lost > 1 and not redone)
    why = why_back(state, plan)
    open_ones = [
        replace(
            recovery,
            kind="restarted" if restarted else recovery.kind,
            steps_lost=max(lost, recovery.steps_lost),
            why=why or recovery.why,
        )
        if recovery.kind != "joined"
        else recovery
        for recovery in state.recoveries
    ]
    joiners = [state.members[id_] for id_ in plan.members if state.members[id_].joins]
    if joiners and not any(recovery.kind == "joined" for recovery in open_ones):
        since = min(member.ready for member in joiners if member.ready is not None)
        open_ones.append(Recovery(kind="joined", since=since))
    decision.set(recoveries=tuple(open_ones))
    if redone:
        decision.set(steps_seen=min(state.steps_seen, steps))
    if restarted:
        _restart(decision, steps, lost, forgets=plan.forgets)


def _given_up(state: ControllerState, steps: int) -> int:
    """How many steps the members are beyond their last sync barrier, as far as their dead tell by what they were computing. A
    shard that runs free may be far ahead of the run; what it did before the rest is in the parameters of all."""
    dead = () if state.generation is None else state.generation.lost_members
    computed = [micro_batch for micro_batch in map(fault_attribution.computing, dead) if micro_batch is not None]
    at_barrier = [state.clocks[shard] if shard < len(state.clocks) else steps for _, shard in computed]
    return max((step - before for (step, _), before in zip(computed, at_barrier, strict=True)), default=0)


def _restart(decision: Decision, steps: int, lost: int, *, forgets: bool) -> None:
    restarts = decision.state.restarts + 1
    decision.set(steps_seen=steps, mark=Progress(steps) if steps else None, restarts=restarts)
    what = "all living state is" if not forgets else "what was done since is"
    decision.say(f"{what} lost, and with it {lost} steps; the run goes on from step {steps}")
    if restarts > RESTARTS:
        error = WorkerLost(
            f"all state was lost {restarts} times without getting further than step {decision.state.best}",
            "look at what ends the workers; more workers, or a shorter checkpoint.every, lose less",
            code="worker.state-lost",
        )
        decision.end(error, f"{restarts} restarts without progress")


def go_back_further(decision: Decision, steps: int) -> None:
    """The present generation has begun with an older checkpoint than was promised: the steps between the two are lost, too."""
    state, generation = decision.state, decision.state.generation
    if generation is None or generation.begin.restore is None or steps >= generation.steps:
        return
    further = generation.steps - steps
    decision.say(
        f"no checkpoint of step {generation.steps} can be used, and with it {further} more steps are lost; "
        f"the run goes on from step {steps}"
    )
    decision.set_generation(steps=steps)
    decision.set(
        steps_seen=min(state.steps_seen, steps),
        mark=Progress(steps) if steps else None,
        recoveries=tuple(
            replace(recovery, steps_lost=recovery.steps_lost + further) if recovery.kind == "restarted" else recovery
            for recovery in state.recoveries
        ),
    )


def ask(decision: Decision, what: Any, why: str) -> None:
    """Have a member request this, once per generation; any member that has not reported can bring it to the vote."""
    decision.say(why)
    if decision.state.phase != "running" or what in decision.generation().asked:
        return
    askable = [member for member in waiting(decision.state) if member.role == "worker"]
    if askable:
        decision.set_generation(asked=decision.generation().asked | {what})
        decision.do(Ask(askable[0].id, what))


def end_interrupted(decision: Decision, reason: str) -> None:
    assert decision.state.interrupted is not None
    signal, checkpoint = decision.state.interrupted[1], decision.state.checkpoint
    kept = "" if checkpoint is None else f"; the newest checkpoint holds {checkpoint} steps"
    decision.end(Interrupted(f"interrupted by {signal}{kept}", code="run.stopped"), f"{signal}: {reason}")
