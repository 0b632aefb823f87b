"""Whether shards should be assigned anew because workers are not equally fast, and who is far slower than all others. Pure.

Workers tell again and again how long a micro-batch takes them. Once each of a generation has, a round is over and judged:

    another assignment would end a step's computing earlier by MUCH, for several rounds in a row, and by enough to be worth
    regrouping                         the generation ends at the next boundary, and the next one is dealt by speed
    one takes more than FAR times what the others do in the median, for SLOW_ROUNDS and SLOW_S   it is named, once

Times are noisy, and an assignment that follows noise goes back and forth. So each deal doubles the number of rounds that the
next one has to wait for: in n rounds there are at most log2(n) of them. Only what little noise does not explain, a gain of
CLEAR, takes two at any time.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from orchestrator.controller.decision import Decision
from orchestrator.controller.events import Rebalance, Slow
from orchestrator.controller.load_balancing import Host, assign_by_speed, longest
from orchestrator.controller.membership import agreed, hosts_in, stage_mates
from orchestrator.controller.rendezvous.formation import ask
from orchestrator.controller.state import ControllerState, Member, present

REMEMBERED: Final = 3  # reports of a worker, of which the median counts
MUCH, CLEAR = 0.1, 0.25  # by so much the computing of a step gets shorter
ROUNDS: Final = 2  # in a row, at least
WORTH_S: Final = 1.0  # to be gained in the steps that are left; to regroup takes some hundredths of a second
FAR: Final = 2.0
SLOW_ROUNDS: Final = 5
SLOW_S: Final = 10.0


@dataclass(frozen=True)
class _Better:
    """Seconds of a step's computing, as shards are assigned and as they could be; moving: so many shards."""

    now_s: float
    then_s: float
    moving: int

    @property
    def gain(self) -> float:
        return 1 - self.then_s / self.now_s


def balance(decision: Decision, member: Member) -> None:
    """This one has told its time."""
    state = decision.state
    reported = state.balance.reported | {member.id}
    _set(decision, reported=reported)
    number = state.members.count("worker", takes_part=True)
    if state.phase != "running" or number < 2 or len(reported) < number:
        return
    workers = [each for each in present(state) if each.role == "worker"]
    if not reported.issuperset(each.id for each in workers):
        return
    _set(decision, reported=frozenset())
    workers = [decision.state.members[each.id] for each in workers]
    if state.requirements.reports_stragglers:
        _look_for_slow(decision, workers)
    if state.requirements.by_speed:
        _look_for_better(decision, workers)


def _look_for_better(decision: Decision, workers: Sequence[Member]) -> None:
    """workers: of the present generation, by rank, of whom none is gone."""
    state, known = decision.state, decision.state.balance
    better = _better_assignment(state, workers)
    if better is None or better.gain < MUCH or (better.now_s - better.then_s) * _left(state) < WORTH_S:
        _set(decision, better=0)
        return
    rounds = known.better + 1
    _set(decision, better=rounds)
    wanted = ROUNDS if better.gain >= CLEAR else ROUNDS * 2**known.moved
    if rounds < wanted or "regroup" in decision.generation().asked:
        return
    _set(decision, better=0, moved=known.moved + 1)
    each = {worker.id: statistics.median(worker.lately) for worker in workers}
    decision.do(Rebalance(each, better.now_s, better.then_s, better.moving))
    ask(decision, "regroup", _why(better))


def _better_assignment(state: ControllerState, workers: Sequence[Member]) -> _Better | None:
    """The best there is, of all stages together; None where shards are not assigned by speed, or a worker is gone."""
    assert state.generation is not None
    begin = state.generation.begin
    if len(workers) < begin.workers:
        return None
    now_s = then_s = 0.0
    moving = 0
    for ranks in stage_mates(begin.workers, begin.stages).values():
        hosts = hosts_in(state, [workers[rank] for rank in ranks])
        if hosts is None:
            return None
        assigned = assign_by_speed(state.requirements.shards, hosts)
        now_s = max(now_s, longest(hosts, [begin.shards[rank] for rank in ranks]))
        then_s = max(then_s, longest(hosts, assigned))
        moving += _moving(hosts, assigned)
    return _Better(now_s, then_s, moving)


def _moving(hosts: Sequence[Host], assigned: Sequence[Sequence[int]]) -> int:
    return sum(len(host.held.symmetric_difference(shards)) for host, shards in zip(hosts, assigned, strict=True)) // 2


def _left(state: ControllerState) -> int:
    """Steps that are still to do, as far as the driver knows."""
    manifest: Mapping[str, Any] = agreed(state, [])
    return max(0, int(manifest["steps"]) - state.steps_seen)


def _why(better: _Better) -> str:
    return (
        f"workers are not equally fast, so shards move ({better.moving}): the computing of a step is expected to take "
        f"{_ms(better.then_s)} in place of {_ms(better.now_s)}"
    )


def _look_for_slow(decision: Decision, workers: Sequence[Member]) -> None:
    """One that was slow for a while and no longer is begins anew."""
    known, now = decision.state.balance, decision.now
    slow: dict[int, tuple[float, int]] = {}
    each_takes = {worker.id: statistics.median(worker.lately) for worker in workers}
    of_stage: dict[int | None, list[float]] = {}
    for worker in workers:
        of_stage.setdefault(worker.stage, []).append(each_takes[worker.id])
    for all_take in of_stage.values():
        all_take.sort()
    for worker in workers:
        own, all_take = each_takes[worker.id], of_stage[worker.stage]
        if len(all_take) < 2 or own <= FAR * (others_s := _median_without(all_take, own)):
            continue
        since, rounds = known.slow.get(worker.id, (now, 0))
        slow[worker.id] = since, rounds + 1
        if rounds + 1 >= SLOW_ROUNDS and now - since >= SLOW_S and worker.id not in decision.state.balance.announced:
            _set(decision, announced=decision.state.balance.announced | {worker.id})
            decision.do(Slow(worker.id, own, others_s, now - since))
            decision.say(f"{worker.name} is far slower than the others")
    _set(decision, slow=slow)


def _median_without(ordered: Sequence[float], one: float) -> float:
    """The median of the others. ordered: two or more, ascending, and `one` among them."""
    place, others = bisect_left(ordered, one), len(ordered) - 1
    middle = [ordered[at + (at >= place)] for at in ((others - 1) // 2, others // 2)]
    return (middle[0] + middle[1]) / 2


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _set(decision: Decision, **changes: Any) -> None:
    decision.set(balance=replace(decision.state.balance, **changes))
