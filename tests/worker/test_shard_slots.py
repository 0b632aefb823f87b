"""The state of shards outlives the workers that wrote it: nothing that a living run needs is lost, whoever is killed, and
when."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from orchestrator.numerics import cuda
from orchestrator.worker.member import lasting_memory, shard_slots
from orchestrator.worker.member.shard_slots import ShardSlots, SlotRow
from orchestrator.worker.model.shard_states import ShardStates
from tests.products import thinned
from tests.refusals import refused
from tests.worker.slot_schedules import Broken, OneSlot, Protocol, StampedFirst, hunt

SCHEDULES = [50, 20_000]


@pytest.fixture
def memory() -> Iterator[int]:
    fd = lasting_memory.created()
    yield fd
    os.close(fd)


def row(value: float) -> dict[str, torch.Tensor]:
    return {"kept": torch.full((5,), value), "counts": torch.tensor([int(value)])}


def slots_of(memory: int) -> ShardSlots:
    slots = ShardSlots(memory, 3, row(0))
    slots.reserve(range(3))
    return slots


# ---- the slots themselves


def test_another_worker_finds_what_was_written(memory: int) -> None:
    slots_of(memory).write(1, 7, row(7))
    other = slots_of(memory)
    found = other.read(1, 7)
    assert found is not None
    assert all(torch.equal(found[name], tensor) for name, tensor in row(7).items())
    assert other.stamped(7) == {1}
    assert other.read(1, 6) is None
    assert other.read(0, 7) is None


def test_each_process_page_locks_what_it_copies_to_from_a_card(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the slots of a shard that another worker has hosted before it."""
    locked: list[int] = []
    monkeypatch.setattr(cuda, "page_lock", lambda address, _: locked.append(address))
    slots_of(memory).write(1, 7, row(7))
    assert not locked
    following = ShardSlots(memory, 3, row(0))
    monkeypatch.setattr(following, "_from_card", True)
    following.reserve((1,))
    following.reserve((1, 2))
    assert locked == [following._memory.address + following._start(shard, 0) for shard in (1, 2)]


def test_two_steps_are_there_and_a_third_takes_the_place_of_the_first(memory: int) -> None:
    slots = slots_of(memory)
    for steps in (1, 2, 3):
        slots.write(0, steps, row(steps))
    assert [slots.stamped(steps) for steps in range(5)] == [set(), set(), {0}, {0}, set()]


def test_a_write_that_death_cut_off_leaves_the_other_slot_and_no_stamp(memory: int) -> None:
    slots = slots_of(memory)
    for steps in (1, 2):
        slots.write(0, steps, row(steps))
    with pytest.raises(KeyError):
        slots.write(0, 3, {"kept": torch.ones(5)})
    assert slots.read(0, 1) is slots.read(0, 3) is None
    assert slots.read(0, 2) is not None


def test_nothing_is_written_twice(memory: int) -> None:
    slots, state = slots_of(memory), row(1)
    slots.write(0, 1, state)
    slots._stamps.flags.writeable = False  # what is there is not torn, not even for a moment
    slots.write(0, 1, state)
    assert slots.stamped(1) == {0}


def test_a_step_that_is_repeated_with_other_samples_leaves_the_last_ones(memory: int) -> None:
    """As of a live stream, one of whose readers died before it had written its samples."""
    mine = after_steps(states_in(memory), (0,), 2)
    for value in (3, 4):
        mine.stage(0, row(value))
        mine.secure()
        mine.discard()
    other = after_steps(states_in(memory), (1,), 2)
    other.follow(2, 3)
    assert other.of(0)["counts"] == 4


def test_memory_that_is_not_there_is_an_error_before_a_step(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    slots_of(memory).write(1, 1, row(1))
    monkeypatch.setattr(shard_slots, "available_bytes", lambda: 0)
    other = ShardSlots(memory, 3, row(0))
    other.reserve([1])  # it is reserved already, by whoever has written there
    with pytest.raises(MemoryError, match="what 2 shards keep"):
        other.reserve((0, 1, 2))


def test_rows_of_another_kind_are_refused(memory: int) -> None:
    slots_of(memory)
    with refused("replica.size-of-slots"):
        ShardSlots(memory, 3, {"kept": torch.zeros(5000)})


def test_memory_is_opened_by_the_process_that_holds_it(memory: int, tmp_path: Path) -> None:
    slots_of(memory).write(2, 1, row(1))
    fd = lasting_memory.opened(os.getpid(), memory)
    assert slots_of(fd).stamped(1) == {2}
    os.close(fd)
    with (tmp_path / "file").open("w") as other, pytest.raises(FileNotFoundError, match="another file"):
        lasting_memory.opened(os.getpid(), other.fileno())


# ---- states that lie in them


def states_in(memory: int) -> ShardStates:
    states = ShardStates(lambda: row(0))
    states.outlive(lambda _: slots_of(memory))
    return states


def after_steps(states: ShardStates, shards: tuple[int, ...], steps: int) -> ShardStates:
    states.settle(shards)
    for step in range(steps):
        for shard in shards:
            states.stage(shard, row(100 * shard + step + 1))
        states.secure()
        states.commit()
    return states


def test_a_worker_holds_what_others_have_written(memory: int) -> None:
    after_steps(states_in(memory), (0, 1), 2)
    mine = after_steps(states_in(memory), (2,), 2)
    assert mine.held == (0, 1, 2)
    assert mine.of(1)["counts"] == 102
    assert mine.staged == ()


def test_what_is_staged_is_there_before_the_step_commits_and_counts_only_then(memory: int) -> None:
    dying = after_steps(states_in(memory), (0,), 2)
    mine = after_steps(states_in(memory), (1,), 2)
    dying.stage(0, row(3))
    assert not mine.staged
    dying.secure()
    assert list(mine.staged) == [0]
    assert mine.of(0)["counts"] == 2
    mine.follow(2, 3)
    assert mine.of(0)["counts"] == 3


def test_states_of_a_lone_worker_go_there_before_another_one_takes_part(memory: int) -> None:
    mine = ShardStates(lambda: row(0))
    mine.outlive(lambda _: ShardSlots(memory, 3, row(0)), alone=True)
    after_steps(mine, (0, 1), 3)
    other = states_in(memory)
    other.follow(0, 3)
    assert len(other.held) == 0
    mine.outlive(lambda _: None, alone=False)
    assert [*other.held] == [0, 1]
    assert other.of(1)["counts"] == 103


def test_states_from_a_card_are_there_when_all_have_arrived(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    slots = slots_of(memory)
    stream = SimpleNamespace(synchronize=lambda: waits.append(int(slots._stamps.max())))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(slots, "_from_card", True)
    for shard in range(3):
        slots.write(shard, 1, row(1))
    assert slots.stamped(1) == set()
    slots.arrive()
    assert slots.stamped(1) == {0, 1, 2}
    slots.arrive()
    assert waits == [0]


def test_a_row_that_came_from_elsewhere_is_put_where_it_outlives_its_host(memory: int) -> None:
    mine = states_in(memory)
    mine.follow(0, 5)
    mine.adopt({1: row(5)})
    mine.settle((1,))
    other = states_in(memory)
    other.follow(0, 5)
    assert other.held == (1,)


def test_without_such_memory_states_are_where_their_host_is() -> None:
    states = ShardStates(lambda: row(0))
    states.outlive(lambda _: None)
    assert after_steps(states, (0,), 1).held == (0,)


# ---- no schedule of kills loses anything


@pytest.mark.slow
@pytest.mark.parametrize("schedules", thinned(SCHEDULES, 2))
def test_no_schedule_of_kills_loses_or_tears_what_a_shard_keeps(schedules: int) -> None:
    assert hunt(range(schedules), Protocol()) > schedules / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "found"),
    [
        pytest.param(Protocol(before_the_vote=True), "is lost|is there", marks=pytest.mark.long),
        (Protocol(slots=OneSlot), "is lost|is there"),
        (Protocol(slots=StampedFirst), "is torn"),
    ],
    ids=["written before the vote", "one slot", "stamped first"],
)
def test_schedules_find_a_protocol_that_does(protocol: Protocol, found: str) -> None:
    with pytest.raises(Broken, match=found):
        hunt(range(2000), protocol)


# ---- true processes


@pytest.mark.slow
@pytest.mark.parametrize("kills", thinned([1, 20], 2))
def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_slot(memory: int, kills: int) -> None:
    context = multiprocessing.get_context("fork")  # which imports nothing anew
    slots = ShardSlots(memory, 1, large(0))
    reached = 0
    for _ in range(kills):
        here, there = context.Pipe()
        process = context.Process(target=_write_until_killed, args=(there, os.getpid(), memory, reached))
        process.start()
        here.recv()
        while max(_stamps(slots)) < reached + 20:
            assert process.is_alive()
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        found = {steps: slots.read(0, steps) for steps in _stamps(slots) if steps}
        assert 1 <= len(found) <= 2
        for steps, each in found.items():
            assert each is not None
            assert all(torch.equal(each[name], tensor) for name, tensor in large(steps).items())
        reached = max(found)
    assert reached > 0


def large(value: float) -> SlotRow:
    return {name: torch.full((20_000,), float(value)) for name in "abc"}


def _stamps(slots: ShardSlots) -> list[int]:
    stamps: list[int] = slots._stamps[0].tolist()
    return stamps


def _write_until_killed(pipe: Connection, pid: int, memory: int, reached: int) -> None:
    torch.set_num_threads(1)
    slots = ShardSlots(lasting_memory.opened(pid, memory), 1, large(0))
    slots.reserve([0])
    pipe.send("ready")
    while True:
        reached += 1
        slots.write(0, reached, large(reached))
