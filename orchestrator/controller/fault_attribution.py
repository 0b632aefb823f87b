"""Attribution of faults: which member is stuck, which pairs have lost contact, which micro-batch costs workers (rules C5 and
D3). Pure.

A member that waits for others is never to blame; the stuck one is. A member that has been called off and goes on waiting is
stuck too: it waits for its GPU or a device. A card tells late. So if a member stood still there, all its micro-batches of the
step are inferred.

The last activity of a worker that died is certain if its machine lives. For any other only the last heartbeat is known, which
may be older than its death. So a micro-batch is named in one of two ways:

    seen       it is certain that the worker was computing it, or the heartbeat says so for the step in which the generation
               stood, or for a later one
    inferred   the heartbeat tells nothing of that step: every shard that the worker hosted there is as likely

Losses while a worker waited, updated, evaluated, saved or took over a state count against no micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from orchestrator.common.control_groups import killer_in_words
from orchestrator.controller.events import Heartbeat
from orchestrator.controller.state import ControllerState, GenerationStatus, LostMember, Member, present, waiting
from orchestrator.errors import RunFailed, Stalled, WorkerLost

LOSSES = 3
STALLS = 2
STOP_S = 30.0  # how long a run that is to stop waits for a member that says nothing at all
_WAITS = ("exchange", "state_transfer", "idle", "prepare")
_QUIET_S = 4.0  # twice the time between two heartbeats of a member
_AMONG_OTHERS = ("exchange", "state_transfer")
_PAST_COMPUTING = ("exchange", "update", "evaluate", "checkpoint")

Pair = frozenset[int]
Suspicions = Mapping[tuple[int, int, int], tuple[bool, ...]]  # (step, shard, stage): of each loss, whether it was seen


def stuck(state: ControllerState, now: float) -> list[tuple[LostMember, str]]:
    """Members of the present generation that stand still, each with the reason; those that wait for others do not."""
    limit, silence = state.requirements.timeouts.step_s, silence_s(state)
    found = []
    for member in waiting(state):
        still, silent = now - member.moved, now - member.heard
        if silent > silence:
            found.append(
                (
                    LostMember(member=member, how="silent"),
                    f"did not answer for {silent:.1f} s, the limit is {silence:g} s{_of_card(member)}",
                )
            )
        elif still > limit and member.heartbeat is not None and _holds_up(state, member.heartbeat, now):
            stood = f"stood still for {still:.1f} s {where(member.heartbeat)}"
            why = f"{stood}, the limit is {limit:g} s{_of_card(member)}"
            found.append((LostMember(member=member, how="stalled"), why))
    return found


def silence_s(state: ControllerState) -> float:
    """How long a member may say nothing. One that computes, however long, has heartbeats."""
    limit = state.requirements.timeouts.step_s
    return limit if state.interrupted is None else min(limit, STOP_S)


def holds_up_stop(state: ControllerState, now: float) -> str:
    """In words, for whom a run waits that is to stop."""
    found = []
    for member in waiting(state):
        silent = now - member.heard
        beat = "" if member.heartbeat is None else where(member.heartbeat)
        found.append(f"{member.name} ({f'silent for {silent:.0f} s' if silent > _QUIET_S else beat or 'beginning'})")
    return ", ".join(found) or "the checkpoint"


def all_wait(state: ControllerState, now: float) -> bool:
    """Whether all who are left of a generation on GPUs wait for others for longer than any of them may: some wait for their
    cards instead, and whoever does not will leave when it is called off."""
    limit = state.requirements.timeouts.step_s + state.requirements.timeouts.deadline_s
    members = waiting(state)
    still = (
        member.heartbeat is not None and member.heartbeat.activity in _AMONG_OTHERS and now - member.moved > limit
        for member in members
    )
    return _called_off(state) is None and any(member.card for member in members) and all(still)


def _holds_up(state: ControllerState, heartbeat: Heartbeat, now: float) -> bool:
    """Whether a member that stands still here waits for nobody."""
    if heartbeat.activity not in _WAITS:
        return True
    # A member that waits for others looks every moment whether it was called off.
    since = _called_off(state)
    limit = state.requirements.timeouts.step_s
    return since is not None and heartbeat.activity in _AMONG_OTHERS and now - since > limit


def _called_off(state: ControllerState) -> float | None:
    """When the present generation was called off; None where it was not."""
    return None if state.generation is None else state.generation.called_off


def _of_card(member: Member) -> str:
    return f"; a kernel on its GPU {member.card} may not end" if member.card else ""


def where(heartbeat: Heartbeat) -> str:
    """The heartbeat in words, to follow a verb."""
    step = "" if heartbeat.step is None else f" of step {heartbeat.step}"
    shard = "" if heartbeat.shard is None else f", shard {heartbeat.shard}"
    return f"in the {heartbeat.activity} phase{step}{shard}"


def accusations(state: ControllerState) -> list[tuple[Member, int]]:
    """Each accuser of the present generation with the id of whom it lost contact with."""
    assert state.generation is not None
    return [
        (member, state.generation.begin.members[member.report.accuses])
        for member in present(state)
        if member.report is not None and member.report.accuses is not None
    ]


def silent(state: ControllerState, now: float) -> list[tuple[LostMember, str]]:
    """Members that somebody accuses and that nobody hears."""
    accusers = {accused: member.name for member, accused in accusations(state)}
    return [
        (
            LostMember(member=member, how="died"),
            f"was accused by {accusers[member.id]} and did not answer for {now - member.heard:.1f} s",
        )
        for member in waiting(state)
        if member.id in accusers and now - member.heard > state.requirements.timeouts.unreachable_s
    ]


def judge_link_failures(state: ControllerState) -> tuple[dict[int, int], frozenset[Pair]]:
    """The members to put out of the run, each with one that it has lost, and the pairs of the living that have now lost each
    other once.

    The same pair twice: one has to go. A member that alone has what its stage has learned stays, if the other has not. The
    member in most such pairs goes first, and the younger one of two in as many.

    A member that leaves says farewell, but a farewell can be missed, and then another accuses one that has only left. So an
    accusation counts where nothing else explains why anybody left: then some broken connection was the first cause. Two that
    accuse each other always count, for each was there until it lost the other.
    """
    accused_pairs = {(member.id, accused) for member, accused in accusations(state) if accused in state.members}
    if _has_another_cause(state):
        accused_pairs = {
            (accuser, accused) for accuser, accused in accused_pairs if (accused, accuser) in accused_pairs
        }
    new = {frozenset(pair) for pair in accused_pairs}
    repeated = {pair for pair in new if pair in state.link_failures}
    out: dict[int, int] = {}
    while repeated:
        number = Counter(member for pair in repeated for member in pair)
        spare = [member for member in number if not _is_last(state, member, out)] or number
        worst = max(spare, key=lambda member: (number[member], member))
        out[worst] = min(member for pair in repeated if worst in pair for member in pair if member != worst)
        repeated = {pair for pair in repeated if worst not in pair}
    known = state.link_failures | new
    return out, frozenset(pair for pair in known if not pair & out.keys() and pair <= state.members.keys())


def _is_last(state: ControllerState, member: int, out: Collection[int]) -> bool:
    """Whether nobody else of its stage has its parameters. out: who is about to go."""
    stage = state.members[member].stage
    if stage is None:
        return False
    others = (each for each in state.members.values() if each.id != member and each.id not in out)
    return not any(each.stage == stage and each.progress is not None for each in others)


def _has_another_cause(state: ControllerState) -> bool:
    """Whether the generation would have ended without any accusation: by a loss, a vote, a fault or its last step."""
    assert state.generation is not None
    reports = [member.report for member in present(state)]
    return state.generation.lost > 0 or any(
        report is None or report.kind not in ("peer", "called off") for report in reports
    )


def suspect(state: ControllerState, step: int) -> tuple[Suspicions, Suspicions]:
    """The losses and the time-outs with those of the present generation; step: the one in which it stood."""
    generation = state.generation
    assert generation is not None
    losses = {micro_batch: hits for micro_batch, hits in state.losses.items() if micro_batch[0] >= step}
    stalls = {micro_batch: hits for micro_batch, hits in state.stalls.items() if micro_batch[0] >= step}
    for lost_member in generation.lost_members:
        if lost_member.how in ("wrong", "card"):
            continue
        counted = losses if lost_member.how == "died" else stalls
        micro_batches, seen = _suspects(generation, lost_member, step)
        for at, shard in micro_batches:
            place = (at, shard, lost_member.member.stage or 0)
            counted[place] = (*counted.get(place, ()), seen)
    return losses, stalls


def computing(lost_member: LostMember) -> tuple[int, int] | None:
    """The micro-batch that this member was computing when it died; None where it did something else, or that is not certain."""
    heartbeat = lost_member.member.heartbeat
    if (
        not lost_member.certain
        or heartbeat is None
        or heartbeat.activity != "compute"
        or heartbeat.step is None
        or heartbeat.shard is None
    ):
        return None
    return heartbeat.step, heartbeat.shard


def _suspects(generation: GenerationStatus, lost_member: LostMember, step: int) -> tuple[list[tuple[int, int]], bool]:
    """The micro-batches that may have cost this member, and whether it was seen computing one."""
    rank, heartbeat = lost_member.member.rank, lost_member.member.heartbeat
    assert rank is not None, "who is lost took part"
    if lost_member.member.role == "server":
        return [], True
    if lost_member.certain:
        computed = computing(lost_member)
        return [] if computed is None else [computed], True
    if heartbeat is not None:
        at = heartbeat.step if heartbeat.step is not None else -1
        fresh = lost_member.how == "stalled" or at >= step
        if lost_member.how == "stalled" and lost_member.member.card and heartbeat.activity == "compute":
            return [(at, shard) for shard in generation.begin.shards[rank]], False
        if fresh and heartbeat.activity == "compute" and heartbeat.shard is not None:
            return [(at, heartbeat.shard)], True
        if heartbeat.activity == "state_transfer" or (fresh and heartbeat.activity in _PAST_COMPUTING):
            return [], True
    return [(step, shard) for shard in generation.begin.shards[rank]], False


_LOOK = "look at the samples of this micro-batch, and at what the pipeline does with them"


def faulty_micro_batch(
    losses: Suspicions, stalls: Suspicions, *, staged: bool = False, oom_kills: int | None = None
) -> RunFailed | None:
    """The error of a run that cannot go on because of one micro-batch; None while there is none. staged: the model is cut into
    stages, and the one is named. oom_kills: as of `Died`."""
    for suspicions, limit, kind in ((losses, LOSSES, WorkerLost), (stalls, STALLS, Stalled)):
        at_fault = sorted(micro_batch for micro_batch, hits in suspicions.items() if _is_at_fault(hits, limit))
        if at_fault:
            step, stage = at_fault[0][0], at_fault[0][2]
            shards = [shard for at, shard, of in at_fault if (at, of) == (step, stage)]
            count = max(len(suspicions[step, shard, stage]) for shard in shards)
            which = f"{_shards(shards)}{f' of stage {stage}' * staged}"
            where = f"step {step}, {which}: {count} workers in a row"
            if kind is WorkerLost:
                remedy = f"{killer_in_words(oom_kills)}, or {_LOOK}" if oom_kills else _LOOK
                return WorkerLost(f"{where} were lost while they computed it", remedy, code="worker.lost-computing")
            return Stalled(f"{where} stood still while they computed it", _LOOK, code="worker.stalled-computing")
    return None


def _is_at_fault(hits: Iterable[bool], limit: int) -> bool:
    hits = list(hits)
    return sum(hits) >= limit or len(hits) > limit


def _shards(shards: list[int]) -> str:
    if len(shards) == 1:
        return f"shard {shards[0]}"
    return f"one of the shards {', '.join(map(str, shards))}"
