"""The end of a generation: when it is over, what is judged then, and whether the run is over with it.

It is over when every member has reported or is gone (rule C2). Then come, in this order: the assertion that no two
replicas are more than a step apart (rule D1), poisonous micro-batches (rule D3), the bounds on going round without a
step, and pairs that lost each other (rule C5). What is left goes on in `forming`.
"""

from __future__ import annotations

from orchestrator.control import blame
from orchestrator.control.events import Finished, Left, Recovered
from orchestrator.control.forming import end_interrupted, form, worth_saving
from orchestrator.control.membership import Generation, Member, State, present, skew, top, waiting
from orchestrator.control.turn import Turn
from orchestrator.errors import Inconsistent, RunFailed, WorkerLost

FRUITLESS = (10, 25)  # generations without a committed step: such that lost nobody, and such that lost a member


def settle(turn: Turn) -> None:
    """After a report or a loss: the generation may be over, and with it the run."""
    here = present(turn.state)
    workers = [member for member in here if member.role == "worker"]
    if workers and all(isinstance(member.report, Finished) for member in workers):
        _finish(turn, workers)
    elif not waiting(turn.state) and not awaits_cause(turn.state):
        turn.enter("regrouping")
        _regroup(turn)


def awaits_cause(state: State) -> bool:
    """Somebody withdrew because of a failure that nobody has told yet; a loss would explain it."""
    generation = state.generation
    return generation is not None and generation.withdrawn is not None and not generation.lost


def _finish(turn: Turn, workers: list[Member]) -> None:
    digests = {str(member.report.digest) for member in workers if isinstance(member.report, Finished)}
    if len(digests) > 1:
        turn.end(Inconsistent(f"the workers ended with different parameters: {sorted(digests)}"), "the digests differ")
        return
    emit_recoveries(turn)
    turn.end(None, f"all steps are done by all {len(workers)} living workers")


def emit_recoveries(turn: Turn) -> None:
    for recovery in turn.state.recoveries:
        seconds = turn.now - recovery.since
        turn.do(Recovered(recovery.kind, seconds, recovery.steps_lost))
        turn.say(f"{recovery.kind}: {seconds:.2f} s to the next step, {recovery.steps_lost} steps lost")
    turn.set(recoveries=())


def _regroup(turn: Turn) -> None:
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
        form(turn)


def _learn_of_older_checkpoint(turn: Turn, generation: Generation) -> None:
    """A damaged checkpoint is replaced by the one before it; then the members stand at less than was promised.

    One that was saved since is good, even when all who got so far are lost.
    """
    state = turn.state
    if generation.begin.restore is None or state.checkpoint != generation.steps:
        return
    moved = top(
        member for member in present(state) if (member.position or (0, 0)) > (generation.before[member.id] or (0, 0))
    )
    if moved is not None and moved[0] < generation.steps:
        turn.say(f"an older checkpoint than that of step {generation.steps} was restored")
        turn.set(checkpoint=moved[0], seen=min(state.seen, moved[0]))


def _standing(state: State, generation: Generation) -> int:
    """The step that the generation was in: the one that its living members have to do next, or where its dead were."""
    highest = top(present(state))
    reached = state.seen if highest is None else highest[0]
    computed = [micro_batch[0] for micro_batch in map(blame.computing, generation.fallen) if micro_batch is not None]
    return max([reached, generation.steps, *computed])


def _fruitless(turn: Turn) -> RunFailed | None:
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


def _put_out(turn: Turn) -> None:
    """Of two living members that lost each other a second time, the younger goes."""
    out, quarrels = blame.judge_quarrels(turn.state)
    for member in [turn.state.members[id_] for id_ in out]:
        turn.kill(member, "it lost contact with the same living member twice")
        turn.set_generation(lost=turn.generation().lost + 1)
        turn.say(f"{member.name} goes, because it and an older member lost contact twice")
    turn.set(quarrels=quarrels)


def _may_save(turn: Turn) -> bool:
    """After a voted stop of an interrupted run nothing begins any more; its checkpoint may still be on its way."""
    state = turn.state
    stopped = all(isinstance(member.report, Left) and member.report.why == "stop" for member in present(state))
    if state.interrupted is None or not stopped or not present(state) or turn.generation().lost:
        return False
    turn.enter("saving")
    if not worth_saving(state):
        end_interrupted(turn, "all that was to be saved is saved")
    return True
