"""Slots for the messages of a pipeline in their sender's memory: how many a member needs, and which message takes which.

Between members of one host a receive is a view of the sender's memory, so a slot is free again only when its sender knows
that the receiver needs it no more. The receiver needs activation and gradient of a shard until it has taken that shard
backward. The sender knows it from a message that was sent after that, by whatever way it came (Lamport, "Time, clocks, and
the ordering of events in a distributed system", 1978). At the end of a step, where all have voted, all slots are free.

The size of a slot is not known here; it follows from the border between the two stages, which the engine knows.
"""

from __future__ import annotations

from orchestrator.comm.pipeline_schedules.flow import Hosts, Kind, Programs, Task, in_causal_order, next_task

Slots = dict[Task, int]  # by the task that sends


def border_slots(hosts: Hosts, programs: Programs) -> tuple[Slots, ...]:
    """By rank, the slot of each message that it sends; activations and gradients have slots of their own, numbered from 0.

    Raises ValueError where programs wait for each other for ever."""
    where = {task: (rank, place) for rank, program in enumerate(programs) for place, task in enumerate(program)}
    heard = _heard(hosts, programs)

    def is_done(task: Task, known: tuple[int, ...]) -> bool:
        rank, place = where[task]
        return known[rank] > place

    found: list[Slots] = []
    for rank, program in enumerate(programs):
        lying: dict[Kind, dict[int, Task]] = {
            "forward": {},
            "backward": {},
        }  # slot -> the task until whose end it is needed
        slots: Slots = {}
        for task, known in zip(program, heard[rank], strict=True):
            receiver = next_task(task, len(hosts))
            if receiver is None or hosts[receiver.stage][task.shard] == rank:
                continue
            here = {slot: last for slot, last in lying[task.kind].items() if not is_done(last, known)}
            slot = next(slot for slot in range(len(here) + 1) if slot not in here)
            lying[task.kind] = {**here, slot: receiver._replace(kind="backward")}
            slots[task] = slot
        found.append(slots)
    return tuple(found)


def numbers(slots: Slots) -> dict[Kind, int]:
    """How many slots a member needs for activations (forward) and for gradients (backward)."""
    found: dict[Kind, int] = {"forward": 0, "backward": 0}
    for task, slot in slots.items():
        found[task.kind] = max(found[task.kind], slot + 1)
    return found


def _heard(hosts: Hosts, programs: Programs) -> list[list[tuple[int, ...]]]:
    """For each rank and each task of its program: how many tasks of each rank it knows to be done when it has this one's
    input."""
    clocks: dict[Task, tuple[int, ...]] = {}
    own: list[tuple[int, ...]] = [(0,) * len(programs) for _ in programs]
    heard: list[list[tuple[int, ...]]] = [[] for _ in programs]
    for rank, task, needed in in_causal_order(hosts, programs):
        known = own[rank] if needed is None else tuple(map(max, own[rank], clocks[needed]))
        heard[rank].append(known)
        own[rank] = clocks[task] = (*known[:rank], known[rank] + 1, *known[rank + 1 :])
    return heard
