"""How a run ended, as a value and as the JSON object that the command line promises."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.comm.topologies.schedule import Schedule
from orchestrator.common.values import megabytes
from orchestrator.driver.terminal.progress import duration
from orchestrator.errors import NonFinite, OrchestratorError, Status, ending, status_of
from orchestrator.records.files_read import FilesRead


@dataclass(frozen=True)
class BestModel:
    """step: how many were done then; digest: of its parameters."""

    step: int
    digest: str


@dataclass
class Outcome:
    """How a run ended, filled in while it runs.

    workers: of the last generation; loss: of the last step; metrics: of the last evaluation; first_step_at: when the
    driver heard of the first step, on the monotonic clock; steps_per_s: from the first report of a step to the last,
    evaluations included; bytes_per_step: payloads of the member that sends most, of the last step of which that is
    known; checkpoint: the step of the newest one; staleness: of an asynchronous run, by how many updates the shard of an
    update was ahead of the slowest one at most; epsilon: of a private run; times: shares of the workers' time
    (`records.times`); shards: where they are claimed, of each worker how many it computed, and how many of those were dealt to
    others, as far as it has told; hosted: shards of each worker of the last generation; redealt: so often they were dealt anew
    by speed; slow: workers that were far slower than others, in words; wrong: what checks have found, in words; disturbed: what
    was done to workers on purpose, and how often; schedule: of the generation with most workers, for a picture; bytes_read: by
    node, of files from elsewhere: fetched, and found in its cache; files_read: of the training set;
    weights_lost: all its steps are done, and whoever had the result is gone; is_headless: the head of its Ray is gone; best: of
    a run whose model is not the last one; trace: the head of the Merkle tree of its trace; trained_at: when its last
    step was done, as first_step_at; spent: seconds until the first step, until the last
    and after it; not_recorded: why MLflow has not all
    of it, which does not make the run a failed one; not_told: which writers beside MLflow have not, and why.
    """

    workers: int = 0
    steps: int = 0
    loss: float | None = None
    digest: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    generations: int = 0
    error: OrchestratorError | None = None
    first_step_at: float | None = None
    steps_per_s: float | None = None
    bytes_per_step: int | None = None
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: int | None = None
    staleness: int | None = None
    epsilon: float | None = None
    times: dict[str, float] = field(default_factory=dict)
    hosted: tuple[int, ...] = ()
    redealt: int = 0
    slow: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    disturbed: dict[str, int] = field(default_factory=dict)
    shards: dict[str, tuple[int, int]] = field(default_factory=dict)
    bytes_read: dict[str, tuple[int, int]] = field(default_factory=dict)
    files_read: FilesRead = field(default_factory=FilesRead)
    not_recorded: str | None = None
    not_told: list[str] = field(default_factory=list)
    schedule: Schedule | None = None
    weights_lost: bool = False
    is_headless: bool = False
    best: BestModel | None = None
    trace: str | None = None
    trained_at: float | None = None
    spent: dict[str, float] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        return status_of(self.error)

    @property
    def model(self) -> BestModel:
        """Of a run that has finished: its model, the last one or the best."""
        return self.best or BestModel(self.steps, str(self.digest))

    @property
    def spent_sentence(self) -> str:
        """ "start 24 s, training 3 s, record 6 s"; empty where no step was done."""
        return ", ".join(f"{what} {duration(seconds)}" for what, seconds in self.spent.items())

    def spend(self, began: float) -> None:
        """It is all over. began: the time of the command, as first_step_at."""
        if self.first_step_at is not None and self.trained_at is not None:
            moments = (began, self.first_step_at, self.trained_at, time.monotonic())
            spans = (after - before for before, after in itertools.pairwise(moments))
            self.spent = dict(zip(("start", "training", "record"), spans, strict=True))

    @property
    def files_sentence(self) -> str:
        """How many files of the training set were read, and from where; empty where it has none."""
        return "; ".join(filter(None, [self.files_read.sentence, self.bytes_sentence]))

    @property
    def bytes_sentence(self) -> str:
        """What each node read of files from elsewhere; empty where none did."""
        read = self.bytes_read.items()
        return "; ".join(
            f"{node}: {megabytes(fetched)} fetched, {megabytes(cached)} from its cache"
            for node, (fetched, cached) in read
        )

    @property
    def recurs(self) -> bool:
        """Whether it would end like this again if somebody went on with it. In lockstep a number that is not finite comes
        again, as all others do; elsewhere the order of updates may differ."""
        lockstep = self.staleness is None
        return self.error is not None and (self.error.recurs or (isinstance(self.error, NonFinite) and lockstep))

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
            "recoveries": self.recoveries,
            "launch_s": None if self.first_step_at is None else round(self.first_step_at - started, 3),
            "steps_per_s": None if self.steps_per_s is None else round(self.steps_per_s, 3),
            "bytes_per_step": self.bytes_per_step,
            "times": {kind: round(share, 4) for kind, share in self.times.items()},
        }
        if self.redealt:
            report["redealt"], report["hosted"] = self.redealt, list(self.hosted)
        if self.slow:
            report["slow"] = self.slow
        if self.disturbed:
            report["disturbed"] = self.disturbed
        if self.wrong:
            report["wrong"] = self.wrong
        if self.shards:
            told = self.shards.items()
            report["shards"] = {
                worker: {"computed": computed, "of_others": others} for worker, (computed, others) in told
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
        if self.not_told:
            report["not_told"] = self.not_told
        return report


def recovery_in_words(recovery: Mapping[str, Any]) -> str:
    """Of the event `recovered`: "went on after 0.72 s, no step lost"."""
    lost = recovery["steps_lost"]
    steps = "no step lost" if lost == 0 else f"{lost} step{'s' * (lost > 1)} computed again"
    because = f": {recovery['why']}" if recovery.get("why") else ""
    return f"{_RECOVERED[recovery['kind']]} after {recovery['seconds']:.2f} s, {steps}{because}"


_RECOVERED = {"lost": "went on", "joined": "a worker joined", "restarted": "started again", "driver": "taken over"}


def _number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value is None or math.isfinite(value) else None
