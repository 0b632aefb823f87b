"""Random schedules of workers that host shards with state, and are killed anywhere: does anybody still have what is needed?

    hunt(range(1000), Protocol())        raises Broken where a living run has lost what a shard keeps, or reads a torn one

A world is a few workers over true slots (`worker/member/shard_slots.py`), who do one thing at a time, in any order: contribute,
wait for all votes, write their slots and send their part, wait for all parts, commit. While a slot is written, others act too,
and its writer may be killed. After a kill each survivor leaves at a moment of its own and reports what it sees then, as `Ended`
does; the farthest goes on, and all shards are dealt anew among the survivors and perhaps one who joins.

To show that this finds faults, a protocol may write the slots before the vote, have one slot only, or stamp a slot before it
is whole. No worker keeps anything in memory of its own, so nothing hides what the slots have lost.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from orchestrator.worker.member import lasting_memory
from orchestrator.worker.member.shard_slots import ShardSlots, SlotRow

SHARDS, STEPS = 4, 12
DEEPEST = 3  # writes within writes


class Broken(AssertionError):
    """State that a living run needs is nowhere, or is not whole."""


class Killed(Exception):
    """In the middle of a write."""


def kept(shard: int, steps: int) -> dict[str, torch.Tensor]:
    """The state that a shard keeps after so many steps."""
    return {"a": torch.full((3,), float(shard)), "b": torch.full((2, 2), float(steps))}


class OneSlot(ShardSlots):
    def _slot_of(self, stamp: int) -> int:  # noqa: ARG002
        return 0


class StampedFirst(ShardSlots):
    def write(self, shard: int, stamp: int, row: SlotRow) -> None:
        slot = self._slot_of(stamp)
        if self._stamps[shard, slot] != stamp:
            self._stamps[shard, slot] = stamp
            for name, tensor in self._tensors(shard, slot).items():
                tensor.copy_(row[name])


@dataclass(frozen=True)
class Protocol:
    slots: type[ShardSlots] = ShardSlots
    before_the_vote: bool = False


class Interrupted(Mapping[str, torch.Tensor]):
    """A row that others act beside while it is read, and whose reader may be killed then."""

    def __init__(self, row: SlotRow, meet: object) -> None:
        self._row, self._meet = row, meet

    def __getitem__(self, name: str) -> torch.Tensor:
        assert callable(self._meet)
        self._meet()
        return self._row[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)


@dataclass
class Worker:
    steps: int
    shards: tuple[int, ...] = ()
    stage: str = "contribute"
    alive: bool = True
    left: bool = False
    busy: bool = False
    held: set[int] = field(default_factory=set)
    staged: set[int] = field(default_factory=set)


class World:
    def __init__(self, dice: random.Random, protocol: Protocol) -> None:
        self.dice, self.protocol = dice, protocol
        self.fd = lasting_memory.created()
        self.slots = protocol.slots(self.fd, SHARDS, kept(0, 0))
        self.workers = [Worker(0) for _ in range(dice.randint(2, 4))]
        self.kills = 0
        self.depth = 0
        self.ending = False  # somebody has died, so this generation ends

    def live(self) -> int:
        """Until all are done or dead; returns the kills."""
        self.begin()
        while any(worker.steps < STEPS for worker in self.workers):
            if not self.act():
                self.regroup()
            if not self.workers:
                break
        os.close(self.fd)
        return self.kills

    def begin(self) -> None:
        """A generation of those who live, all equally far."""
        self.ending = False
        shards = list(range(SHARDS))
        self.dice.shuffle(shards)
        for rank, worker in enumerate(self.workers):
            worker.stage, worker.left = "contribute", False
            worker.shards = tuple(shards[rank :: len(self.workers)])
            self.slots.reserve(worker.shards)
            for shard in worker.shards if worker.steps else ():
                self.slots.write(shard, worker.steps, self.found(shard, worker.steps))

    def found(self, shard: int, steps: int) -> SlotRow:
        """The state in the slots, checked. Raises Broken."""
        row = self.slots.read(shard, steps) if steps else kept(shard, 0)
        if row is None:
            raise Broken(f"what shard {shard} keeps after {steps} steps is lost")
        expected = kept(shard, steps)
        if not all(torch.equal(row[name], expected[name]) for name in expected):
            raise Broken(f"what shard {shard} keeps after {steps} steps is torn")
        return row

    def act(self) -> bool:
        """Somebody does something; False when nobody can."""
        able = [worker for worker in self.workers if self.able(worker)]
        if not able:
            return False
        worker = self.dice.choice(able)
        if self.dice.random() < 0.02:
            self.die(worker)
        elif self.ending and self.dice.random() < 0.3:
            worker.left = True
            worker.held, worker.staged = self.slots.stamped(worker.steps), self.slots.stamped(worker.steps + 1)
        else:
            self.go_on(worker)
        return True

    def able(self, worker: Worker) -> bool:
        """At the end of a generation, a worker that waits can still leave."""
        if not worker.alive or worker.left or worker.busy or (worker.steps == STEPS and not self.ending):
            return False
        return self.ending or worker.stage not in ("voted", "sent") or self.all_are_past(worker)

    def all_are_past(self, worker: Worker) -> bool:
        order = ("contribute", "voted", "sent")
        position = (worker.steps, order.index(worker.stage))
        return all((other.steps, order.index(other.stage)) >= position for other in self.workers)

    def go_on(self, worker: Worker) -> None:
        if worker.stage == "contribute" and worker.steps < STEPS:
            for shard in worker.shards:
                self.found(shard, worker.steps)
            if not self.protocol.before_the_vote or self.write(worker):
                worker.stage = "voted"
        elif worker.stage == "voted" and self.all_are_past(worker):
            if self.protocol.before_the_vote or self.write(worker):
                worker.stage = "sent"
        elif worker.stage == "sent" and self.all_are_past(worker):
            worker.steps, worker.stage = worker.steps + 1, "contribute"

    def write(self, worker: Worker) -> bool:
        """Whether it lived to the end of it."""
        worker.busy = True
        self.depth += 1
        try:
            for shard in worker.shards:
                row = Interrupted(kept(shard, worker.steps + 1), lambda: self.meet(worker))
                self.slots.write(shard, worker.steps + 1, row)
        except Killed:
            return False
        finally:
            worker.busy = False
            self.depth -= 1
        return True

    def meet(self, worker: Worker) -> None:
        for _ in range(self.dice.randrange(4) if self.depth <= DEEPEST else 0):
            self.act()
        if self.dice.random() < 0.02:
            self.die(worker)
            raise Killed

    def die(self, worker: Worker) -> None:
        worker.alive = False
        self.kills += 1
        self.ending = True

    def regroup(self) -> None:
        """All have left or are dead. As the controller does it: what counts is what was reported."""
        living = [worker for worker in self.workers if worker.alive]
        top = max((worker.steps for worker in living), default=0)
        if living and top:
            held: set[int] = set()
            for worker in living:
                assert top - worker.steps <= 1
                held |= worker.held if worker.steps == top else worker.staged
            if held != set(range(SHARDS)):
                raise Broken(f"nobody has told that what {set(range(SHARDS)) - held} keep after {top} steps is there")
        joining = [Worker(top)] if living and len(living) < SHARDS and self.dice.random() < 0.5 else []
        self.workers = [*living, *joining]
        for worker in self.workers:
            worker.steps = top
        self.begin()


def hunt(seeds: range, protocol: Protocol) -> int:
    """Returns the kills. Raises Broken."""
    return sum(World(random.Random(seed), protocol).live() for seed in seeds)
