"""`conf=NAME plan=true`: what a launch would do, as far as that is known before anything is started: nothing is written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.comm.topologies import asks_for_nodes, build_schedule
from orchestrator.common.figures import sized
from orchestrator.common.values import Steps
from orchestrator.config.plan import Plan
from orchestrator.config.settings import Settings
from orchestrator.controller.shard_assignment import assign_columns, assign_stages
from orchestrator.driver import folders
from orchestrator.driver.launch.memory_plan import planned
from orchestrator.driver.launch.rehearsal import rehearse
from orchestrator.driver.launch.repeated import NOTHING, Repeated
from orchestrator.driver.preflight import begin
from orchestrator.driver.report.layout import layout
from orchestrator.provenance.tracking.asking import ask, refuse_deleted
from orchestrator.records import input_audit
from orchestrator.worker.footprint import Needed
from orchestrator.worker.pipeline_parallel.footprint import preparing_bytes


@dataclass(frozen=True)
class DryRun:
    """All that a launch would do."""

    plan: Plan  # what the settings come to
    parameters: int | None  # number of those of the model; None where only a worker can build it
    # where the model is cut into stages; None where it is not, or where only a worker can tell
    cut: dict[str, Any] | None
    notes: list[str]  # sentences for the user
    inputs: list[dict[str, Any]]  # path, md5 and keeper of each input; the keeper is None where nobody keeps it
    obstacles: list[str]  # to an exact rerun, each with its remedy
    # that the worker of each stage needs beside activations, or of the whole model; none where only a worker can tell
    memory: Sequence[Needed] = ()

    @property
    def hosted(self) -> list[tuple[int, tuple[int, ...]]]:
        """(stage, shards) of each worker that the run starts with."""
        members = self.plan.cluster.members
        stages = assign_stages([None] * members.start, members.stages)
        return list(zip(stages, assign_columns(self.plan.data.shards, stages), strict=True))

    def as_dict(self) -> dict[str, Any]:
        run, cluster = self.plan.run, self.plan.cluster
        return {
            "pipeline": run.pipeline.target,
            "parameters": self.parameters,
            "begin": None if run.begin is None else {"name": run.begin.name, "digest": run.begin.digest},
            "steps": run.steps,
            "epochs": run.epochs,
            "batch_size": self.plan.data.batch_size.plain(),
            "sync": self.plan.sync.name,
            "topology": self.plan.exchange.topology.name,
            "address": cluster.address,
            "stages": cluster.members.stages,
            "claims": cluster.claims,
            "cut": self.cut,
            "memory": [{"host_bytes": each.host, "gpu_bytes": each.card} for each in self.memory],
            "workers": [
                {"rank": rank, "stage": stage, "shards": list(shards)}
                for rank, (stage, shards) in enumerate(self.hosted)
            ],
            "spares": cluster.members.spares,
            "servers": cluster.members.servers,
            "inputs": self.inputs,
            "notes": self.notes,
            "obstacles": self.obstacles,
        }

    def as_text(self) -> str:
        run, data, cluster = self.plan.run, self.plan.data, self.plan.cluster
        model = "built by the workers" if self.parameters is None else f"{self.parameters:,} parameters"
        length = f"{run.steps} steps" if run.steps is not None else f"{run.epochs} epochs"
        where = f"joined Ray {cluster.address}" if cluster.address else f"private Ray, {os.cpu_count()} cores here"
        lines = [
            f"model     {run.pipeline.target}, {model}",
            *(
                []
                if run.begin is None
                else [f"begins    with the state of {run.begin.name}, digest {run.begin.digest}"]
            ),
            f"training  {length} of {_rows(data.batch_size)} rows in {data.shards} shards, sync {self.plan.sync.name}",
            f"layout    {layout(self.plan)}; {where}",
            *self._exchanges(),
            *(f"worker {rank}  {self._of(stage)}{_shards(shards)}" for rank, (stage, shards) in enumerate(self.hosted)),
            *self._memory(),
            *self._claims(),
            *(f"input     {each['path']}, md5 {each['md5']}, {_kept(each['keeper'])}" for each in self.inputs),
            *(f"note      {note}" for note in self.notes),
        ]
        if self.obstacles:
            lines += ["it could not be repeated exactly:", *(f"  {obstacle}" for obstacle in self.obstacles)]
        else:
            lines.append("nothing keeps it from being repeated exactly")
        return "\n".join(lines)

    def _exchanges(self) -> list[str]:
        """How what the workers of each stage have is added up."""
        if self.plan.cluster.members.stages == 1:
            return [f"exchange  {self._rounds(self.plan.cluster.members.start, 'the model ')}"]
        sizes = Counter(stage for stage, _ in self.hosted)
        return [
            f"stage {stage}   {self._begins(stage)}{sizes[stage]} worker{'s' * (sizes[stage] > 1)}: "
            + self._rounds(sizes[stage], "")
            for stage in sorted(sizes)
        ]

    def _claims(self) -> list[str]:
        if not self.plan.cluster.claims:
            return []
        return [
            "claims    a worker that is done takes over shards of slower ones on its host, unless shards keep a state"
        ]

    def _rounds(self, workers: int, what: str) -> str:
        topology = self.plan.exchange.topology
        schedule = build_schedule(topology.name, workers, **topology.options)
        if not schedule.rounds:
            return "none, one worker adds it all up"
        alone = ", as long as all share a node" * (self.plan.exchange.between_nodes and asks_for_nodes(topology.name))
        return f"{len(schedule.rounds)} rounds in a step, {what}in {schedule.chunks} slices{alone}"

    def _begins(self, stage: int) -> str:
        if self.cut is None:
            return ""
        border = f"from {self.cut['borders'][stage - 1]}" if stage else "from the first layers"
        needed = f"about {self._needed(stage)}, " if self.memory else ""
        held = (
            f"{self.cut['parameters'][stage]:,} parameters, {needed}{self.cut['shares'][stage]:.0%} of the computation"
        )
        return f"{border}, {held}; "

    def _memory(self) -> list[str]:
        """The line on memory. For a model that is cut, the line of each stage says how much."""
        if self.plan.cluster.members.stages == 1:
            return [f"memory    each worker needs about {self._needed(0)}, beside activations"] if self.memory else []
        if self.plan.run.compute.device == "cpu" or self.parameters is None:
            return []
        whole = sized(preparing_bytes(self.parameters))
        return [f"memory    about so much beside activations; while it prepares, a worker has {whole} of host memory"]

    def _needed(self, stage: int) -> str:
        limit = self.plan.cluster.card_bytes
        return f"{self.memory[stage]}" + ("" if limit is None else f", of which it may take {sized(limit)}")

    def _of(self, stage: int) -> str:
        return f"stage {stage}, " if self.plan.cluster.members.stages > 1 else ""


def _kept(keeper: str | None) -> str:
    """The place that can give an input back. keeper: as in `Input`."""
    return (
        "neither in DVC nor in git" if keeper is None else f"in {keeper.replace('code', 'git').replace('dvc', 'DVC')}"
    )


def _rows(batch_size: Steps) -> str:
    first, *others = batch_size.changes
    return ", ".join([str(first[1]), *(f"from step {step} on {rows}" for step, rows in others)])


def _shards(hosted: tuple[int, ...]) -> str:
    return f"shard {hosted[0]}" if len(hosted) == 1 else f"shards {hosted[0]} to {hosted[-1]}"


def dry_run(settings: Settings, repeated: Repeated = NOTHING, *, trusted: bool = False) -> DryRun:
    """Check all that a launch checks. The GPUs may be elsewhere if their memory is given. Raises UsageError and NotRerunnable
    as a launch does."""
    settings = begin.all_pinned(settings, Path.cwd(), trusted=trusted)
    found = rehearse(settings, Path.cwd(), repeated, cards_elsewhere=settings.cluster.gpu_gb is not None)
    ask(settings.tracking.uri)
    refuse_deleted(settings.tracking.uri, Path.cwd() / folders.NAME, settings.run.experiment)
    provenance, built = found.provenance, found.built
    inputs = [{"path": each.path, "md5": each.md5, "keeper": each.keeper} for each in provenance.inputs]
    notes = [*provenance.notes, *built.notes, *input_audit.notes(found.read)]
    obstacles = [*provenance.obstacles, *input_audit.obstacles(found.read)]
    memory = planned(found.plan, built, found.cut)
    return DryRun(found.plan, built.parameters, found.cut, notes, inputs, obstacles, memory)
