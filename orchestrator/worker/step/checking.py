"""A member's part in checks of what workers compute (`controller.checking`): when one is due, what an answer is, the two votes.

    contribute   in a step that is due each worker also computes a micro-batch of another one, and tells the answers of all
    settle       in the vote two answers of one micro-batch differ: all compute it again, and tell in another vote
    doubt        a number is not finite at one worker, in whatever step: likewise, before the run ends for it
    look back    when the sum is there: whether what this member had put into it, and what came out, is still as it was, and
                 whether each part of it has arrived as it was sent (`Exchange.verify`)

Members that read each other's cards look back at what arrives in more steps (`StepContents.copies`).

All this comes before anything of the step is applied, so the members that are left repeat the step.

It does not find a wrong bit that comes once, in a micro-batch that is not chosen, nor one that is in the memory of a sum
before that is read for the first time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from orchestrator.comm.collectives import ANSWERS, LOOK_BACK, Exchange
from orchestrator.config.plan import Plan
from orchestrator.controller.checking import Verdict, chosen, judge
from orchestrator.numerics.streams import seed_of
from orchestrator.worker.member.generation import Distrusted
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.step.contribution import Contribution, digest_of
from orchestrator.worker.step_report import EMPTY

FAILED: Final = 2**62  # the answer of a worker that could not compute it
EMPTY_SHARD: Final = FAILED + 1  # of a worker that found nothing in it
_PURPOSE: Final = "check"


class Checked(Protocol):
    """A worker, as others check it."""

    def answers(self, step: int, shard: int) -> tuple[int, int]:
        """Its first answer to a micro-batch, EMPTY if it gave none, and its answer when it computes the micro-batch again."""

    def intact(self, fingerprint: int) -> bool:
        """Whether its contribution is unchanged since the sum began, and its result still has this fingerprint."""


@dataclass(frozen=True)
class Checks:
    """When checks are due. every: in steps, 0 for never."""

    seed: int
    every: int

    def due(self, step: int) -> bool:
        return self.every > 0 and step % self.every == seed_of(self.seed, _PURPOSE) % self.every

    def chosen(
        self, step: int, rank: int, assigned: Sequence[Sequence[int]], nodes: Sequence[int], own: Sequence[int]
    ) -> list[int]:
        return chosen(seed_of(self.seed, f"{_PURPOSE} {rank}", step), rank, assigned, nodes, own)

    def since(self, step: int) -> int:
        """The first step behind the check before that of this one."""
        return max(0, step - max(1, self.every) + 1)

    def settle(self, exchange: Exchange, step: int, attempt: int, shard: int, worker: Checked | None) -> None:
        """All compute the disputed micro-batch again. Raises Distrusted. worker: None of a server."""
        given = None if worker is None else worker.answers(step, shard)
        first, again = self._exchange_answers(exchange, step, attempt, given)
        raise Distrusted(Verdict(step, shard, self.since(step), judge(first, again), tuple(sorted(first))))

    def doubt(
        self, exchange: Exchange, step: int, attempt: int, shard: int, worker: Checked | None, *, not_finite: bool
    ) -> None:
        """All compute a failed micro-batch again. All members know that it failed; only the one that computed it knows
        whether a number was not finite. Raises Distrusted if a minority answers otherwise than the others."""
        if self.every == 0:
            return
        given = None if worker is None else (FAILED if not_finite else EMPTY, worker.answers(step, shard)[1])
        failed, again = self._exchange_answers(exchange, step, attempt, given)
        wrong = judge({}, again) if failed else ()
        if wrong:
            raise Distrusted(Verdict(step, shard, self.since(step), wrong, tuple(sorted({*failed, *wrong}))))

    def _exchange_answers(
        self, exchange: Exchange, step: int, attempt: int, given: tuple[int, int] | None
    ) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """The pairs of all workers, as two mappings by rank: their first answers, and their second ones; a rank without an
        answer is left out."""
        vector = [EMPTY] * (2 * exchange.workers)
        if given is not None:
            vector[2 * exchange.rank : 2 * exchange.rank + 2] = given
        found = exchange.maximum(step, attempt, ANSWERS, torch.tensor(vector, dtype=torch.int64)).tolist()
        first, second = (_answers_by_rank(found[place::2]) for place in range(2))
        return first, second

    def look_back(
        self,
        exchange: Exchange,
        step: int,
        attempt: int,
        fingerprint: int,
        worker: Checked | None,
        compared: int = 0,
    ) -> None:
        """Check the sum of this fingerprint before it is applied. compared: the first step behind the last in which parts of
        a sum were compared without a check. Raises Distrusted if a part of it has arrived otherwise than it was sent, or if a
        worker's memory has changed. If that of several has, they have read what one of them wrote, and the verdict names none
        as wrong."""
        found = [0] * exchange.workers
        if worker is not None:
            found[exchange.rank] = not worker.intact(fingerprint)
        found, copy = _looked_back(exchange, step, attempt, found)
        if copy is not None:
            since = max(self.since(step), compared) if self.every else compared
            raise Distrusted(Verdict(step, None, since, (), copy, copied=True))
        changed = tuple(rank for rank, one in enumerate(found) if one)
        if changed:
            is_one = len(changed) == 1 < exchange.workers
            raise Distrusted(Verdict(step, None, self.since(step), changed if is_one else (), changed))


NEVER: Final = Checks(0, 0)


def compare_copies(exchange: Exchange, barrier: int, step: int) -> None:
    """All tell whether a part of the sum of a rest has arrived otherwise than it was sent; then raises Distrusted. step: the
    first one after the rest before."""
    _, copy = _looked_back(exchange, barrier, 0, [0] * exchange.workers)
    if copy is not None:
        raise Distrusted(Verdict(step, None, step, (), copy, copied=True))


def compare_updates(exchange: Exchange, barrier: int, step: int, damaged: Mapping[int, int]) -> None:
    """All tell whether an update has arrived otherwise than it was sent since the rest before; then raises Distrusted. step: as
    above; damaged: the peer from whom it came to this member, by its origin, for members hand updates on."""
    if not int(exchange.maximum(barrier, 1, LOOK_BACK, torch.tensor([len(damaged)]))):
        return
    told = torch.zeros(exchange.workers, exchange.members, dtype=torch.int64)
    for origin, sender in damaged.items():
        told[origin, exchange.rank] = 1 + sender
    found = exchange.maximum(barrier, 2, LOOK_BACK, told.flatten()).view_as(told).tolist()
    copy = _first(next(filter(None, map(_copies, found))))
    raise Distrusted(Verdict(step, None, step, (), copy, copied=True))


def checks_of(plan: Plan) -> Checks:
    return Checks(plan.run.seed, plan.cadence.check_every)


def answer_of(computed: Contribution | None, replica: Replica) -> int:
    """A digest of all that a shard contributes, bit by bit, before it is rounded; EMPTY_SHARD if it is empty. replica: with
    the buffers as it left them."""
    if computed is None:
        return EMPTY_SHARD
    digest = digest_of(computed, replica.counter_values(), replica.joined.items())
    return int.from_bytes(digest[:8], "little") >> 2


def _looked_back(
    exchange: Exchange, number: int, attempt: int, changed: Sequence[int]
) -> tuple[list[int], tuple[int, int] | None]:
    """All tell what they found after a sum. changed: by rank, whether this worker's own memory has. Returns the same of all
    workers, and the damaged copy, as (sender, reader), at which the damage began."""
    vector = torch.tensor([*changed, *[0] * exchange.members], dtype=torch.int64)
    if exchange.damaged is not None:
        vector[exchange.workers + exchange.rank] = 1 + exchange.damaged
    maxima = exchange.maximum(number, attempt, LOOK_BACK, vector).tolist()
    copies = _copies(maxima[exchange.workers :])
    return maxima[: exchange.workers], _first(copies) if copies else None


def _copies(senders: Sequence[int]) -> list[tuple[int, int]]:
    """The damaged ones, as (sender, reader). senders: by reader, 1 + sender, or 0."""
    return [(sender - 1, rank) for rank, sender in enumerate(senders) if sender]


def _first(copies: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The damaged copy, as (sender, reader), at which the damage began: its sender has received no damaged one itself."""
    readers = {reader for _, reader in copies}
    return next((copy for copy in copies if copy[0] not in readers), copies[0])


def _answers_by_rank(slots: Sequence[int]) -> Mapping[int, int]:
    return {rank: answer for rank, answer in enumerate(slots) if answer != EMPTY}
