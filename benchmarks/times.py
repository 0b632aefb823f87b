"""The cost of knowing the use of time: the turns of the account in a step, times the cost of a turn.

    python -m benchmarks.times [--steps 40]

Each layout is trained by members that are threads of this process, as in the tests; the turns of worker 0 are counted. A turn
is measured between two small products, with cold caches, as it is in a run. Beside it stands the processor time of a step of
one worker (its thread's own, which a busy machine disturbs least), so the share is one of work, not of waiting.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from orchestrator.controller.events import Begin
from orchestrator.numerics.determinism import prepare_environment

prepare_environment()

from orchestrator.comm.topologies import build_schedule  # noqa: E402
from orchestrator.config.resolve import resolve  # noqa: E402
from orchestrator.config.settings import load  # noqa: E402
from orchestrator.controller.shard_assignment import assign_shards  # noqa: E402
from orchestrator.records import times  # noqa: E402
from orchestrator.records.progress import Activity  # noqa: E402
from orchestrator.worker.member.heartbeat import Heartbeat  # noqa: E402
from orchestrator.worker.member.time_account import TimeAccount  # noqa: E402
from orchestrator.worker.worker import Generation, ProcessServices, Server, Worker  # noqa: E402
from tests.comm.transports.memory import Hub, LocalRegions  # noqa: E402

LAYOUTS = [
    ("digits", 1, "ring"),
    ("digits", 4, "ring"),
    ("digits", 8, "ring"),
    ("digits", 4, "peer_to_peer"),
    ("characters", 4, "ring"),
]
_TURNS = 2_000


class Counted(TimeAccount):
    turns = around_waits = 0

    def _turn(self, kind: int, step: int | None, shard: int | None, now: Any, *, busy: bool = True) -> None:
        self.turns += busy
        self.around_waits += not busy
        super()._turn(kind, step, shard, now, busy=busy)


def turns_s() -> tuple[float, float]:
    """The seconds of one turn, and of one around a wait, between two products that leave little of it in the caches;
    medians."""
    account, weights = TimeAccount(), torch.randn(256, 256)
    account.turn("state_transfer")

    def timed(action: Callable[[], object]) -> float:
        torch.mm(weights, weights)
        nothing = time.perf_counter_ns()
        began = time.perf_counter_ns()
        action()
        return (time.perf_counter_ns() - began - (began - nothing)) * 1e-9

    activities: tuple[Activity, Activity] = ("compute", "exchange")
    turns = [timed(partial(account.turn, activities[number % 2])) for number in range(_TURNS)]
    waits = [timed(account.waits) for _ in range(_TURNS)]
    return statistics.median(turns), statistics.median(waits)


def run(conf: str, workers: int, topology: str, steps: int) -> tuple[float, float, float]:
    """(turns in a step of worker 0, those around waits, processor seconds of its step)."""
    overrides = [
        f"run.steps={steps}",
        f"cluster.workers={workers}",
        f"topology={topology}",
        "evaluation.every=null",
        "run.arithmetic=native",
    ]
    plan = resolve(load([conf], overrides))
    schedule = build_schedule(topology, workers)
    hub, regions = Hub(schedule.members), [LocalRegions() for _ in range(schedule.members)]
    told: list[dict[str, Any]] = []
    account = Counted()
    members: list[Any] = []
    for rank in range(schedule.members):
        own = ProcessServices(Heartbeat(times=account), told.append) if rank == 0 else ProcessServices()
        members.append((Worker if rank < workers else Server)(plan, regions[rank], own))
    manifest, *_ = [member.prepare() for member in members]
    shards, everyone = assign_shards(plan.data.shards, workers), tuple(range(schedule.members))
    begin = Begin(generation=0, members=everyone, shards=shards, nodes=(0,) * schedule.members, run_manifest=manifest)
    generation = Generation(begin, schedule)
    with ThreadPoolExecutor(schedule.members) as pool:
        lives = [
            pool.submit(member.run, generation, rank, lambda rank=rank: hub.transport(rank))
            for rank, member in enumerate(members)
        ]
        for life in lives:
            life.result()
    busy = times.added([each for each in told if each.get("event") == "times"], "busy")
    return account.turns / steps, account.around_waits / steps, sum(busy.values()) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    turn, wait = turns_s()
    print(f"a turn: {1e6 * turn:.2f} us; around a wait: {1e6 * wait:.2f} us")
    print("| run | workers | turns | around waits | a step's own work, ms | share |\n|---|---:|---:|---:|---:|---:|")
    for conf, workers, topology in LAYOUTS:
        turns, waits, busy = run(conf, workers, topology, steps)
        share = (turns * turn + waits * wait) / busy
        print(f"| {conf}, {topology} | {workers} | {turns:.1f} | {waits:.1f} | {1e3 * busy:.2f} | {share:.2%} |")


if __name__ == "__main__":
    main()
