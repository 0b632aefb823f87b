"""The end of a generation: when it is over, what is judged then, and whether the run is over with it.

It is over when every member has reported or is gone (rule C2). Then come, in this order: the assertion that no two replicas
are more than a step apart (rule D1), faulty micro-batches (rule D3), the limits on generations without a step, and pairs that
lost each other (rule C5). The rest is done by `formation`.
"""

from __future__ import annotations

from orchestrator.common.control_groups import killer_in_words
from orchestrator.controller import fault_attribution
from orchestrator.controller.decision import Decision
from orchestrator.controller.events import Recovered
from orchestrator.controller.membership import skew
from orchestrator.controller.rendezvous.formation import end_interrupted, form, worth_saving
from orchestrator.controller.rendezvous.scaling import start_failed
from orchestrator.controller.state import ControllerState, GenerationStatus, Member, present, top
from orchestrator.errors import Inconsistent, RunFailed, WorkerLost
from orchestrator.records.progress import passed, steps_of

WITHOUT_PROGRESS = (10, 25)  # generations without a committed step: such that lost nobody, and such that lost a member


def conclude(decision: Decision) -> None:
    """After a report or a loss: the generation may be over, and with it the run."""
    members = decision.state.members
    number = members.count("worker", takes_part=True)
    workers = []
    if number and members.count("worker", takes_part=True, finished=True) == number:
        workers = [member for member in present(decision.state) if member.role == "worker"]
    if workers and _is_whole(decision, workers):
        _finish(decision, workers)
    elif not members.count(takes_part=True, reported=False) and not awaits_cause(decision.state):
        decision.enter("regrouping")
        _regroup(decision)


def _is_whole(decision: Decision, workers: list[Member]) -> bool:
    """Whether every stage of the model has a worker among these."""
    return set(decision.generation().begin.stages) <= {member.stage for member in workers}


def awaits_cause(state: ControllerState) -> bool:
    """Whether a member withdrew because of an error that no member has reported yet; a loss would explain it."""
    generation = state.generation
    return generation is not None and generation.withdrawn is not None and not generation.lost


def _finish(decision: Decision, workers: list[Member]) -> None:
    digests = {str(member.report.digest) for member in workers if member.report is not None}
    if len(digests) > 1:
        decision.end(
            Inconsistent(f"the workers ended with different parameters: {sorted(digests)}", code="replica.other-end"),
            "the digests differ",
        )
        return
    emit_recoveries(decision)
    decision.end(None, f"all steps are done by all {len(workers)} living workers")


def emit_recoveries(decision: Decision) -> None:
    for recovery in decision.state.recoveries:
        seconds = decision.now - recovery.since
        decision.do(Recovered(recovery.kind, seconds, recovery.steps_lost, recovery.why))
        because = f", because {recovery.why}" if recovery.why else ""
        decision.say(f"{recovery.kind}: {seconds:.2f} s to the next step, {recovery.steps_lost} steps lost{because}")
    decision.set(recoveries=())


def _regroup(decision: Decision) -> None:
    """Every member of the generation has reported or is gone: judge what happened, then form the next one."""
    apart = skew(decision.state)
    if apart:
        error = Inconsistent(
            f"replicas are more than one step apart: {apart}", "this is a fault of orchestrator", code="replica.apart"
        )
        decision.end(error, "the skew is more than one step")
        return
    generation = decision.generation()
    step = _standing(decision.state, generation)
    losses, stalls = fault_attribution.suspect(decision.state, step)
    decision.set(losses=losses, stalls=stalls)
    staged, oom_kills = decision.state.requirements.members.stages > 1, decision.state.oom_kills
    at_fault = fault_attribution.faulty_micro_batch(losses, stalls, staged=staged, oom_kills=oom_kills)
    error_or_none = at_fault or _without_progress(decision)
    if error_or_none is not None:
        decision.end(
            error_or_none, f"generation {generation.number} ended at step {step} and another would not get further"
        )
        return
    _put_out(decision)
    if not _may_save(decision):
        form(decision)


def _standing(state: ControllerState, generation: GenerationStatus) -> int:
    """The step that the generation was in: the one that its living members have to do next, or where its dead were."""
    highest = top(present(state))
    committed = state.steps_seen if highest is None else highest.steps
    computed = [
        micro_batch[0]
        for micro_batch in map(fault_attribution.computing, generation.lost_members)
        if micro_batch is not None
    ]
    return max([committed, generation.steps, *computed])


_APART = "their hosts do not reach each other, or a firewall stands before the ports on which workers listen"
_JOURNAL = "look at why members lose contact or die: the journal of the run names each"


def _without_progress(decision: Decision) -> RunFailed | None:
    """Counts the generations without progress; an error when there are too many."""
    state, generation = decision.state, decision.generation()
    highest = top(present(state))
    if passed(highest, state.mark):
        decision.set(mark=highest, without_progress=(0, 0))
    quiet, deadly = decision.state.without_progress
    quiet, deadly = (quiet, deadly + 1) if generation.lost else (quiet + 1, deadly)
    decision.set(without_progress=(quiet, deadly))
    if quiet <= WITHOUT_PROGRESS[0] and deadly <= WITHOUT_PROGRESS[1]:
        return None
    return WorkerLost(
        f"{quiet + deadly} generations in a row got no further than step {steps_of(decision.state.mark)}; "
        f"{deadly} of them lost a member",
        f"{killer_in_words(state.oom_kills)}, or {_JOURNAL}" if state.oom_kills else _JOURNAL,
        code="worker.losses-in-a-row",
    )


def _put_out(decision: Decision) -> None:
    """End the younger of two living members that have lost contact a second time. One that came, and whom another has never
    reached, counts as a failed start: others would come to the same place, and each costs the time of waiting for it."""
    out, link_failures = fault_attribution.judge_link_failures(decision.state)
    for member, other in [(decision.state.members[id_], decision.state.members[lost]) for id_, lost in out.items()]:
        apart = f": {_APART}" if member.node != other.node else ""
        decision.kill(member, f"it and {other.name} lost contact twice, though both live{apart}")
        decision.set_generation(lost=decision.generation().lost + 1)
        why = f"{member.name} is put out of the run: it and {other.name} lost contact twice"
        if decision.generation().before[member.id] is None and decision.state.steps_seen:
            start_failed(decision, member.id, why)
        else:
            decision.say(why)
    decision.set(link_failures=link_failures)


def _may_save(decision: Decision) -> bool:
    """Whether an interrupted run only waits for its checkpoint: after a voted stop no generation begins any more."""
    state = decision.state
    stopped = all(member.report is not None and member.report.kind == "stop" for member in present(state))
    if state.interrupted is None or not stopped or not present(state) or decision.generation().lost:
        return False
    decision.enter("saving")
    if not worth_saving(state):
        end_interrupted(decision, "all that was to be saved is saved")
    return True
