"""`conf=NAME plan=true`: what a launch would do, as far as that is known before anything is started: nothing is written."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.control.shard_assignment import assign_shards
from orchestrator.driver.before_start import initial, preflight
from orchestrator.driver.run.job import layout
from orchestrator.engine.model import construction
from orchestrator.plan import Plan
from orchestrator.plan.resolve import resolve
from orchestrator.settings import Settings
from orchestrator.topologies import build_schedule


@dataclass(frozen=True)
class DryRun:
    """parameters: of the model, None where only a worker can build it; obstacles: to an exact rerun, each with its remedy."""

    plan: Plan
    parameters: int | None
    notes: list[str]
    inputs: list[dict[str, Any]]
    obstacles: list[str]

    @property
    def shards(self) -> tuple[tuple[int, ...], ...]:
        """Of each worker that the run starts with."""
        return assign_shards(self.plan.data.shards, self.plan.cluster.members.start)

    def as_dict(self) -> dict[str, Any]:
        run, cluster = self.plan.run, self.plan.cluster
        return {
            "pipeline": run.pipeline.target,
            "parameters": self.parameters,
            "steps": run.steps,
            "epochs": run.epochs,
            "batch_size": self.plan.data.batch_size.least,
            "sync": self.plan.sync.name,
            "topology": self.plan.exchange.topology.name,
            "address": cluster.address,
            "workers": [{"rank": rank, "shards": list(hosted)} for rank, hosted in enumerate(self.shards)],
            "spares": cluster.members.spares,
            "servers": cluster.members.servers,
            "inputs": self.inputs,
            "notes": self.notes,
            "obstacles": self.obstacles,
        }

    def as_text(self) -> str:
        run, data, cluster = self.plan.run, self.plan.data, self.plan.cluster
        topology = self.plan.exchange.topology
        schedule = build_schedule(topology.name, cluster.members.start, **topology.options)
        model = "built by the workers" if self.parameters is None else f"{self.parameters:,} parameters"
        length = f"{run.steps} steps" if run.steps is not None else f"{run.epochs} epochs"
        where = f"joined Ray {cluster.address}" if cluster.address else f"private Ray, {os.cpu_count()} cores here"
        lines = [
            f"model     {run.pipeline.target}, {model}",
            f"training  {length} of {data.batch_size.least} rows in {data.shards} shards, sync {self.plan.sync.name}",
            f"layout    {layout(self.plan)}; {where}",
            f"exchange  {len(schedule.rounds)} rounds in a step, the model in {schedule.chunks} slices",
            *(f"worker {rank}  {_shards(hosted)}" for rank, hosted in enumerate(self.shards)),
            *(
                f"input     {each['path']}, md5 {each['md5']}, kept by {each['keeper'] or 'nobody'}"
                for each in self.inputs
            ),
            *(f"note      {note}" for note in self.notes),
        ]
        if self.obstacles:
            lines += ["it could not be repeated exactly:", *(f"  {obstacle}" for obstacle in self.obstacles)]
        else:
            lines.append("nothing keeps it from being repeated exactly")
        return "\n".join(lines)


def _shards(hosted: tuple[int, ...]) -> str:
    return f"shard {hosted[0]}" if len(hosted) == 1 else f"shards {hosted[0]} to {hosted[-1]}"


def dry_run(settings: Settings) -> DryRun:
    """Check all that a launch checks. Raises UsageError and NotRerunnable as it does."""
    settings = initial.pinned(settings, Path.cwd())
    provenance = preflight.check(settings, Path.cwd())
    plan = resolve(settings)
    rehearsed = construction.rehearse(plan)
    inputs = [{"path": each.path, "md5": each.md5, "keeper": each.keeper} for each in provenance.inputs]
    notes = [*provenance.notes, *rehearsed.notes]
    return DryRun(plan, rehearsed.parameters, notes, inputs, provenance.obstacles)


def answer(found: DryRun, as_json: bool) -> str:
    return json.dumps(found.as_dict()) if as_json else found.as_text()
