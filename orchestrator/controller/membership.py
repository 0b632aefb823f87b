"""How the next generation is composed of the living members: who takes part, hosts which shards, and gives its state. Pure.

A generation is made when every member of the one before has reported or is gone, so that no member of it can still use
a memory region or commit a step (rule C2). A member that is farthest gives its state to all that are behind
(rule D1). A worker of the last generation is preferred to one that has no state yet. Ranks go node by node, so that a ring of
them crosses each wire between nodes once in each direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.controller.events import Begin, FallbackPair, Move
from orchestrator.controller.load_balancing import Host, Pace, assign_by_speed, expected_seconds
from orchestrator.controller.shard_assignment import assign_shards, assign_stages
from orchestrator.controller.sites import assign_at_sites, away, hosts, shards_of
from orchestrator.controller.state import ControllerState, Member, living, present, quorum, staying, top
from orchestrator.controller.state_recovery import Standing, StateRecovery, plan_recovery
from orchestrator.errors import Inconsistent, few
from orchestrator.records.comparison import differing
from orchestrator.records.progress import advances_of, behind, steps_of

_ONE_KIND = "run on machines of one kind"
_VARIABLES = f"{_ONE_KIND}, or make them alike: ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and MKL_CBWR"
_APART = ("machine", "code")  # of a run manifest: what need not be equal
_NAMES_SHOWN = 3


def compose(state: ControllerState) -> Begin | str:
    """The next generation of those who are ready; or why there can be none yet."""
    number = state.members.count("worker", ready=True)
    if number < quorum(state):
        return f"{number} workers are ready, {quorum(state)} are needed"
    ready = [member for member in living(state, "worker") if member.ready is not None]
    highest, restores = top(ready), to_restore(state, ready)
    holders_first = sorted(  # where nobody holds what counts, those who can restore it: one may be a spare that cannot
        ready,
        key=lambda member: (
            *(restores and not member.can_restore, member.progress != highest, member.progress is None),
            *(member.rank is None, member.id),
        ),
    )
    workers = by_node(_seated(state, _with_writer(state, _candidates(state, holders_first), holders_first)))
    all_servers = state.generation is None or state.requirements.whole
    servers = staying(state, "server")
    if all_servers and len(servers) < state.requirements.members.servers:
        servers = [member for member in living(state, "server") if member.ready is not None]
    if len(workers) < quorum(state):
        return f"{len(workers)} workers are ready, {quorum(state)} are needed"
    if all_servers and len(servers) < state.requirements.members.servers:
        return f"{len(servers)} servers are ready, {state.requirements.members.servers} are needed"
    if (missing := away(state.requirements.sites, [member.sites for member in workers])) and not _may_sit_out(state):
        return f"no worker is ready at site{'s' * (len(missing) > 1)} {', '.join(missing)}"
    if state.requirements.members.stages > 1:
        return _compose_stages(state, workers)
    fallbacks = fallback_pairs(state, workers)
    lost = [] if fallbacks else lost_shards(state, workers)
    restore = None
    if lost and state.checkpoint is None:
        restore = 0
    elif lost or to_restore(state, workers):
        restore = next((rank for rank, member in enumerate(workers) if member.can_restore), None)
        if restore is None:
            return f"none of the {len(workers)} ready workers reaches the checkpoint of step {state.checkpoint}"
    shards = assign_all_shards(state, workers)
    return Begin(
        generation=state.requirements.generation if state.generation is None else state.generation.number + 1,
        members=tuple(member.id for member in [*workers, *servers]),
        nodes=tuple(member.node for member in [*workers, *servers]),
        shards=shards,
        state_transfers=_state_transfers(workers, len(servers), restore),
        restore=restore,
        without_servers=state.requirements.members.servers > 0 and not servers,
        run_manifest=agreed(state, workers),
        moves=moves(state, workers, shards, restore),
        fallbacks=() if restore is not None else fallbacks,
        all_fallbacks=() if restore is not None else (*_earlier_fallbacks(state, workers), *fallbacks),
        forgets=_keeps_shard_state(state, workers) and restore is not None,
        absent=shards_of(state.requirements.sites, missing),
    )


def _candidates(state: ControllerState, ready: Sequence[Member]) -> Sequence[Member]:
    """The workers of the next generation, at most as many as there may be. Workers whose nodes go away are left out once the
    others can go on without them. Until then the first holder of the state stays, and workers that stay come before the rest of
    those that leave. ready: holders of the newest state first."""
    most, stages = state.requirements.members.most, state.requirements.members.stages
    stay = [member for member in ready if member.leaves is None]
    if len(stay) == len(ready) or _can_go_on(state, ready, stay):
        return stay[:most]
    if stages > 1:  # beside those who give it to them
        return ready[: min(most + len(ready) - len(stay), stages * state.requirements.shards)]
    if _keeps_shard_state(state, ready):
        return ready[:most]
    return [ready[0], *(member for member in stay if member is not ready[0]), *_leaving(ready[1:])][:most]


def _with_writer(state: ControllerState, chosen: Sequence[Member], ready: Sequence[Member]) -> Sequence[Member]:
    """The same, with one that writes checkpoints in the place of the last one, where none of them does. The first one has the
    state."""
    writer = next((member for member in ready if member.can_restore), None)
    if writer is None or not lacks_writer(state, chosen):
        return chosen
    return [*chosen[:-1], writer]


def lacks_writer(state: ControllerState, workers: Sequence[Member]) -> bool:
    """Whether none of these writes checkpoints, and one may take the place of another. Pipelines with stages and sites have
    fixed places, and what a worker keeps of its shards would be lost with its place."""
    if state.requirements.members.stages > 1 or state.requirements.sites or _keeps_shard_state(state, workers):
        return False
    return len(workers) > 1 and not any(member.can_restore for member in workers)


def _leaving(members: Iterable[Member]) -> list[Member]:
    return [member for member in members if member.leaves is not None]


def _can_go_on(state: ControllerState, ready: Sequence[Member], stay: Sequence[Member]) -> bool:
    """Whether the workers that stay are enough, and have all the state that the ready ones have."""
    highest = top(ready)
    if len(stay) < quorum(state) or top(stay) != highest or lost_shards(state, stay):
        return False
    if away(state.requirements.sites, [member.sites for member in stay]) and not _may_sit_out(state):
        return False
    hosted = {member.stage for member in stay if member.progress == highest}
    return (
        state.requirements.members.stages == 1
        or highest is None
        or hosted >= {*range(state.requirements.members.stages)}
    )


def may_leave(state: ControllerState) -> bool:
    """Whether after the step under way those who stay can go on without those whose nodes go away: who is in the generation
    has the state then."""
    workers = staying(state, "worker")
    begin = None if state.generation is None else state.generation.begin
    if begin is None or len(workers) < quorum(state):
        return False
    here = [member for member in workers if member.rank is not None]
    gone = [state.members[id_] for id_ in begin.members[: begin.workers] if id_ in state.members]
    if _leaving(gone) and _keeps_shard_state(state, workers):
        return False
    if away(state.requirements.sites, [member.sites for member in workers]) and not _may_sit_out(state):
        return False
    return bool(here) and {member.stage for member in here} >= {*begin.stages}


def _may_sit_out(state: ControllerState) -> bool:
    return state.requirements.sits_out and state.generation is not None


def _seated(state: ControllerState, workers: Sequence[Member]) -> Sequence[Member]:
    """The workers for which there is a shard."""
    if not state.requirements.sites:
        return workers
    return [worker for worker, assigned in zip(workers, _assign_at_sites(state, workers), strict=True) if assigned]


def _assign_at_sites(state: ControllerState, workers: Sequence[Member]) -> tuple[tuple[int, ...], ...]:
    begin = None if state.generation is None else state.generation.begin
    held = {} if begin is None else dict(zip(begin.members, begin.shards, strict=False))
    absent = () if begin is None else begin.absent
    own = [frozenset(held.get(worker.id, ())).difference(absent) for worker in workers]
    may = hosts(state.requirements.shards, state.requirements.sites, [worker.sites for worker in workers])
    return assign_at_sites(may, own)


def by_node(members: Sequence[Member]) -> list[Member]:
    """The order of ranks: all of a node one after the other, the oldest first; nodes in the order of their oldest member."""
    first: dict[int, int] = {}
    for member in sorted(members, key=lambda member: member.id):
        first.setdefault(member.node, member.id)
    return sorted(members, key=lambda member: (first[member.node], member.id))


def _compose_stages(state: ControllerState, workers: Sequence[Member]) -> Begin | str:
    """As `compose`, of a model that is cut into stages."""
    requirements = state.requirements
    leaves = [member.leaves is not None for member in workers]
    stages = assign_stages([member.stage for member in workers], requirements.members.stages, leaves)
    if empty := sorted(set(range(requirements.members.stages)) - set(stages)):
        return f"no worker is ready for stage{'s' * (len(empty) > 1)} {', '.join(map(str, empty))}"
    planned = _plan_recovery(state, workers, stages)
    back = _goes_back(state, workers, stages)
    restorers: list[int] = []
    if back is not None or to_restore(state, workers):
        mates = stage_mates(len(workers), stages)
        for stage in range(requirements.members.stages):
            ranks = mates[stage]
            able = [rank for rank in ranks if workers[rank].can_restore or state.checkpoint is None]
            if not able:
                return f"no worker of stage {stage} reaches the checkpoint of step {state.checkpoint}"
            restorers.append(able[0])
    return Begin(
        generation=requirements.generation if state.generation is None else state.generation.number + 1,
        members=tuple(member.id for member in workers),
        nodes=tuple(member.node for member in workers),
        shards=assign_all_shards(state, workers, stages),
        state_transfers=tuple((restorers[stage], rank) for rank, stage in enumerate(stages) if restorers[stage] != rank)
        if restorers
        else planned.transfers,
        restore=restorers[0] if restorers else None,
        run_manifest=agreed(state, workers),
        forgets=back is not None,
        stages=stages,
        restorers=tuple(restorers),
        applies=() if restorers else planned.applies,
        run_states=() if restorers else planned.run_states,
    )


def assign_all_shards(
    state: ControllerState, workers: Sequence[Member], stages: Sequence[int] = ()
) -> tuple[tuple[int, ...], ...]:
    """By rank the shards that it hosts, of its stage if there are stages: by speed where that is known and asked for. If
    shards are pinned to sites, the first worker gets those of sites that are away, and computes none of them."""
    if state.requirements.sites:
        first, *others = _assign_at_sites(state, workers)
        left = set(range(state.requirements.shards)).difference(first, *others)
        return tuple(sorted({*first, *left})), *others
    of_stage: dict[int, tuple[tuple[int, ...], ...]] = {}
    for stage, places in stage_mates(len(workers), stages).items():
        hosts = hosts_in(state, [workers[place] for place in places])
        shards = state.requirements.shards
        of_stage[stage] = assign_shards(shards, len(places)) if hosts is None else assign_by_speed(shards, hosts)
    following = {stage: iter(assigned) for stage, assigned in of_stage.items()}
    return tuple(next(following[stage]) for stage in stages or (0,) * len(workers))


def stage_mates(workers: int, stages: Sequence[int]) -> dict[int, list[int]]:
    """By stage the ranks that host it; all host stage 0 where every worker has the whole model."""
    found: dict[int, list[int]] = {}
    for rank in range(workers):
        found.setdefault(stages[rank] if stages else 0, []).append(rank)
    return found


def hosts_in(state: ControllerState, workers: Sequence[Member]) -> list[Host] | None:
    """Those who share the shards of a stage, for an assignment by speed; None where shards are assigned equally."""
    requirements = state.requirements
    if not requirements.by_speed:
        return None
    seconds = expected_seconds([Pace(each.lately, each.speed, each.node) for each in workers])
    if seconds is None:
        return None
    begin = None if state.generation is None else state.generation.begin
    held = {} if begin is None else dict(zip(begin.members, begin.shards, strict=False))
    shared = requirements.claims and requirements.members.stages == 1 and not _keeps_shard_state(state, workers)
    return [
        Host(each, worker.node if shared else place, frozenset(held.get(worker.id, ())))
        for place, (each, worker) in enumerate(zip(seconds, workers, strict=True))
    ]


def _plan_recovery(state: ControllerState, workers: Sequence[Member], stages: Sequence[int]) -> StateRecovery:
    return plan_recovery(
        [Standing(stage, each.progress, each.holds_sum) for stage, each in zip(stages, workers, strict=True)],
        state.requirements.members.stages,
    )


def _goes_back(state: ControllerState, workers: Sequence[Member], stages: Sequence[int]) -> str | None:
    """Why all workers go back to the last checkpoint, as the end of a sentence; None where they can go on."""
    if top(workers) is None:
        return None
    if lost := _plan_recovery(state, workers, stages).lost:
        which = f"stage{'s' * (len(lost) > 1)} {', '.join(map(str, lost))}"
        return f"what {which} had learned is lost with {'their' if lost[1:] else 'its'} last worker"
    return None


def why_back(state: ControllerState, plan: Begin) -> str:
    """Why the workers of this plan go back to the last checkpoint; empty where they do not, or have no stages."""
    if not plan.stages or not plan.forgets:
        return ""
    return _goes_back(state, [state.members[member] for member in plan.members], plan.stages) or ""


def agreed(state: ControllerState, workers: Sequence[Member]) -> Mapping[str, Any]:
    """The run manifest; before the first generation, of which these are the workers, that of each of them."""
    return state.run_manifest if state.run_manifest is not None else workers[0].run_manifest


def _keeps_shard_state(state: ControllerState, workers: Sequence[Member]) -> bool:
    """Whether shards keep something from step to step, which their host alone has."""
    return bool(agreed(state, workers)["shard_state"])


def to_restore(state: ControllerState, workers: Sequence[Member]) -> bool:
    """Whether the newest checkpoint is ahead of every one of them."""
    highest = top(workers)
    return state.checkpoint is not None and (highest is None or highest.steps < state.checkpoint)


def lost_shards(state: ControllerState, workers: Sequence[Member]) -> list[int]:
    """The shards whose state at the top nobody has: their only host is gone. Without it no step can be exact."""
    if not _keeps_shard_state(state, workers):
        return []
    holders = _holders(workers)
    return [shard for shard in range(state.requirements.shards) if holders is not None and shard not in holders]


def _earlier_fallbacks(state: ControllerState, workers: Sequence[Member]) -> tuple[FallbackPair, ...]:
    """The pairs of earlier generations that began where the farthest of these are now."""
    advances = advances_of(top(workers))
    return tuple(pair for base, pair in state.fallbacks if base == advances)


def fallback_pairs(state: ControllerState, workers: Sequence[Member]) -> tuple[FallbackPair, ...]:
    """(lost, fallback) pairs, where a run goes on without what a shard kept: a lost shard goes on with what the lowest living
    one keeps. None where nobody keeps anything any more."""
    holders = _holders(workers)
    if not state.requirements.falls_back or not holders:
        return ()
    heir = min(holders)
    return tuple((shard, heir) for shard in lost_shards(state, workers))


def _holders(workers: Sequence[Member]) -> dict[int, list[int]] | None:
    """By shard, the ranks of those who have its state at the top; None where all have the initial one.

    A worker that is a step behind has contributed to the step that others have committed: its staged state is of the top.
    """
    highest = top(workers)
    if advances_of(highest) == 0:
        return None
    found: dict[int, list[int]] = {}
    for rank, member in enumerate(workers):
        for shard in {0: member.held, 1: member.staged}.get(behind(member.progress, highest), ()):
            found.setdefault(shard, []).append(rank)
    return found


def moves(
    state: ControllerState, workers: Sequence[Member], shards: tuple[tuple[int, ...], ...], restore: int | None
) -> tuple[Move, ...]:
    """The state of shards moves from the member that has it, or restores it, to their present host."""
    holders = _holders(workers)
    if not _keeps_shard_state(state, workers) or (restore is None and holders is None):
        return ()
    for lost, fallback in fallback_pairs(state, workers) if restore is None else ():
        (holders or {})[lost] = (holders or {})[fallback]
    moved: dict[tuple[int, int], list[int]] = {}
    for recipient, hosted in enumerate(shards):
        for shard in hosted:
            ranks = [restore] if restore is not None else (holders or {})[shard]
            if recipient not in ranks:
                moved.setdefault((ranks[0], recipient), []).append(shard)
    return tuple((donor, recipient, tuple(moving)) for (donor, recipient), moving in sorted(moved.items()))


def _state_transfers(workers: Sequence[Member], servers: int, restore: int | None) -> tuple[tuple[int, int], ...]:
    """The farthest members give to all others, in turn; a server always takes, since it keeps nothing
    between generations."""
    highest = top(workers)
    if restore is not None:
        donors = [restore]
    elif highest is None:
        return ()
    else:
        donors = [rank for rank, member in enumerate(workers) if member.progress == highest]
    recipients = sorted({*range(len(workers) + servers)}.difference(donors))
    return tuple((donors[i % len(donors)], recipient) for i, recipient in enumerate(recipients))


def skew(state: ControllerState) -> str:
    """The members that are too far apart, in words; empty where they differ by one step at most (rule D1).

    A member that should have received or loaded a state but has not moved is ignored: nobody can have advanced without it.
    """
    if state.requirements.leaps:
        return ""
    generation = state.generation
    assert generation is not None
    begin = generation.begin
    ranks = {*begin.restorers, *(recipient for _, recipient in begin.state_transfers)}
    recipients = {begin.members[rank] for rank in ranks}
    moved = [
        member
        for member in present(state)
        if member.role == "worker" and not (member.id in recipients and member.progress == generation.before[member.id])
    ]
    highest = top(moved)
    if all(behind(member.progress, highest) <= 1 for member in moved):
        return ""
    return ", ".join(f"{member.name} at step {steps_of(member.progress)}" for member in moved)


def disagreement(
    one: str, run_manifest: Mapping[str, Any], other: str, other_manifest: Mapping[str, Any]
) -> Inconsistent | None:
    """Admission by proof (rule B4): every fact has to be equal but the machine, which explains why others are not, and of the
    code that of modules that both have imported: a process imports what it needs."""
    changed = differing(run_manifest.get("code", {}), other_manifest.get("code", {}))
    if changed:
        return Inconsistent(
            f"{one} and {other} have other code: {few(changed, _NAMES_SHOWN)} changed meanwhile",
            "put files and packages back as they were when the run began, and change them elsewhere while it trains",
            code="replica.other-code",
        )
    different = sorted(
        key for key in run_manifest if key not in _APART and run_manifest[key] != other_manifest.get(key)
    )
    if not different:
        return None
    machine, other_machine = run_manifest.get("machine", {}), other_manifest.get("machine", {})
    why = [
        f"{key} {machine[key]} and {other_machine.get(key)}"
        for key in machine
        if machine[key] != other_machine.get(key)
    ]
    if different == ["reference"]:
        return Inconsistent(
            f"{one} and {other} compute different bits from the same micro-batch ({'; '.join(why) or 'on like machines'})",
            _alike(run_manifest)
            if why
            else "put back what the pipeline reads beside data.inputs, if it changed meanwhile, and declare it there; draw "
            "from torch, numpy or random alone, which are seeded, and keep no sample that was drawn",
            code="replica.other-bits",
        )
    if why and different in (["initial_parameters"], ["initial_parameters", "reference"]):
        return Inconsistent(
            f"{one} and {other} begin with different parameters ({'; '.join(why)})",
            f"{_alike(run_manifest)}; if they differ then, too, model() depends on more than its arguments, its files and "
            "seeded generators",
            code="replica.other-parameters",
        )
    return Inconsistent(
        f"{one} and {other} prepared different runs: {', '.join(different)} differ",
        "model() and datasets() must depend on nothing but their arguments, their files and the seeded generators",
        code="replica.other-manifest",
    )


def _alike(run_manifest: Mapping[str, Any]) -> str:
    """A remedy where machines compute other bits. Portable arithmetic sets the variables itself, and is for CPUs alone."""
    if "portable" in run_manifest.get("compute", {}):
        return _ONE_KIND
    on_gpus = any(key.startswith("GPU") for key in run_manifest.get("machine", {}))
    return _VARIABLES if on_gpus else f"set run.arithmetic=portable; or {_VARIABLES}"
