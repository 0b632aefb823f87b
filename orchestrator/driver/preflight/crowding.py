"""The price of more workers than a machine has processors or memory for. The bits are the same, so nothing is refused: a large
layout may be tried on a small machine.

Up to two processes for each processor are no news: the line that tells of the start has the number of cores, and while one
waits for others, another one computes. With more, the turns that all wait for are what a step consists of.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from orchestrator.comm.transports.available_memory import available_bytes
from orchestrator.common.figures import sized
from orchestrator.config.plan import Plan

_EACH = 2  # processes for a processor that are not worth a word
_OWN_BYTES = 60_000_000  # of a forked worker beside its model and batches; 50 to 65 MB were measured
_OF_A_PARAMETER = 2 * 4  # itself and its gradient, in float32


def notes(plan: Plan, parameters: int | None) -> list[str]:
    """For the user. parameters: elements of the model, None where only a worker can tell. A Ray that is joined is told of by
    its own nodes."""
    cluster = plan.cluster
    if cluster.address is not None:
        return []
    held = 0 if parameters is None or plan.run.compute.device != "cpu" else parameters // cluster.members.stages
    needed = _OWN_BYTES + held * _OF_A_PARAMETER
    processes = cluster.members.total(cluster.members.most)
    who = f"{processes} workers{' and servers' * bool(cluster.members.servers)}"
    available = available_bytes()
    return [*sentences(who, processes, needed, len(os.sched_getaffinity(0)), available), *_in_turns(plan, available)]


def _in_turns(plan: Plan, available: int) -> Iterator[str]:
    """Says it if workers of stages cannot all have the whole model at once."""
    needed, members = plan.cluster.preparing_bytes, plan.cluster.members
    if needed is None:
        return
    from orchestrator.worker.pipeline_parallel import turns  # each launch would wait for what it imports

    workers = members.total(members.start)
    at_once = turns.at_once(available, needed, workers)
    if at_once < workers:
        yield (
            f"{at_once} of {workers} workers prepare{'s' * (at_once == 1)} at a time: each has the whole model then, which "
            f"takes {sized(needed)}, and {sized(available)} of memory are free; later each has its stage alone"
        )


def sentences(who: str, processes: int, needed: int, cores: int, available: int) -> Iterator[str]:
    """Warnings where processes share too few cores or too little memory. who: all of them, in words; needed: bytes that
    each process has at least."""
    if processes > _EACH * cores:
        turns = -(-processes // cores)
        yield (
            f"{who} on {cores} core{'s' * (cores > 1)}: each step waits until all had their turn, "
            f"{turns} on a core, so it takes longer than with {cores}; the bits are the same"
        )
    if processes * needed > available:
        yield (
            f"{who} take at least {sized(processes * needed)} of memory, {sized(needed)} each, and "
            f"{sized(available)} are free: use fewer, or the kernel may end some of them"
        )
