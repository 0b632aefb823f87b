"""What can be known to be wrong before anything is started, and what would keep the run from being repeated exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator import pipeline
from orchestrator.errors import ConfigurationError, NotRerunnable
from orchestrator.provenance import code, data
from orchestrator.settings import Settings
from orchestrator.updates import optimizers


@dataclass(frozen=True)
class Provenance:
    """What was found: the repository (None without one), the inputs, and the obstacles to an exact rerun with remedies."""

    code: code.Code | None
    inputs: list[data.Input]
    obstacles: list[str]


def check(settings: Settings, project: Path) -> Provenance:
    """Raises ConfigurationError with all problems, and NotRerunnable under `strict` when there are obstacles."""
    problems = [*_pipeline_problems(settings), *_input_problems(settings, project)]
    if problems:
        raise ConfigurationError(problems)
    found = code.capture(project)
    inputs = data.capture(project, list(settings.data.inputs))
    obstacles = [*_code_obstacles(found), *_data_obstacles(inputs)]
    if settings.strict and obstacles:
        listed = "".join(f"\n  - {obstacle}" for obstacle in obstacles)
        raise NotRerunnable(
            f"strict: this run could not be repeated exactly:{listed}", "mend these, or leave strict out"
        )
    return Provenance(found, inputs, obstacles)


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


def _input_problems(settings: Settings, project: Path) -> list[str]:
    problems = []
    for path in settings.data.inputs:
        if not (project / path).exists():
            stage = data.stage_of(project, path)
            remedy = f"; make it with: dvc repro {stage}" if stage else ""
            problems.append(f"data.inputs: there is no {path} in {project}{remedy}")
    return problems


def _code_obstacles(found: code.Code | None) -> list[str]:
    if found is None:
        return ["the project is in no git repository, so its code is not recorded; git init, then commit"]
    if found.commit is None:
        return ["the repository has no commit yet, so its code is not recorded; commit"]
    if found.changed:
        shown = ", ".join(found.changed[:3]) + (", ..." if len(found.changed) > 3 else "")
        return [f"{len(found.changed)} files differ from the commit ({shown}); commit them"]
    return []


def _data_obstacles(inputs: list[data.Input]) -> list[str]:
    obstacles = []
    for item in inputs:
        if item.recorded_md5 is None:
            obstacles.append(f"{item.path} is not under DVC, so it cannot be restored; dvc add {item.path}")
        elif item.recorded_md5 != item.md5:
            remedy = f"dvc repro {item.stage}" if item.stage else f"dvc commit {item.path}"
            obstacles.append(f"{item.path} is not what DVC has recorded; {remedy}")
    return obstacles
