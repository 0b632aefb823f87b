"""Questions about runs that are there: which, one of them, what differs, and how they go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.api.arguments import require, require_number, require_texts
from orchestrator.api.results import Comparison, Run, found, name_of
from orchestrator.records import barriers
from orchestrator.records.barriers import Staleness

if TYPE_CHECKING:
    import pandas

    from orchestrator.experiments.look import Look


def run(run_id: str | Run = "last", *, uri: str | None = None) -> Run:
    """A recorded run, however it ended.

    run_id: or the beginning of it, or "last"; uri: of the MLflow store, None for the project's. The project is the working
    directory. Raises OrchestratorError where there is no such run.
    """
    from orchestrator.driver.folders import project_folder

    require("uri", uri, str, optional=True)
    return found(name_of(run_id), project_folder(Path.cwd()), uri)


def runs(
    where: str | Sequence[str] = "", *, columns: Sequence[str] | None = None, uri: str | None = None
) -> pandas.DataFrame:
    """The runs of this project, newest first: a row for each.

    where: conditions that all have to be true, "status=finished,optimizer.lr<0.01", or a list of them; columns: their names:
    what the command `runs` shows, every setting and metric, and labels of `run.tags` as `tag.NAME`; None for the usual ones and
    the results. uri: of the MLflow store, None for the project's. Raises OrchestratorError for names that no run has.
    """
    if not isinstance(where, str):
        require_texts("where", where)
    if columns is not None:
        require_texts("columns", columns)
    require("uri", uri, str, optional=True)
    from orchestrator.driver.terminal.progress import for_stream
    from orchestrator.experiments import listing

    known = listing.runs(Path.cwd(), uri, for_stream().say)
    conditions = where if isinstance(where, str) else ",".join(where)
    return listing.frame(listing.selected(known, conditions), columns)


def compare(first: str | Run, second: str | Run, *others: str | Run, uri: str | None = None) -> Comparison:
    """The differences between two runs, the most consequential first; of more, between the first and each of the others.

    Each is a run, its id, the beginning of one, or "last". uri: of the MLflow store, None for the project's. Raises
    OrchestratorError.
    """
    from orchestrator.experiments import compare as story

    require("uri", uri, str, optional=True)
    names = ",".join(name_of(each, "a run") for each in (first, second, *others))
    done = story.compare(names, uri)
    return Comparison(done.as_text(), done.as_dict())


def look(
    run_id: str | Run,
    parameter: str | None = None,
    *,
    first: int = 0,
    count: int | None = None,
    uri: str | None = None,
) -> Look:
    """A parameter of a running model, exactly as the parameter servers of that run hold it, with its clock. The run goes on.

    run_id: or the beginning of it, or "last"; it runs with topology=parameter_server and sync=ssp, asp or bap. parameter: its
    name, None to see which there are. first, count: a range of its elements, in the order of memory. uri: of the MLflow
    store, None for the project's. The project is the working directory of the run. Raises OrchestratorError where there is
    nothing to see.
    """
    from orchestrator.experiments import look as story

    name = name_of(run_id)
    require("parameter", parameter, str, optional=True)
    require_number("first", first, 0)
    if count is not None:
        require_number("count", count, 1)
    require("uri", uri, str, optional=True)
    return story.look(name, parameter, first=first, count=count, uri=uri)


def staleness(run_id: str | Run, *, uri: str | None = None) -> list[Staleness]:
    """How stale the updates of an asynchronous run were: one entry for each of its rests. A run in lockstep has none.

    run_id: or the beginning of it, or "last"; uri: of the MLflow store, None for the project's. The project is the working
    directory. Raises OrchestratorError where there is no such run, or its record is damaged.
    """
    from orchestrator.driver.folders import project_folder
    from orchestrator.driver.recording.recorded import Recorded

    name = name_of(run_id)
    require("uri", uri, str, optional=True)
    return barriers.staleness(Recorded.named(uri, project_folder(Path.cwd()), name).barriers() or [])
