"""What it costs to know where time goes: the turns of the account in a step, times what a turn takes.

    python -m benchmarks.times [--steps 40]

Each layout is trained by members that are threads of this process, as in the tests; the turns of worker 0 are counted. What a
turn takes is measured between two small products, with cold caches, as it is in a run. Beside it stands the processor time of a
step of one worker (its thread's own, which a busy machine disturbs least), so the share is one of work, not of waiting.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from orchestrator.numerics.determinism import prepare_environment

prepare_environment()

from orchestrator.control.shard_assignment import assign_shards  # noqa: E402
from orchestrator.engine.member.heartbeat import Heartbeat  # noqa: E402
from orchestrator.engine.member.time_account import TimeAccount  # noqa: E402
from orchestrator.engine.worker import Generation, ProcessServices, Server, Worker  # noqa: E402
from orchestrator.plan.resolve import resolve  # noqa: E402
from orchestrator.records import times  # noqa: E402
from orchestrator.settings import load  # noqa: E402
from orchestrator.topologies import build_schedule  # noqa: E402
from orchestrator.transports.memory import Hub, LocalRegions  # noqa: E402

LAYOUTS = [
    ("digits", 1, "ring"),
    ("digits", 4, "ring"),
    ("digits", 8, "ring"),
    ("digits", 4, "peer_to_peer"),
    ("characters", 4, "ring"),
]
_TURNS = 20_000


class Counted(TimeAccount):
    turns = 0

    def _turn(self, kind: int, step: int | None, shard: int | None) -> None:
        self.turns += 1
        super()._turn(kind, step, shard)


def turn_s() -> float:
    """Of one turn, between two products that leave little of it in the caches; the median."""
    account, weights = TimeAccount(), torch.randn(256, 256)
    account.turn("state_transfer")
    found = []
    for number in range(_TURNS // 10):
        torch.mm(weights, weights)
        began = time.thread_time_ns()
        account.turn("compute" if number % 2 else "exchange")
        middle = time.thread_time_ns()
        found.append(middle - began - _clock_ns())
    return statistics.median(found) * 1e-9


def _clock_ns() -> int:
    began = time.thread_time_ns()
    return time.thread_time_ns() - began


def run(conf: str, workers: int, topology: str, steps: int) -> tuple[float, float]:
    """(turns in a step of worker 0, processor seconds of its step)."""
    from concurrent.futures import ThreadPoolExecutor

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
    generation = Generation(0, schedule, assign_shards(plan.data.shards, workers))
    with ThreadPoolExecutor(schedule.members) as pool:
        lives = [
            pool.submit(member.run, generation, rank, lambda rank=rank: hub.transport(rank), manifest)
            for rank, member in enumerate(members)
        ]
        for life in lives:
            life.result()
    busy = times.added([each for each in told if each.get("event") == "times"], "busy")
    return account.turns / steps, sum(busy.values()) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    each = turn_s()
    print(f"a turn: {1e6 * each:.2f} us")
    print("| run | workers | turns per step | a step's own work, ms | share |\n|---|---:|---:|---:|---:|")
    for conf, workers, topology in LAYOUTS:
        turns, busy = run(conf, workers, topology, steps)
        print(f"| {conf}, {topology} | {workers} | {turns:.1f} | {1e3 * busy:.2f} | {turns * each / busy:.2%} |")


if __name__ == "__main__":
    main()
