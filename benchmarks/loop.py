"""The cost of the engine beside a plain PyTorch loop: one worker, the same micro-batches, both in one process, turn by turn.

    python -m benchmarks.loop [--steps 40] [--profile]

engine   `worker.worker.Worker`, all of a member's life but Ray: on its own thread here, with the memory and the votes of a
         real run of one worker. After each step it hands its line of the trace over, and there the plain loop takes its turn.
plain    what one would write by hand: model.train(), for each micro-batch loss and backward, clip, optimizer.step().
         It reads the same samples in the same order through the same two lines, so loading is no part of the difference.

Both compute with deterministic algorithms and the threads of the configuration. Not measured: Ray, the driver, evaluation.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from orchestrator.controller.events import Begin
from orchestrator.numerics.determinism import prepare_environment

prepare_environment()

from orchestrator.adapters.table import find  # noqa: E402
from orchestrator.comm.topologies import build_schedule  # noqa: E402
from orchestrator.config.resolve import resolve  # noqa: E402
from orchestrator.config.settings import Settings, load  # noqa: E402
from orchestrator.controller.shard_assignment import assign_shards  # noqa: E402
from orchestrator.data.fetching import fetch  # noqa: E402
from orchestrator.data.order import Epochs  # noqa: E402
from orchestrator.data.sampling.orders import shuffled  # noqa: E402
from orchestrator.numerics.streams import seeded  # noqa: E402
from orchestrator.optim import optimizers  # noqa: E402
from orchestrator.worker.worker import Generation, ProcessServices, Worker  # noqa: E402
from tests.comm.transports.memory import Hub, LocalRegions  # noqa: E402

PIPELINES = ("characters", "digits")
REDUCTIONS = ("exact", "fast")
WARM_UP = 4  # steps that are not counted: the first fits the grid and computes twice


class Instant(NamedTuple):
    """Seconds: on the wall, and of this thread's own computing, which a busy machine disturbs less."""

    wall: float
    computing: float

    @classmethod
    def now(cls) -> Instant:
        return cls(time.perf_counter(), time.thread_time())

    def since(self, earlier: Instant) -> Instant:
        return Instant(self.wall - earlier.wall, self.computing - earlier.computing)


class Pair(NamedTuple):
    """The time of one step, here and there, one right after the other."""

    engine: Instant
    plain: Instant


class PlainLoop:
    """The loop that one would write by hand."""

    def __init__(self, settings: Settings) -> None:
        self._pipeline = find(settings.pipeline.source)(**settings.pipeline.args)
        with seeded(settings.run.seed, "model"):
            self._model = self._pipeline.model().train()
        train: Any  # whose length is known, as map-style datasets have it
        train, _ = self._pipeline.datasets()
        self._train = train
        assert settings.optimizer.name is not None
        self._optimizer = optimizers.build(settings.optimizer.name, settings.optimizer.options, self._model)
        self._shards = settings.data.shards
        self._clip = settings.gradient.clip
        self._sampler = shuffled(Epochs(settings.run.seed, len(self._train), settings.data.batch_size, self._shards))

    def step(self, step: int) -> float:
        """The mean loss, read once as every training loop does."""
        self._optimizer.zero_grad()
        total = torch.zeros(())
        for shard in range(self._shards):
            batch = fetch(self._train, self._sampler.indices(step, shard), self._pipeline.collate)
            loss: Any = self._pipeline.loss(self._model, batch) / self._shards
            loss.backward()
            total += loss.detach()
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._optimizer.step()
        return total.item()


def run_engine(settings: Settings, emit: Callable[[dict[str, Any]], None]) -> None:
    """All steps of a run of one worker; `emit` gets each line of the trace."""
    regions = LocalRegions()
    hub = Hub(1)
    worker = Worker(resolve(settings), regions, ProcessServices(emit=emit))
    run_manifest = {**worker.prepare(), "evaluation_batches": 0}
    schedule = build_schedule(settings.topology.name, 1)
    shards = assign_shards(settings.data.shards, 1)
    begin = Begin(generation=0, members=(0,), shards=shards, nodes=(0,), run_manifest=run_manifest)
    worker.run(Generation(begin, schedule), 0, lambda: hub.transport(0, regions))


def side_by_side(settings: Settings) -> list[Pair]:
    """A step of the engine, a step of the plain loop, and so on."""
    plain = PlainLoop(settings)
    pairs: list[Pair] = []
    resumed = Instant.now()

    def take_turn(entry: dict[str, Any]) -> None:
        nonlocal resumed
        if "trace" not in entry:
            return
        ended, step = Instant.now(), entry["trace"]["step"]
        plain.step(step)
        now = Instant.now()
        if step >= WARM_UP:
            pairs.append(Pair(ended.since(resumed), now.since(ended)))
        resumed = Instant.now()

    run_engine(settings, take_turn)
    return pairs


def profile(settings: Settings) -> None:
    """The use of the engine's time: its own functions with all they call, then the functions that take longest themselves."""
    profiler = cProfile.Profile()

    def count(entry: dict[str, Any]) -> None:
        if entry.get("trace", {}).get("step") == WARM_UP:
            profiler.enable()

    run_engine(settings, count)
    profiler.disable()
    found = pstats.Stats(profiler).strip_dirs()
    found.sort_stats("cumulative").print_stats(
        "(exact|replica|local trainer|work|exchange|lockstep|step reports|streams|clipping)", 24
    )
    found.sort_stats("tottime").print_stats(16)


def settings_of(name: str, reduction: str, steps: int) -> Settings:
    overrides = (
        f"reduction={reduction}",
        f"run.steps={steps}",
        "cluster.workers=1",
        "topology=ring",
        "run.arithmetic=native",
    )
    return load([name], [*overrides, "trace.digest_every=0", "evaluation.every=null"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop")
    parser.add_argument("--steps", type=int, default=40, help="counted steps of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="show where the engine's time goes instead")
    chosen = parser.parse_args(arguments)
    if chosen.profile:
        for name in PIPELINES:
            print(name)
            profile(settings_of(name, "exact", chosen.steps + WARM_UP))
        return
    heading = ("pipeline", "reduction", "engine ms", "plain ms", "ratio", "computing")
    print("".join(f"{title:>11}" for title in heading) + "   computing, round by round")
    for name in PIPELINES:
        rounds: dict[str, list[list[Pair]]] = {reduction: [] for reduction in REDUCTIONS}
        for _ in range(chosen.rounds):
            for reduction in REDUCTIONS:
                rounds[reduction].append(side_by_side(settings_of(name, reduction, chosen.steps + WARM_UP)))
        for reduction, found in rounds.items():
            print(f"{name:>11}{reduction:>11}{_row(found)}", flush=True)


def _row(rounds: Sequence[Sequence[Pair]]) -> str:
    """Medians; the ratios are those of neighbouring steps."""
    pairs = [pair for each in rounds for pair in each]
    engine = statistics.median(pair.engine.wall for pair in pairs)
    plain = statistics.median(pair.plain.wall for pair in pairs)
    ratio = statistics.median(pair.engine.wall / pair.plain.wall for pair in pairs)
    each = " ".join(f"{_computing(one):.3f}" for one in rounds)
    return f"{engine * 1e3:>11.2f}{plain * 1e3:>11.2f}{ratio:>11.3f}{_computing(pairs):>11.3f}   {each}"


def _computing(pairs: Sequence[Pair]) -> float:
    return statistics.median(pair.engine.computing / pair.plain.computing for pair in pairs)


if __name__ == "__main__":
    main()
