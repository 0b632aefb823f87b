"""The functions that start workers: a launch, going on, a repetition, a sweep. Progress is shown, and Ctrl-C stops in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from orchestrator.api.arguments import require, require_callable, require_one_of, require_overrides
from orchestrator.api.one_launch import alone
from orchestrator.api.results import Rerun, Run, Sweep, name_of
from orchestrator.records import phases

if TYPE_CHECKING:
    from orchestrator.driver.report.outcome import RunOutcome
    from orchestrator.errors import OrchestratorError
    from orchestrator.experiments.sweep.report import SweepReport

_TRUST = "trust=true"


@phases.of_a_launch()
@alone()
def launch(
    conf: str | Path | Mapping[str, Any], *overrides: str, on_event: Callable[[Mapping[str, Any]], object] | None = None
) -> Run:
    """Launch a run from Python and wait for its end; the same as `python -m orchestrator conf=... key=value ...`.

    conf: a name in conf/, a path, or a mapping with the keys of such a file. A class or function in the mapping stands for its
    name; one of a notebook's cells is written to a module of the project, with what it needs. on_event: called in this thread
    with each event of the journal as it happens, and with {"event": "step", "step": 41, "loss": 0.5} for each step. An
    exception of it ends only the calls. The override "trust=true" lets it begin with what somebody else has made. The project
    is the working directory. Raises OrchestratorError when the run is refused or fails; its `run_id` names a run that began.
    """
    from orchestrator.api.definitions import named
    from orchestrator.config.settings import load, origins

    require_overrides(overrides)
    require("conf", conf, str, Path, Mapping)
    if on_event is not None:
        require_callable("on_event", on_event)
    trusted, overrides = _TRUST in overrides, tuple(each for each in overrides if each != _TRUST)
    _find_modules_of_the_project()
    _import_anew()
    with named(conf) as given:
        _prepare_numerics()
        settings = load([given], overrides)
        _prepare_ray(settings.cluster.address)
        from orchestrator.driver.launch import launch as story  # imports ray, which reads the environment
        from orchestrator.experiments import tuning

        settings, where, measured = tuning.decided(settings, origins([given], overrides), trusted=trusted)
        run_id, outcome = story.launch(settings, where, on_event=on_event, tuning=measured, trusted=trusted)
    typed = (f"conf={given}", *overrides, *([_TRUST] if trusted else [])) if isinstance(given, str) else ()
    return _ended(run_id, outcome, typed, settings.tracking.uri)


@phases.of_a_launch()
@alone()
def resume(run_id: str | Run = "last", *overrides: str, trust: bool = False, uri: str | None = None) -> Run | Sweep:
    """Go on with a run, a sweep or an ensemble from where it stands, and wait for its end; the same as `resume=RUN_ID`.

    run_id: or the beginning of it, or "last"; overrides: how it is executed may change, "cluster.workers=2"; trust: also one
    of somebody else, whose code is executed. uri: of the MLflow store, None for the project's. Raises OrchestratorError.
    """
    require_overrides(overrides)
    name = name_of(run_id)
    require("trust", trust, bool)
    require("uri", uri, str, optional=True)
    _find_modules_of_the_project()
    _prepare_numerics()
    from orchestrator.experiments import addresses

    _prepare_ray(addresses.of_record(name, overrides, uri))
    from orchestrator.experiments.resume import resume as story
    from orchestrator.experiments.sweep.report import SweepReport

    done = story(name, overrides, uri, trusted=trust)
    if isinstance(done.ended, SweepReport):
        return _ended_sweep(done.ended, uri)
    return _ended(done.id, done.ended, (), uri)


def rerun(
    run_id: str | Path | Run = "last",  # or the beginning of it, or the path of a crate
    *overrides: str,  # how it is executed may change
    audit: int | None = None,  # repeat only so many segments between kept checkpoints
    seed: str | None = None,  # by which these segments are drawn
    # whether the packages have to be those of the record; "rebuild" installs them anew
    environment: Literal["check", "ignore", "rebuild"] = "check",
    wheels: str | Path | None = None,  # a folder of wheels from which they are installed
    explain: bool = False,  # where it has diverged, run that step once more
    stages: bool = False,  # execute the DVC stages of its data first
    key: str | Path | None = None,  # the public key that has to have signed a crate
    trust: bool = False,  # repeat also what somebody else has made
    uri: str | None = None,  # of the MLflow store; None for the project's
) -> Rerun:
    """Repeat a run, a sweep or a crate exactly, in a clean checkout of its code with its data, and compare; the same as
    `rerun=RUN_ID`. A verdict other than "exact" is no exception. Raises OrchestratorError where it comes to
    no verdict."""
    require_overrides(overrides)
    name = name_of(run_id, of_crate=True)
    require("audit", audit, int, optional=True)
    require("seed", seed, str, optional=True)
    require("wheels", wheels, str, Path, optional=True)
    require("explain", explain, bool)
    require("stages", stages, bool)
    require("key", key, str, Path, optional=True)
    require("trust", trust, bool)
    require("uri", uri, str, optional=True)
    _find_modules_of_the_project()
    _prepare_numerics()
    from orchestrator.driver.folders import project_folder
    from orchestrator.experiments.rerun import repetition
    from orchestrator.experiments.rerun.run import RerunRequest

    repetition.require_known(environment, audit)
    wanted = RerunRequest(
        check_environment=environment != "ignore",
        explaining=explain,
        trusted=trust,
        key=None if key is None else Path(key),
        rebuilding=environment == "rebuild",
        wheels=None if wheels is None else Path(wheels),
        preparing=stages,
        auditing=repetition.asked(audit, seed),
    )
    done = repetition.repeat(name, overrides, uri, wanted)
    report = done.as_dict()
    new = report["sweep_id"] if "sweep_id" in report else report["run_id"]
    if done.error is not None:
        _fail(done.error, new)
    return Rerun(report["verdict"], done.text, new, done.rerun_of, report, project_folder(Path.cwd()), uri)


@alone()
def sweep(
    conf: str | Path | Mapping[str, Any],
    *overrides: str,
    kind: Literal["sweep", "ensemble"] = "sweep",
    trust: bool = False,
) -> Sweep:
    """Search for settings, each trial a run, or train the members of an ensemble, and wait for the end; the same as
    `sweep=NAME` and `ensemble=NAME`.

    conf, overrides: as `launch` takes them, with the sections of a sweep, "parallel=2", "search.trials=8"; trust: whether its
    runs may begin with what somebody else has made. Raises OrchestratorError.
    """
    from orchestrator.api.definitions import named

    require_overrides(overrides)
    require("conf", conf, str, Path, Mapping)
    require_one_of("kind", kind, "sweep", "ensemble")
    require("trust", trust, bool)
    _find_modules_of_the_project()
    _import_anew()
    with named(conf) as given:
        _prepare_numerics()
        from orchestrator.experiments import addresses

        _prepare_ray(addresses.of_sweep(given, overrides, kind))
        from orchestrator.experiments.sweep.sweep import sweep as story

        report = story(given, overrides, kind, trusted=trust)
    return _ended_sweep(report, report.uri)


def _find_modules_of_the_project() -> None:
    """From the working directory, as the command line and all workers do: a script has its own folder in place of it."""
    if not {"", str(Path.cwd())} & {*sys.path}:
        sys.path.insert(0, "")


def _import_anew() -> None:
    """A module of the project that was edited since this process has imported it."""
    from orchestrator.driver.terminal.progress import for_stream
    from orchestrator.errors import few
    from orchestrator.provenance.code import marks

    if edited := marks.forget_edited(Path.cwd()):
        for_stream().say(
            f"note: {few(edited, 3)}: edited since this process has imported it; the project's modules are imported anew"
        )


def _prepare_numerics() -> None:
    """Before torch is imported."""
    from orchestrator.numerics import determinism

    determinism.prepare_environment()


def _prepare_ray(address: str | None) -> None:
    """Before Ray is imported."""
    from orchestrator.cluster.sessions.environment import prepare_environment

    prepare_environment(address)


def _ended(run_id: str, outcome: RunOutcome, typed: tuple[str, ...], uri: str | None) -> Run:
    if outcome.error is not None:
        _fail(outcome.error, run_id, resumable=outcome.checkpoint is not None and not outcome.recurs)
    folder = Path.cwd() / ".orchestrator" / run_id
    return Run(run_id, folder, outcome.steps, outcome.digest, outcome.loss, dict(outcome.metrics), typed, uri)


def _ended_sweep(report: SweepReport, uri: str | None) -> Sweep:
    if report.error is not None:
        _fail(report.error, report.sweep_id, resumable=True)
    assert report.sweep_id is not None
    return Sweep(report.sweep_id, Path.cwd() / ".orchestrator" / report.sweep_id, report.as_dict(), uri)


def _fail(error: OrchestratorError, run_id: str | None, *, resumable: bool = False) -> NoReturn:
    error.run_id = run_id
    if resumable:
        error.add_note(f"go on: orchestrator.resume({run_id!r})")
    raise error
