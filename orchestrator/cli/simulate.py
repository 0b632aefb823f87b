"""`simulate conf=NAME ...`: what a run would take on a cluster that is not there."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, reported
from orchestrator.comm.topologies import TOPOLOGIES
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Settings, load
from orchestrator.config.settings.sections import BY_MEMORY
from orchestrator.errors import UsageError
from orchestrator.experiments.simulation import report
from orchestrator.experiments.simulation.conditions import KEYS, Conditions, conditions, size_of
from orchestrator.experiments.simulation.report import Question, SimulatedRow
from orchestrator.worker.model import construction

MODES = ("bsp", "ssp", "bap")
_OWN = ("conf", "output", "cluster.workers", "parameters", "picture", "trace", "seed")
_MOST_WORKERS, _STEPS, _MOST_TIMES = 100_000, 100, 20_000_000


@dataclass(frozen=True)
class Simulated:
    """The result of `simulate`. notes: what was assumed; took_s: to simulate it."""

    question: Question
    rows: list[SimulatedRow]
    notes: list[str]
    took_s: float

    def as_dict(self) -> dict[str, Any]:
        found = self.question
        return {
            "workers": found.workers,
            "shards": found.shards,
            "parameters": found.elements,
            "steps": found.steps,
            "rows": [row.as_dict() for row in self.rows],
            "notes": self.notes,
            "took_s": round(self.took_s, 3),
        }

    def as_text(self) -> str:
        found = self.question
        title = (
            f"{found.workers:,} workers, {found.shards:,} shards, {found.elements:,} parameters, {found.steps} steps"
        )
        return "\n".join([title, "", report.table(self.rows), "", *(f"note: {note}" for note in self.notes)])


def run(arguments: Arguments) -> CommandResult:
    sections = {key.partition(".")[0] for key in KEYS if "." in key}
    asked = {
        key: value
        for key, _, value in (each.partition("=") for each in arguments.rest)
        if key in KEYS or key.partition(".")[0] in sections
    }
    settings = arguments.without(*_OWN, *asked)
    workers, parameters = arguments.get("cluster.workers"), arguments.get("parameters")
    found = simulate(arguments.files, settings, workers, parameters, conditions(asked))
    for sentence in draw(found, arguments.get("picture"), arguments.get("trace")):
        print(sentence, file=sys.stderr)
    return reported(found, arguments)


def simulate(
    conf: Sequence[str], overrides: Sequence[str], workers: str | None, parameters: str | None, by: Conditions
) -> Simulated:
    """Simulate the configured run on a cluster that is not there. workers, parameters: as typed; None for those of the
    configuration. Raises UsageError."""
    started = time.monotonic()
    asked = load(conf, overrides)
    cluster = asked.cluster
    if cluster.stages > 1 or BY_MEMORY in asked.tuning.auto:
        raise UsageError(
            "cluster.stages: the time of a model in stages is not simulated", "leave it out", code="simulation.stages"
        )
    settings = load(conf, [*overrides, "cluster.workers=1"])
    number = cluster.workers.most if workers is None else _workers(workers)
    if by.network.hosts > number:
        raise UsageError(
            f"hosts={by.network.hosts}: there are {number:,} workers",
            "give no more hosts than workers",
            code="simulation.hosts",
        )
    notes = []
    shards = settings.data.shards
    if number > shards:
        notes.append(f"the configuration has {shards} shards; simulated are {number:,}, one for each worker")
        shards = number
    elements = _elements(settings, parameters)
    steps = min(settings.run.steps or _STEPS, _STEPS, max(1, _MOST_TIMES // number))
    topologies, modes = _chosen(settings, overrides)
    question = Question(
        workers=number,
        shards=shards,
        elements=elements,
        steps=steps,
        topologies=topologies,
        modes=modes,
        conditions=by,
        sum_bytes=8 if settings.reduction == "exact" else 4,
        checkpoint=_checkpoint(settings),
        by_speed=settings.cluster.deal == "measured" and settings.reduction == "exact",
        claims=number > 1 and _claims(conf, overrides),
    )
    rows = report.answer(question)
    if not all(row.played for row in rows):
        notes.append("of schedules with too many moves one member's were played, or one host's, as all do alike")
    if not all(row.driven for row in rows):
        notes.append(
            "*: with so many workers a loss is taken to cost its detection, its regrouping and half a step, without the "
            "controller"
        )
    return Simulated(question, rows, notes, time.monotonic() - started)


def _claims(conf: Sequence[str], overrides: Sequence[str]) -> bool:
    """Whether several workers would claim shards from each other, in lockstep."""
    return resolve(load(conf, [*overrides, "cluster.workers=2", "data.shards=2", "sync=bsp"])).cluster.claims


def _checkpoint(settings: Settings) -> int:
    """Steps between two; 0 for none, or where it goes by time."""
    every = settings.checkpoint.every
    return 0 if every is None else every.steps or 0


def _workers(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST_WORKERS:
        raise UsageError(
            f"cluster.workers={text}: expected a number from 1 to {_MOST_WORKERS:,}", code="simulation.workers"
        )
    return int(text)


def _elements(settings: Settings, parameters: str | None) -> int:
    if parameters is not None:
        try:
            found = round(size_of(parameters))
        except ValueError as error:
            raise UsageError(f"parameters={parameters}: expected {error}", code="simulation.parameters") from None
    else:
        found = construction.rehearse(resolve(settings)).parameters or 0
    if found < 1:
        raise UsageError(
            "the model's size is not known before its data are",
            "give it, such as parameters=25M",
            code="simulation.model-size",
        )
    return found


def _chosen(settings: Settings, overrides: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """The topologies and modes that the command line names, and else all topologies and the modes that differ in time."""
    named = {override.partition("=")[0].partition(".")[0] for override in overrides}
    topology, sync = settings.topology, settings.sync
    topologies = [(topology.name, dict(topology.options))]
    if "topology" not in named:
        topologies += [(name, {}) for name in TOPOLOGIES if name != topology.name]
    modes = [(sync.name, dict(sync.options))]
    if "sync" not in named:
        modes += [(name, {}) for name in MODES if name != sync.name]
    return topologies, modes


def draw(answer: Simulated, picture: str | None, trace: str | None) -> list[str]:
    """Write the files that were asked for; returns a sentence each. Raises UsageError."""
    said = []
    try:
        if picture is not None:
            from orchestrator.experiments.pictures import simulated  # matplotlib, most of a second

            simulated.draw(Path(picture), answer.rows, f"{answer.question.workers:,} workers")
            said.append(f"drawn in {picture}")
        if trace is not None:
            events = report.chrome_trace(answer.question, answer.question.topologies[0])
            if events is None:
                raise UsageError(
                    f"trace={trace}: too many members to look at",
                    "trace a run of at most 64",
                    code="simulation.trace-members",
                )
            Path(trace).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
            said.append(f"traced in {trace}; open it in ui.perfetto.dev or chrome://tracing")
    except OSError as error:
        raise UsageError(
            f"{error.filename} cannot be written: {error.strerror}", code="simulation.trace-unwritable"
        ) from None
    return said
