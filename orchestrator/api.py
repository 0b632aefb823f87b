"""The Python entry beside the command line: `orchestrator.launch`, `orchestrator.look` and `orchestrator.staleness`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.records import barriers
from orchestrator.records.barriers import Staleness

if TYPE_CHECKING:
    from orchestrator.experiments.look import Look
    from orchestrator.worker.ensemble.model import EnsembleModel

_TRUST = "trust=true"
__all__ = ["Run", "Staleness", "launch", "load_ensemble", "look", "staleness"]


@dataclass(frozen=True)
class Run:
    """A finished run."""

    run_id: str  # of the tracker
    folder: Path  # its files
    steps: int  # how many were done
    digest: str  # of its parameters
    loss: float  # of the last step
    metrics: dict[str, float]  # of the last evaluation


def launch(
    conf: str | Path | Mapping[str, Any], *overrides: str, on_event: Callable[[Mapping[str, Any]], object] | None = None
) -> Run:
    """Launch a run from Python and wait for its end; the same as `python -m orchestrator conf=... key=value ...`.

    conf: a name in conf/, a path, or a mapping with the keys of such a file, in which the pipeline's target may be the class
    itself. on_event: called in this thread with each event of the journal as it happens, and with {"event": "step", "step":
    41, "loss": 0.5} for each step. An exception of it ends only the calls. The override "trust=true" lets it begin with what
    somebody else has made. The project is the working directory. Raises OrchestratorError when the run is refused or fails.
    """
    from orchestrator.cluster.sessions.environment import prepare_environment
    from orchestrator.config.settings import load, origins
    from orchestrator.numerics import determinism

    determinism.prepare_environment()
    given = [_named(conf) if isinstance(conf, Mapping) else str(conf)]
    trusted, overrides = _TRUST in overrides, tuple(each for each in overrides if each != _TRUST)
    settings = load(given, overrides)
    prepare_environment(settings.cluster.address)
    from orchestrator.driver.launch import launch as story  # imports ray, which reads the environment
    from orchestrator.experiments import tuning

    settings, where, measured = tuning.decided(settings, origins(given, overrides), trusted=trusted)
    run_id, outcome = story.launch(settings, where, on_event=on_event, tuning=measured, trusted=trusted)
    if outcome.error is not None:
        raise outcome.error
    assert outcome.digest is not None
    assert outcome.loss is not None
    folder = Path.cwd() / ".orchestrator" / run_id
    return Run(run_id, folder, outcome.steps, outcome.digest, outcome.loss, dict(outcome.metrics))


def look(
    run_id: str, parameter: str | None = None, *, first: int = 0, count: int | None = None, uri: str | None = None
) -> Look:
    """A parameter of a running model, exactly as the parameter servers of that run hold it, with its clock. The run goes on.

    run_id: or the beginning of it, or "last"; it runs with topology=parameter_server and sync=ssp, asp or bap. parameter: its
    name, None to see which there are. first, count: a range of its elements, in the order of memory. uri: of the MLflow
    store, None for the project's. The project is the working directory of the run. Raises OrchestratorError where there is
    nothing to see.
    """
    from orchestrator.experiments import look as story

    return story.look(run_id, parameter, first=first, count=count, uri=uri)


def load_ensemble(folder: str | Path, *, combine: str | None = None) -> EnsembleModel:
    """A trained ensemble as one torch module, in evaluation mode, from its folder `.orchestrator/ENSEMBLE_ID/model`.

    Called as a member is, it returns what a member returns: logarithms of probabilities, whose softmax they are, or values; its
    `disagreement` says of each row how much members disagree. The pipeline's class has to be importable. combine: the
    combination that the folder names, required where that is `package.module:name`: it would be called, whoever wrote the
    folder. Raises OrchestratorError where there is no ensemble, or its files are damaged.
    """
    from orchestrator.worker.ensemble.saved import load

    return load(Path(folder), combine)


def staleness(run_id: str, *, uri: str | None = None) -> list[Staleness]:
    """How stale the updates of an asynchronous run were: one entry for each of its rests. A run in lockstep has none.

    run_id: or the beginning of it, or "last"; uri: of the MLflow store, None for the project's. The project is the working
    directory. Raises OrchestratorError where there is no such run, or its record is damaged.
    """
    from orchestrator.driver.folders import project_folder
    from orchestrator.driver.recording.recorded import Recorded
    from orchestrator.provenance.tracking import Store

    folder = project_folder(Path.cwd())
    return barriers.staleness(Recorded.find(Store.with_run(uri, folder, run_id), folder, run_id).barriers() or [])


def _named(conf: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with the pipeline's class, if it is one, replaced by its name."""
    from orchestrator.errors import ConfigurationError

    section = conf.get("pipeline")
    target = section.get("target") if isinstance(section, Mapping) else None
    if not isinstance(target, type):
        return dict(conf)
    if target.__module__ == "__main__":
        raise ConfigurationError(
            [f"pipeline.target: {target.__name__} is defined in the script that runs, where workers cannot import it"],
            "move the class into a module of its own",
            code="pipeline.in-script",
        )
    return {**conf, "pipeline": {**dict(section or {}), "target": f"{target.__module__}:{target.__qualname__}"}}
