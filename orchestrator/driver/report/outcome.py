"""How a run ended, as a value and as the JSON object that the command line promises."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.comm.topologies.schedule import Schedule
from orchestrator.common.figures import megabytes
from orchestrator.driver.terminal.progress import duration
from orchestrator.errors import NonFinite, OrchestratorError, Status, ending, status_of
from orchestrator.numerics import flops
from orchestrator.records.files_read import FilesRead


@dataclass(frozen=True)
class BestModel:
    """The state of its training that is the model of a run."""

    step: int  # steps that were done by then
    digest: str  # of its parameters


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended, or how it would if it ended now: each event gives another value (`driver.run.event_table`)."""

    # Known from events, while it runs.
    workers: int = 0  # of the last generation
    steps: int = 0  # steps that are done, those before a resume included
    loss: float | None = None  # of the last step; None before the first one
    digest: str | None = None  # of the parameters at the end; None where the run has no result
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last evaluation; empty before the first one
    generations: int = 0  # generations that have begun
    error: OrchestratorError | None = None  # what ended the run; None where it finished
    # when the driver heard of the first step, on the monotonic clock; None before that
    first_step_at: float | None = None
    # payloads of the member that sends most, in the last step of which that is known; None where it is of none
    bytes_per_step: int | None = None
    # each with its kind, seconds and lost steps, as in the journal
    recoveries: tuple[Mapping[str, Any], ...] = ()
    checkpoint: int | None = None  # step of the newest one; None where there is none
    epsilon: float | None = None  # privacy that is spent; None where the run is not private
    hosted: tuple[int, ...] = ()  # number of shards of each worker of the last generation, by rank
    rebalanced: int = 0  # how often shards were dealt anew by speed
    slow: tuple[str, ...] = ()  # a sentence for each worker that was far slower than the others
    wrong: tuple[str, ...] = ()  # a sentence for each wrong answer that a check has found
    # how often each kind of harm was done to workers on purpose
    injected: Mapping[str, int] = field(default_factory=dict)
    # node -> bytes of files from elsewhere that were fetched, and that its cache had
    bytes_read: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    flops_per_sample: float | None = None  # forward and backward, counted on a GPU; None elsewhere
    cards: Mapping[str, str] = field(default_factory=dict)  # UUID -> name of the GPUs that workers computed on
    files_read: FilesRead = field(default_factory=FilesRead)  # files of the training set that were read
    not_logged: tuple[str, ...] = ()  # which writers beside MLflow have not all of it, and why
    schedule: Schedule | None = None  # of the generation with most workers, for a picture; None before the first one
    # worker -> bytes on its GPU at the end, as `numerics.cuda.memory` and `worker.device_memory.HeldMemory` tell them
    gpu_memory: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    # Known to the job, when the session is over.
    trained_at: float | None = None  # when training ended, on the monotonic clock; None before that
    has_lost_ray: bool = False  # whether its Ray is gone, for this driver at least, and nobody there goes on with it
    head_goes_on: bool = False  # whether the head of its Ray does, which has lost this node alone
    times: Mapping[str, float] = field(default_factory=dict)  # share of the workers' time, by kind (`records.times`)
    # by the workers' own time, evaluations included (`records.times`); None where they have told none
    steps_per_s: float | None = None
    step_samples: int | None = None  # samples of a step; None where steps have several numbers of them, or it is secret
    # worker -> shards that it computed, and how many of them were dealt to others; empty without claims
    shards: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    best: BestModel | None = None  # the model of the run; None where that is the last state
    weights_lost: bool = False  # whether all steps are done, and the workers that had the result are gone
    repeats: bool = True  # whether a step that is computed again has the same bits, as `Plan.repeats` says
    staleness: int | None = None  # most updates that a shard was ahead of the slowest one; None in lockstep

    # Known when the record is closed.
    trace: str | None = None  # head of the Merkle tree of its trace; None before the record is closed
    not_recorded: str | None = None  # why MLflow has not all of it, which makes no run a failed one; None where it has
    store: str | None = None  # the MLflow store, as output may show it; None for the project's
    # seconds until the first step ("start"), until the last ("training") and after it ("record")
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        return status_of(self.error)

    @property
    def model(self) -> BestModel:
        """The model of a run that has finished, the last one or the best."""
        return self.best or BestModel(self.steps, str(self.digest))

    @property
    def samples_per_s(self) -> float | None:
        return None if self.steps_per_s is None or self.step_samples is None else self.steps_per_s * self.step_samples

    @property
    def flops_per_s(self) -> float | None:
        rate = self.samples_per_s
        return None if rate is None or self.flops_per_sample is None else rate * self.flops_per_sample

    @property
    def mfu(self) -> float | None:
        """Share of what the cards can do at most in bfloat16; None where one of them is not known."""
        peak = flops.peak_of(self.cards.values())
        return None if self.flops_per_s is None or peak is None else self.flops_per_s / peak

    @property
    def spent_sentence(self) -> str:
        """ "start 24 s, training 3 s, record 6 s"; empty where no step was done."""
        return ", ".join(f"{what} {duration(seconds)}" for what, seconds in self.spent.items())

    def ended(self, began: float, now: float) -> RunOutcome:
        """The outcome with the seconds spent on start, training and record. began: when the command began; now: when all is
        over; both on the clock of first_step_at."""
        if self.first_step_at is None or self.trained_at is None:
            return self
        moments = (began, self.first_step_at, self.trained_at, now)
        spans = (after - before for before, after in itertools.pairwise(moments))
        return replace(self, spent=dict(zip(("start", "training", "record"), spans, strict=True)))

    @property
    def files_sentence(self) -> str:
        """How many files of the training set were read, and from where; empty where it has none."""
        return "; ".join(filter(None, [self.files_read.sentence, self.bytes_sentence]))

    @property
    def bytes_sentence(self) -> str:
        """How much each node read of files from elsewhere, in words; empty if none did."""
        read = self.bytes_read.items()
        return "; ".join(
            f"{node}: {megabytes(fetched)} fetched, {megabytes(cached)} from its cache"
            for node, (fetched, cached) in read
        )

    @property
    def recurs(self) -> bool:
        """Whether it would end like this again if somebody went on with it. A number that is not finite comes again where all
        others do; elsewhere the order of updates, or the sites that take part, may differ."""
        return self.error is not None and (self.error.recurs or (isinstance(self.error, NonFinite) and self.repeats))

    def as_dict(self, run_id: str | None, started: float) -> dict[str, Any]:
        """The JSON object. run_id: None when no run was created; started: time of the command."""
        report: dict[str, Any] = {
            "run_id": run_id,
            **ending(self.error),
            "steps": self.steps,
            "digest": self.digest,
            "loss": _number(self.loss),
            "metrics": {name: _number(value) for name, value in self.metrics.items()},
            "workers": self.workers,
            "generations": self.generations,
            "recoveries": list(self.recoveries),
            "launch_s": None if self.first_step_at is None else round(self.first_step_at - started, 3),
            "steps_per_s": None if self.steps_per_s is None else round(self.steps_per_s, 3),
            "bytes_per_step": self.bytes_per_step,
            "times": {kind: round(share, 4) for kind, share in self.times.items()},
        }
        if self.samples_per_s is not None:
            report["samples_per_s"] = round(self.samples_per_s, 3)
        if self.flops_per_s is not None:
            report["flops_per_s"] = round(self.flops_per_s)
        if self.mfu is not None:
            report["mfu"] = round(self.mfu, 4)
        if self.gpu_memory:
            report["gpu_memory"] = {worker: dict(told) for worker, told in self.gpu_memory.items()}
        if self.rebalanced:
            report["redealt"], report["hosted"] = self.rebalanced, list(self.hosted)
        if self.slow:
            report["slow"] = list(self.slow)
        if self.injected:
            report["disturbed"] = dict(self.injected)
        if self.wrong:
            report["wrong"] = list(self.wrong)
        if self.shards:
            shards = self.shards.items()
            report["shards"] = {
                worker: {"computed": computed, "of_others": others} for worker, (computed, others) in shards
            }
        if self.bytes_read:
            read = self.bytes_read.items()
            report["bytes_read"] = {node: {"fetched": fetched, "cached": cached} for node, (fetched, cached) in read}
        if self.files_read.of:
            report["files_read"] = {"read": len(self.files_read.numbers), "of": self.files_read.of}
        if self.staleness is not None:
            report["staleness"] = self.staleness
        if self.epsilon is not None:
            report["epsilon"] = self.epsilon
        if self.best is not None:
            report["model"] = {"step": self.best.step, "digest": self.best.digest}
        if self.not_recorded is not None:
            report["not_recorded"] = self.not_recorded
        if self.not_logged:
            report["not_told"] = list(self.not_logged)
        return report


def recovery_in_words(recovery: Mapping[str, Any]) -> str:
    """The event `recovered` in words: "went on after 0.72 s, no step lost"."""
    lost = recovery["steps_lost"]
    steps = "no step lost" if lost == 0 else f"{lost} step{'s' * (lost > 1)} computed again"
    because = f": {recovery['why']}" if recovery.get("why") else ""
    return f"{_RECOVERED[recovery['kind']]} after {recovery['seconds']:.2f} s, {steps}{because}"


_RECOVERED = {"lost": "went on", "joined": "a worker joined", "restarted": "started again", "driver": "taken over"}


def _number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value is None or math.isfinite(value) else None
