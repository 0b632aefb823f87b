"""A repetition of whatever a name means: a run, a crate, a sweep or an ensemble; and what may be asked of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.driver.folders import project_folder
from orchestrator.driver.recording import unsent
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import UsageError, few
from orchestrator.experiments.rerun.audit import Asked, Audited
from orchestrator.experiments.rerun.run import Rerun, RerunRequest, rerun
from orchestrator.experiments.rerun.sweep import SweepRerun, rerun_sweep
from orchestrator.experiments.sweep.record import find_sweep
from orchestrator.provenance.crates import crate
from orchestrator.provenance.tracking import Store

_ENVIRONMENTS = ("check", "ignore", "rebuild")


def require_known(environment: str, count: int | None) -> None:
    """Raises UsageError for what the command line refuses as it reads it."""
    if environment not in _ENVIRONMENTS:
        raise UsageError(
            f"environment={environment}: it is {few(_ENVIRONMENTS, len(_ENVIRONMENTS))}", code="rerun.environment"
        )
    if count is not None and count < 1:
        raise UsageError(f"audit={count}: expected a whole number, at least 1", code="rerun.audit-number")


def asked(count: int | None, seed: str | None) -> Asked | None:
    """The audit that is asked for. Raises UsageError."""
    if count is None and seed is not None:
        raise UsageError(
            "audit.seed= draws the segments of an audit, which is not asked for", "add audit=N", code="rerun.audit-seed"
        )
    return None if count is None else Asked(count, seed)


def repeat(name: str, overrides: Sequence[str], uri: str | None, wanted: RerunRequest) -> Rerun | Audited | SweepRerun:
    """The whole story. overrides: of the settings.

    Raises UsageError, ConfigurationError and NotRerunnable before anything is started.
    """
    _require_one_kind(wanted)
    past = None
    if not crate.is_crate(name) and wanted.key is None:
        say = for_stream().say
        store = unsent.opened(uri, project_folder(Path.cwd()), name, say)
        name = _original(name, store, say)
        past = find_sweep(name, store)
    if past is None:
        return rerun(name, overrides, uri, wanted)
    _require_whole(wanted)
    return rerun_sweep(past, overrides, uri, check_environment=wanted.check_environment, trusted=wanted.trusted)


def _original(name: str, store: Store, say: Callable[[str], None]) -> str:
    """The run that is repeated: for `last`, if that is a repetition which did not come to its end, the one that it repeats.
    Raises UsageError and ConfigurationError."""
    if name != "last":
        return name
    past = newest = store.find(name)
    while past.rerun_of is not None and past.verdict is None:
        past = store.find(past.rerun_of)
    if past is not newest:
        say(
            f"{newest.run_id} is a repetition that did not come to its end: {past.run_id}, which it repeats, is repeated"
        )
    return past.run_id


def _require_one_kind(wanted: RerunRequest) -> None:
    """Raises UsageError for requests that do not go together."""
    if wanted.auditing is not None and (wanted.explaining or wanted.preparing):
        what = "explain" if wanted.explaining else "stages"
        raise UsageError(
            f"{what}=true goes with the repetition of a whole run, and audit= repeats parts",
            f"leave {what} out",
            code="rerun.audit-repeats-parts",
        )
    if wanted.wheels is not None and not wanted.rebuilding:
        raise UsageError(
            "wheels= names a folder of wheels for environment=rebuild, which is not asked for",
            "add it",
            code="rerun.wheels-unused",
        )


def _require_whole(wanted: RerunRequest) -> None:
    """Raises UsageError for what a sweep cannot be asked."""
    if wanted.auditing is not None:
        raise UsageError("audit: a sweep has many runs", "name one of its trials", code="rerun.audit-of-sweep")
    if wanted.explaining:
        raise UsageError(
            "explain=true: a sweep has many runs",
            "name the one of its trials that has diverged",
            code="rerun.explain-of-sweep",
        )
    if wanted.rebuilding:
        raise UsageError(
            "environment=rebuild: a sweep has many runs", "name one of its trials", code="rerun.rebuild-of-sweep"
        )
    if wanted.preparing:
        raise UsageError("stages=true: a sweep has many runs", "name one of its trials", code="rerun.stages-of-sweep")
