"""A model in stages beside the unsplit worker and beside torch's own pipelines (1F1B over gloo), turn by turn in one run.

    python -m benchmarks.stages [--sides unsplit 2 4 torch-2 torch-4] [--rows 4] [--rounds 5] [--model deep] [--profile RANK]

Each side is a set of processes that is there all the time; in a round each side trains `--steps` steps while the others wait.
A step has 8 micro-batches of `--rows` rows, AdamW, one thread per process. Columns, of which the ratios compare sides within
a round and are the median over the rounds:

    wall      seconds a step
    cpu       seconds of processor time a step, of all processes of the side together
    prepared  the largest resident set until the first step, of the process that needs most, MB above what it held when
              everything was imported
    peak      the same until the end

torch's side cuts the model by hand into equal numbers of blocks, has no tied output layer, and adds nothing up exactly. It
has no more members than stages, and all on one host.
"""

from __future__ import annotations

import argparse
import cProfile
import multiprocessing
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

from benchmarks import deep
from orchestrator.comm.topologies import build_schedule
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.comm.transports.sockets import Listener, connect
from orchestrator.config.plan import Plan
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.controller.events import Begin
from orchestrator.controller.rendezvous.schedules import groups_of
from orchestrator.controller.shard_assignment import assign_columns, assign_shards, assign_stages
from orchestrator.numerics import allocator, determinism
from orchestrator.worker.worker import Generation, ProcessServices, Worker

SHARDS = 8
SECRET = b"between the processes of one benchmark"
PATIENCE_S = 300.0
MODELS = {"deep": "benchmarks.deep:Deep", "wide": "benchmarks.deep:Wide"}


@dataclass(frozen=True)
class Side:
    """stages: 1 for the unsplit worker."""

    name: str
    stages: int
    is_torch: bool

    @classmethod
    def of(cls, name: str) -> Side:
        stages = name.removeprefix("torch-")
        return cls(name, 1 if stages == "unsplit" else int(stages), name.startswith("torch-"))


@dataclass(frozen=True)
class Chosen:
    """The choices that all sides have in common. profile: the rank whose functions are listed, -1 for none."""

    model: str
    rows: int
    steps: int
    rounds: int
    clip: float | None
    profile: int
    more: tuple[str, ...]
    folder: str

    @property
    def total(self) -> int:
        return self.steps * (self.rounds + 1)  # the first round warms up


def member(side: Side, rank: int, chosen: Chosen, pipe: Connection) -> None:
    """The life of one process. It tells where it can be reached, what it held when it was prepared, and after each round of
    steps the time and the processor time that it took."""
    determinism.prepare_thread(1, "cpu")
    before = _resident("VmRSS:")
    if side.is_torch:
        _torch(side, rank, chosen, pipe, before)
    else:
        _ours(side, rank, chosen, pipe, before)
    pipe.close()


class _Rounds:
    """Tells the parent of each round, and waits until it says to go on."""

    def __init__(self, pipe: Connection, steps: int, before: int) -> None:
        self._pipe, self._steps, self._before = pipe, steps, before
        self._prepared = _resident("VmHWM:")
        self._done = 0

    def wait(self) -> None:
        self._pipe.recv()
        self._since = time.perf_counter(), time.process_time()

    def step(self) -> None:
        self._done += 1
        if self._done % self._steps:
            return
        wall, cpu = time.perf_counter() - self._since[0], time.process_time() - self._since[1]
        held = [size - self._before for size in (self._prepared, _resident("VmHWM:"))]
        self._pipe.send((wall / self._steps, cpu / self._steps, *held))
        self.wait()


def _ours(side: Side, rank: int, chosen: Chosen, pipe: Connection, before: int) -> None:
    plan, regions, listener = _plan(side, chosen), SharedRegions(), Listener(SECRET)
    rounds: list[_Rounds] = []

    def emit(entry: dict[str, Any]) -> None:
        if "trace" in entry:
            rounds[0].step()

    worker = Worker(plan, regions, ProcessServices(emit=emit))
    run_manifest = worker.prepare()
    pipe.send(listener.addresses)
    peers = {peer: each["unix"] for peer, each in enumerate(pipe.recv()) if peer != rank}
    rounds.append(_Rounds(pipe, chosen.steps, before))
    rounds[0].wait()
    generation = _generation(plan, run_manifest)
    with _profiled(chosen.profile == rank, side.name):
        worker.run(generation, rank, lambda: connect(listener, rank, 0, peers, regions, PATIENCE_S))
    listener.close()
    regions.close()


def _plan(side: Side, chosen: Chosen) -> Plan:
    conf = {
        "run": {"steps": chosen.total, "seed": 1},
        "pipeline": {"target": MODELS[chosen.model]},
        "data": {"shards": SHARDS, "batch_size": SHARDS * chosen.rows},
        "cluster": {"workers": side.stages, "stages": side.stages, "step_timeout_s": PATIENCE_S},
        "optimizer": {"name": "adamw", "lr": 1e-4},
        "gradient": {"clip": chosen.clip},
        "trace": {"digest_every": 0},
    }
    return resolve(load([conf], chosen.more if side.stages > 1 else ()))


def _generation(plan: Plan, run_manifest: Mapping[str, Any]) -> Generation:
    workers, stages = plan.cluster.members.start, plan.cluster.members.stages
    schedule = build_schedule("ring", workers)
    stage_of = assign_stages([None] * workers, stages) if stages > 1 else ()
    shards = assign_columns(plan.data.shards, stage_of) if stages > 1 else assign_shards(plan.data.shards, workers)
    begin = Begin(
        generation=0,
        members=tuple(range(workers)),
        shards=shards,
        run_manifest=run_manifest,
        nodes=(0,) * workers,
        stages=stage_of,
    )
    return Generation(begin, schedule, groups=groups_of(begin, plan.exchange))


def _torch(side: Side, rank: int, chosen: Chosen, pipe: Connection, before: int) -> None:
    """As the documentation of torch has it."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    allocator.keep_freed_memory()  # as our workers do
    pipe.send(None)
    pipe.recv()
    meeting = f"file://{chosen.folder}/{side.name}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=side.stages)
    torch.manual_seed(0)
    whole = deep.Deep()
    data, _ = whole.datasets()
    model = deep.part(whole.model(), rank, side.stages)  # type: ignore[arg-type]
    stage = PipelineStage(model, rank, side.stages, torch.device("cpu"))
    schedule = Schedule1F1B(
        stage, SHARDS, loss_fn=lambda made, wanted: functional.cross_entropy(made.flatten(0, 1), wanted.flatten())
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rounds = _Rounds(pipe, chosen.steps, before)
    rounds.wait()
    for _ in range(chosen.total):
        rows = torch.randint(0, len(data), (SHARDS * chosen.rows,))
        inputs, targets = data.tensors[0][rows], data.tensors[1][rows]
        optimizer.zero_grad()
        wanted: dict[str, Any] = {"target": targets} if rank == side.stages - 1 else {}
        schedule.step(*([inputs] if rank == 0 else []), **wanted)
        if chosen.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), chosen.clip)  # of this stage alone
        optimizer.step()
        rounds.step()
    dist.destroy_process_group()


class _profiled:  # noqa: N801
    def __init__(self, wanted: bool, name: str) -> None:
        self._profile = cProfile.Profile() if wanted else None
        self._name = name

    def __enter__(self) -> None:
        if self._profile:
            self._profile.enable()

    def __exit__(self, *_: object) -> None:
        if self._profile:
            self._profile.disable()
            print(f"--- {self._name}", file=sys.stderr)
            pstats.Stats(self._profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages")
    parser.add_argument("--sides", nargs="+", default=["unsplit", "2", "4", "torch-2", "torch-4"])
    parser.add_argument("--model", choices=MODELS, default="deep")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clip", type=float, default=None)
    parser.add_argument("--profile", type=int, default=-1)
    parser.add_argument(
        "--more", nargs="*", default=[], help="settings of the sides with stages, such as run.recompute=true"
    )
    given = parser.parse_args(arguments)
    determinism.prepare_environment()
    sides = [Side.of(name) for name in given.sides if given.model == "deep" or not name.startswith("torch")]
    with tempfile.TemporaryDirectory() as folder:
        chosen = Chosen(
            given.model, given.rows, given.steps, given.rounds, given.clip, given.profile, tuple(given.more), folder
        )
        found = _compare(sides, chosen)
    first = sides[0].name
    print(f"{'side':10}{'wall s':>9}{f'/ {first}':>12}{'cpu s':>9}{f'/ {first}':>12}{'prepared':>10}{'peak':>8}")
    for side in sides:
        walls, cpus = ([each[i] for each in found[side.name]] for i in (0, 1))
        ratios = [
            statistics.median(each[i] / base[i] for each, base in zip(found[side.name], found[first], strict=True))
            for i in (0, 1)
        ]
        *_, prepared, peak = found[side.name][-1]
        wall, cpu = statistics.median(walls), statistics.median(cpus)
        print(
            f"{side.name:10}{wall:9.3f}{ratios[0]:12.3f}{cpu:9.3f}{ratios[1]:12.3f}{prepared / 1e6:10.0f}{peak / 1e6:8.0f}"
        )


Round = tuple[float, float, int, int]  # wall and processor time of a step, resident memory when prepared and at most


def _compare(sides: Sequence[Side], chosen: Chosen) -> dict[str, list[Round]]:
    """By side, its rounds but the first, which warms up."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, list[Connection]] = {}
    processes = []
    for side in sides:
        for rank in range(side.stages):
            own, theirs = context.Pipe()
            process = context.Process(target=member, args=(side, rank, chosen, theirs), daemon=True)
            process.start()
            processes.append(process)
            theirs.close()
            pipes.setdefault(side.name, []).append(own)
        addresses = [pipe.recv() for pipe in pipes[side.name]]
        for pipe in pipes[side.name]:
            pipe.send(addresses)
    found: dict[str, list[Round]] = {side.name: [] for side in sides}
    for _ in range(chosen.rounds + 1):
        for side in sides:
            found[side.name].append(_round(pipes[side.name]))
    for each in pipes.values():
        for pipe in each:
            pipe.send("end")
    for process in processes:
        process.join(PATIENCE_S)
    return {name: rounds[1:] for name, rounds in found.items()}


def _round(pipes: Sequence[Connection]) -> Round:
    for pipe in pipes:
        pipe.send("go on")
    told = [pipe.recv() for pipe in pipes]
    wall, cpu = max(each[0] for each in told), sum(each[1] for each in told)
    return wall, cpu, max(each[2] for each in told), max(each[3] for each in told)


if __name__ == "__main__":
    main()
