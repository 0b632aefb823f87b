"""What can be known to be wrong before anything is started, and what would keep the run from being repeated exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator import pipeline
from orchestrator.checkpoints.storage import open_storage
from orchestrator.errors import ConfigurationError, NotRerunnable
from orchestrator.numerics import cuda
from orchestrator.provenance import data, secrets, worktree
from orchestrator.settings import Settings
from orchestrator.updates import optimizers


@dataclass(frozen=True)
class Provenance:
    """What was found: the work tree (None where it cannot be recorded), the inputs, the obstacles to an exact rerun, each
    with its remedy, and notes on what a person should know before it is recorded."""

    work: worktree.WorkTree | None
    inputs: list[data.Input]
    obstacles: list[str]
    notes: list[str]


def check(settings: Settings, project: Path) -> Provenance:
    """Raises ConfigurationError with all problems, and NotRerunnable under `strict` when there are obstacles."""
    problems = [
        *_pipeline_problems(settings),
        *_input_problems(settings, project),
        *_checkpoint_problems(settings),
        *_device_problems(settings),
    ]
    if problems:
        raise ConfigurationError(problems)
    obstacles: list[str] = []
    work = None
    try:
        work = worktree.examine(project)
        obstacles += work.obstacles
    except worktree.Unrecorded as error:
        obstacles.append(str(error))
    inputs = data.capture(project, list(settings.data.inputs))
    obstacles += [item.obstacle for item in inputs if item.obstacle is not None]
    if settings.strict and obstacles:
        listed = "".join(f"\n  - {obstacle}" for obstacle in obstacles)
        raise NotRerunnable(
            f"strict: this run could not be repeated exactly:{listed}", "mend these, or leave strict out"
        )
    told = secrets.note(work.untracked) if work is not None else None
    return Provenance(work, inputs, obstacles, [told] if told is not None else [])


def _pipeline_problems(settings: Settings) -> list[str]:
    try:
        target = pipeline.find(settings.pipeline.target, settings.pipeline.args)
    except ConfigurationError as error:
        return [problem if not error.remedy else f"{problem} ({error.remedy})" for problem in error.problems]
    own = pipeline.defines(target, "optimizer")
    section = settings.optimizer
    if own and section.name is not None:
        return ["optimizer: the pipeline has an optimizer() of its own; remove one of the two"]
    if section.name is None:
        return (
            [] if own else ["optimizer: required, because the pipeline has no optimizer(); for example optimizer=adamw"]
        )
    return optimizers.problems(section.name, section.options)


def _checkpoint_problems(settings: Settings) -> list[str]:
    if settings.checkpoint.uri is None:
        return []
    try:
        open_storage(settings.checkpoint.uri)
    except ConfigurationError as error:
        return list(error.problems)
    return []


def _device_problems(settings: Settings) -> list[str]:
    """A private Ray runs this very torch; of another one's nodes its workers say it."""
    if settings.run.device == "cpu" or settings.cluster.address is not None:
        return []
    problem = cuda.build_problem()
    return [] if problem is None else [problem]


def _input_problems(settings: Settings, project: Path) -> list[str]:
    problems = []
    for path in settings.data.inputs:
        if not (project / path).exists():
            stage = data.stage_of(project, path)
            remedy = f"; make it with: dvc repro {stage}" if stage else ""
            problems.append(f"data.inputs: there is no {path} in {project}{remedy}")
    return problems
