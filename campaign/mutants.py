"""Bugs of the protocol, planted one at a time: a campaign that does not find them would not find others either.

    python -m campaign --mutants          each is planted and hunted; a line for each, what it is and by which seed it was found

A mutant is a function of the program in place of the true one, for all members of a process. It is hunted where that is
cheapest: in lives of the controller (`campaign.lives`), in threads, or in runs of the virtual cluster, whose engine,
checkpoints and driver are the true ones. It is found when any check there fails, or the program says itself that something is
wrong. Undisturbed runs, with which the disturbed ones are compared, are made without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import torch

from campaign import disagreements, lives, reports
from orchestrator.checkpoint import catalog
from orchestrator.cluster.actors import members
from orchestrator.cluster.actors.host_relay import Report
from orchestrator.comm import collectives
from orchestrator.comm.collectives import Exchange
from orchestrator.comm.topologies.schedule import Add, Copy, Finish, Send
from orchestrator.controller import fault_attribution, membership, state_recovery
from orchestrator.controller.state import top
from orchestrator.driver.run.checkpointing import Saving
from orchestrator.optim.privacy.keys import Keys
from orchestrator.optim.privacy.masks import Masks
from orchestrator.records import lines, merging
from orchestrator.worker import hooks
from orchestrator.worker.asynchronous.free_replica import FreeReplica
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.member.heartbeat import CalledOff, Heartbeat
from orchestrator.worker.member.shared_queue import SharedQueue
from orchestrator.worker.model import snapshot
from orchestrator.worker.model.shard_states import ShardStates
from tests.controller.simulated import World
from tests.virtual_cluster import plans as virtual_plans
from tests.virtual_cluster import runs
from tests.virtual_cluster.cluster import Relays
from tests.worker import pipelines
from tests.worker.runs import Layout, train

Hunt = Callable[[int], Any]  # the hunt by one seed; raises where something is found
_MOST_S: Final = 240.0  # of a processor, so that a busy machine finds no less


@dataclass(frozen=True)
class Mutant:
    """A bug that is planted, and the hunt that should find it."""

    name: str  # the bug in words
    plant: Callable[[ExitStack], None]  # puts it in place until the stack is closed
    hunt: Hunt  # with the mutant
    before: Hunt = lambda _: None  # without it, by the same seed: a hunt that fails anyhow finds nothing
    seeds: int = 400  # to be tried at most
    missed: str = ""  # why it is not found, where that is known


def hunt(mutant: Mutant) -> dict[str, Any]:
    """A line that says whether it was found, by which seed, and how it showed."""
    begun = time.process_time()
    for seed in range(mutant.seeds):
        mutant.before(seed)
        with ExitStack() as stack:
            mutant.plant(stack)
            try:
                mutant.hunt(seed)
            except Exception as error:
                return _line(mutant, begun, seed, f"{type(error).__name__}: {_told(error)}")
        if time.process_time() - begun > _MOST_S:
            break
    return _line(mutant, begun, None, "")


def _line(mutant: Mutant, begun: float, seed: int | None, how: str) -> dict[str, Any]:
    told = {"what": "mutant", "name": mutant.name, "found": seed is not None, "seed": seed, "how": how[:300]}
    return {**told, "seconds": round(time.process_time() - begun, 1)}


def _told(error: BaseException) -> str:
    """The first line that says what is wrong; without the seed, which is told beside it."""
    return str(error).splitlines()[0] if str(error) else ""


def every(names: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    for mutant in MUTANTS:
        if not names or mutant.name in names:
            yield hunt(mutant)


# ---- where they are hunted


def _in_lives(*kinds: str) -> Hunt:
    chosen = kinds or tuple(lives.KINDS)

    def all_of(seed: int) -> None:
        for kind in chosen:
            lives.live(kind, seed)

    return all_of


def _virtual(name: str, plant: Callable[[ExitStack], None], missed: str = "", **kind: bool) -> Mutant:
    """Hunted in whole runs under their driver."""

    def undisturbed(seed: int) -> None:
        drawn = virtual_plans.plan(seed, shard_state=kind.get("shard_state", False), staged=kind.get("staged", False))
        runs.undisturbed(drawn.identity, runs._determining(drawn.layouts[0]), drawn.shard_state)

    return Mutant(name, plant, partial(runs.live, **kind), undisturbed, missed=missed)


def _of_votes(name: str, maximum: Callable[..., Any]) -> Mutant:
    """Hunted among members of whom some are neither the root nor a leaf of the tree of votes."""

    def alone(_: int) -> None:
        disagreements.every_alone()

    return Mutant(name, _in_place_of(Exchange, "maximum", maximum), disagreements.none_differs, alone, seeds=20)


def _of_reports(name: str, plant: Callable[[ExitStack], None], seeds: int = 40, missed: str = "") -> Mutant:
    """Hunted where each entry of each member is looked for at the driver."""
    return Mutant(name, plant, reports.each_comes_once, reports.each_comes_once, seeds=seeds, missed=missed)


def _in_replays(seed: int) -> None:
    runs.live_and_repeated(seed)


def _claimed_once(seed: int) -> None:
    """Each shard is computed once in a step among all workers of a host."""
    train(pipelines.Mlp, Layout(2 + seed % 3), steps=6, shards=6, seed=seed, claims=True)


def _masks_differ(seed: int) -> None:
    """No pair of workers masks two sums with the same bits."""
    used: list[tuple[Any, ...]] = []
    whole = Keys.stream

    def spied(keys: Keys, purpose: str, *numbers: int) -> Any:
        if purpose == "mask":
            used.append((id(keys), *numbers))
        return whole(keys, purpose, *numbers)

    rounds: dict[str, Any] = {"shards": 4, "batch_size": 8, "optimizer": {"name": "sgd", "lr": 1.0}}
    with patch.object(Keys, "stream", spied):
        train(pipelines.Mlp, Layout(3), steps=3, seed=seed, masked=True, privacy={"clipping_norm": 0.5}, **rounds)
    assert used, "nothing was masked"
    assert len(used) == len(set(used)), "two sums were masked with the same bits"


# ---- what they do


def _in_place_of(owner: Any, name: str, mutated: Any) -> Callable[[ExitStack], None]:
    return lambda stack: stack.enter_context(patch.object(owner, name, mutated))


def _around(owner: Any, name: str, mutated: Callable[..., Any]) -> Callable[[ExitStack], None]:
    """mutated: called with the true function before its arguments."""
    whole = getattr(owner, name)

    def instead(*arguments: Any, **named: Any) -> Any:
        return mutated(whole, *arguments, **named)

    return _in_place_of(owner, name, instead)


def _all_of(*plants: Callable[[ExitStack], None]) -> Callable[[ExitStack], None]:
    def plant(stack: ExitStack) -> None:
        for each in plants:
            each(stack)

    return plant


def _without_second_vote(whole: Any, world: Any, *arguments: Any, **named: Any) -> None:
    whole(world, *arguments, **{**named, "second_vote": False})


def _whatever_was_called_off(heartbeat: Heartbeat) -> None:
    if heartbeat._called_off >= 0:
        raise CalledOff(heartbeat._generation)


def _staged_counts_at_once(whole: Any, states: ShardStates, shard: int, state: Any) -> None:
    whole(states, shard, state)
    states._rows[shard] = states._staged[shard]


def _commits_with_the_first_part(whole: Any, saving: Saving, entry: dict[str, Any]) -> Any:
    return whole(saving, {**entry, "parts": 1, "part": 0} if entry["event"] == "part_written" else entry)


def _part_of(step: int, parts: Any) -> Any:
    from orchestrator.checkpoint.manifest import Blob, Manifest

    values = next((dict(part["values"]) for part in parts if "values" in part), {})
    return Manifest(step, values, tuple(Blob.from_dict(part["blob"]) for part in parts))


def _applied_twice(whole: Any, replica: FreeReplica, delta: Any, printed: int, at: slice = slice(None)) -> None:
    whole(replica, delta, printed, at)
    whole(replica, delta, printed, at)


def _claimed_by_two(whole: Any, board: SharedQueue, deal: Any) -> int:
    """The first shard of a step is free once more."""
    found, given = int(whole(board, deal)), vars(board).setdefault("given", set())
    if found >= 0 and deal.stamp.value not in given:
        given.add(deal.stamp.value)
        board._stamps[found] = 0
    return found


def _same_mask(whole: Any, masks: Masks, step: int, attempt: int, total: Any) -> None:  # noqa: ARG001
    masks._last = None
    whole(masks, 0, 0, total)


def _votes(drops: bool = False, keeps: bool = False) -> Callable[..., Any]:
    """In place of `Exchange.maximum`, for members between the root of the tree of votes and its leaves. drops: the vote of the
    last child counts for nothing; keeps: children are told what was agreed below, not the outcome."""

    def maximum(exchange: Exchange, step: int, attempt: int, phase: int, vector: torch.Tensor) -> torch.Tensor:
        call = collectives.CollectiveTag(exchange.generation, step, attempt, phase)
        actions, current = exchange._vote_program, vector.clone()
        children = [action.peer for action in actions if isinstance(action, Add) and exchange.rank]
        below = current
        for action in actions:
            if isinstance(action, Send):
                told = below if keeps and action.peer in children else current
                exchange._transport.send(action.peer, call.tag(action.chunk), told)
            elif not isinstance(action, Finish):
                received = exchange._transport.receive(action.peer, call.tag(action.chunk), exchange._timeout_s).payload
                if not (drops and isinstance(action, Add) and action.peer in children[-1:]):
                    current = torch.maximum(current, received)
                below = below if isinstance(action, Copy) else current
        return current

    return maximum


def _seldom(mutated: Callable[[Relays, list[Report], int], list[Report]]) -> Callable[..., list[Report]]:
    """Around `take` of a relay: every fifth time that reports have come, with the place of one of them."""

    def instead(whole: Any, relays: Relays) -> list[Report]:
        reports: list[Report] = whole(relays)
        times = vars(relays).setdefault("times", 0) + bool(reports)
        vars(relays)["times"] = times
        return mutated(relays, reports, times % len(reports)) if reports and times % 5 == 0 else reports

    return instead


def _loses(_: Relays, reports: list[Report], at: int) -> list[Report]:
    return reports[:at] + reports[at + 1 :]


def _repeats(_: Relays, reports: list[Report], at: int) -> list[Report]:
    return [*reports, reports[at]]


def _delivers_to_another(relays: Relays, reports: list[Report], at: int) -> list[Report]:
    """The report counts as one of another member."""
    others = [member for member in relays._reporters if member != reports[at].member]
    return [*reports[:at], reports[at]._replace(member=others[0]), *reports[at + 1 :]] if others else reports


def _acknowledges_to_another(whole: Any, relays: Relays, number: int, kept: int) -> None:
    for other in [each for each in relays._reporters if each != number] or [number]:
        whole(relays, other, kept)


def _all_count(known: Any, first: int, entries: list[Any]) -> list[Any]:  # noqa: ARG001
    """Also those that came before."""
    known.seen += len(entries)
    return entries


def _from_the_first(workers: Any, servers: int, restore: int | None) -> tuple[tuple[int, int], ...]:
    """The source may be any worker, however far."""
    if top(workers) is None and restore is None:
        return ()
    donor = restore or 0
    return tuple((donor, rank) for rank in range(len(workers) + servers) if rank != donor)


def _one_shard_twice(whole: Any, shards: int, workers: int) -> Any:
    first, *others = whole(shards, workers)
    return ((*first, others[0][0]), *others) if others else (first,)


def _without_optimizer(whole: Any, model: Any, optimizer: Any, *more: Any) -> Any:
    """As if its state were nothing that others need."""
    before = {key: dict(value) for key, value in optimizer.state.items()}
    for state in optimizer.state.values():
        for key, value in state.items():
            if getattr(value, "is_floating_point", lambda: False)():
                state[key] = value.clone().zero_()
    try:
        return whole(model, optimizer, *more)
    finally:
        for key, value in before.items():
            optimizer.state[key] = value


def _with_a_new_grid(whole: Any, run_state: RunState, values: Any) -> RunState:
    resumed: RunState = replace(whole(run_state, values), grid=run_state.grid)
    return resumed


def _one_step_earlier(whole: Any, run_state: RunState, values: Any) -> RunState:
    resumed: RunState = whole(run_state, values)
    return replace(resumed, steps=max(0, resumed.steps - 1))


def _evaluated_before(whole: Any, run_state: RunState, values: Any) -> RunState:
    resumed: RunState = replace(whole(run_state, values), evaluation_due=False)
    return resumed


def _has_applied(standing: Any, top: Any) -> bool:  # noqa: ARG001
    return bool(standing.holds_sum)


def _leaves_files(whole: Any, found: catalog.Catalog, names: Any) -> None:  # noqa: ARG001
    found._abandoned_after_s = 0.0


MUTANTS: Final = (
    Mutant(
        "no second vote: a stage applies its sum as soon as it has it",
        _around(World, "__init__", _without_second_vote),
        _in_lives("stages"),
    ),
    _virtual(
        "the call-off of an earlier generation counts", _in_place_of(Heartbeat, "_check", _whatever_was_called_off)
    ),
    _virtual(
        "what a shard keeps is written before the vote",
        _around(ShardStates, "stage", _staged_counts_at_once),
        shard_state=True,
    ),
    _virtual(
        "a manifest is written when the first of its parts is there",
        _all_of(_around(Saving, "heard", _commits_with_the_first_part), _in_place_of(catalog, "_manifest", _part_of)),
    ),
    Mutant("a mask is used for two sums", _around(Masks, "add", _same_mask), _masks_differ, seeds=3),
    Mutant("a delta is applied twice", _around(FreeReplica, "apply_other", _applied_twice), _in_replays, _in_replays),
    Mutant("a claim that two win", _around(SharedQueue, "claim", _claimed_by_two), _claimed_once),
    Mutant(
        "who is farthest is not asked: the first worker gives its state",
        _in_place_of(membership, "_state_transfers", _from_the_first),
        _in_lives(),
    ),
    Mutant(
        "a shard is dealt to two workers",
        _around(membership, "assign_shards", _one_shard_twice),
        _in_lives("whole replicas"),
    ),
    Mutant(
        "all go back to the checkpoint though a worker lives",
        _in_place_of(membership, "to_restore", lambda state, _: state.checkpoint is not None),
        _in_lives("whole replicas"),
    ),
    Mutant("who stands still is never ended", _in_place_of(fault_attribution, "stuck", lambda *_: []), _in_lives()),
    Mutant(
        "an accused member that is silent is waited for",
        _in_place_of(fault_attribution, "silent", lambda *_: []),
        _in_lives(),
        seeds=40,
        missed="cluster.step_timeout_s ends it too, only later, and no life is checked for its time",
    ),
    Mutant(
        "a sum that is held is dropped",
        _in_place_of(state_recovery, "_can_follow", lambda *_: False),
        _in_lives("stages"),
    ),
    Mutant(
        "a sum that is held is applied by who has applied it",
        _in_place_of(state_recovery, "_can_follow", _has_applied),
        _in_lives("stages"),
        seeds=3000,
    ),
    _virtual(
        "the optimizer's state is not handed over",
        _around(snapshot, "capture", _without_optimizer),
    ),
    _virtual("the grid is not handed over", _around(RunState, "resumed", _with_a_new_grid)),
    _virtual(
        "what a dead worker had told its peers is not told by them",
        _in_place_of(hooks, "_is_of_the_run", lambda _: False),
        missed="relays tell it: all who know have to die with their hosts before, which none of 5,000 lives did",
    ),
    _virtual("who comes begins one step too early", _around(RunState, "resumed", _one_step_earlier)),
    _virtual(
        "an evaluation that a loss has interrupted is not made",
        _around(RunState, "resumed", _evaluated_before),
    ),
    Mutant(
        "a resume keeps lines behind its checkpoint",
        _in_place_of(lines, "cut", lambda *_: []),
        _in_replays,
        _in_replays,
    ),
    _virtual(
        "files of a checkpoint that is being written are removed",
        _around(catalog.Catalog, "pin", _leaves_files),
    ),
    _of_votes("a member drops the vote of a child", _votes(drops=True)),
    _of_votes("a member hands down what was agreed below it, not the outcome", _votes(keeps=True)),
    Mutant(
        "copies of a line are not compared",
        _in_place_of(merging, "difference", lambda *_: None),
        disagreements.one_differs,
        seeds=20,
    ),
    _of_reports("a relay loses a report", _around(Relays, "take", _seldom(_loses))),
    _of_reports(
        "a relay repeats a report",
        _around(Relays, "take", _seldom(_repeats)),
        seeds=8,
        missed="entries are numbered, so the driver takes each once",
    ),
    _of_reports(
        "a relay repeats a report, and its entries count twice",
        _all_of(_around(Relays, "take", _seldom(_repeats)), _in_place_of(members, "_new", _all_count)),
    ),
    _of_reports("a relay takes a report for another member's", _around(Relays, "take", _seldom(_delivers_to_another))),
    _of_reports(
        "a relay tells another member what the driver has", _around(Relays, "acknowledge", _acknowledges_to_another)
    ),
)
