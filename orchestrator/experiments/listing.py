"""The runs of a project, newest first: all, or those of which conditions are true, with columns that are asked for."""

from __future__ import annotations

import contextlib
import difflib
import operator
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.common.figures import aligned
from orchestrator.driver.folders import NAME, has_begun, is_driven, project_folder
from orchestrator.driver.recording import unsent
from orchestrator.driver.terminal import console
from orchestrator.errors import ConfigurationError, UsageError
from orchestrator.provenance.tracking import LABEL, Past, Store, as_argument, is_server, is_there, orphaned

if TYPE_CHECKING:
    import pandas

USUAL = ("run", "started", "status", "name", "steps", "results", "digest", "rerun")
_SHOWN_METRICS = 2
_TOO_EARLY = "it ended before its code was recorded, and before its first step: launch it again"
_LONGEST = 60  # characters of a name in the table
_RESULTS = ("validation/", "train/")
_NO_VALUE = ("null", "None")  # the text of a setting that has none
_CONDITION = re.compile(r"([^=!<>]+)(!=|<=|>=|=|<|>)(.*)")
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def runs(project: Path, uri: str | None = None, say: Callable[[str], None] = lambda _: None) -> list[Past]:
    """Those of the project's own store, none where nothing was ever launched; or those of the store `uri`. Before, stores are
    sent what they lack of the project's runs, and the end of a driver that could not tell it is told for it; say: told what
    came of that.

    Raises ConfigurationError.
    """
    folder = project / NAME
    store = _store(project, uri)
    sent = unsent.send_all(folder, store)
    for each in sent:
        say(f"note: {each.sentence}")
    if store is None:
        return []
    untold = {each.run_id for each in sent if each.trouble is not None}  # it may have ended in order
    return _without_orphans(store, folder, store.past(), untold, say)


def _without_orphans(
    store: Store, folder: Path, runs: list[Past], untold: Collection[str], say: Callable[[str], None]
) -> list[Past]:
    """With those as killed whose driver is gone; the store is told so, if it can be."""
    left = [
        past for past in runs if past.is_orphan and past.run_id not in untold and not is_driven(folder, past.run_id)
    ]
    for past in left:
        say(f"note: {orphaned(past.run_id)}; {_what_follows(past, folder / past.run_id, store.name)}")
    with contextlib.suppress(ConfigurationError), store.usable():
        store.mark(left)
    return [replace(past, status="KILLED", is_orphan=False) if past in left else past for past in runs]


def _what_follows(past: Past, place: Path, store: str | None) -> str:
    """place: the folder of the run; store: that has it, as output may show it, None for the project's."""
    if past.kind == "audit":
        return "type `rerun=RUN_ID audit=N` once more"
    if place.is_dir() and not has_begun(place):
        return _TOO_EARLY
    return f"`resume={past.run_id}{as_argument(store)}` goes on with it"


def _store(project: Path, uri: str | None) -> Store | None:
    folder = project / NAME
    if uri is not None:
        return Store(uri, folder if is_server(uri) else project_folder(project))
    return Store(None, folder) if is_there(folder / "mlflow.db") else None


def columns(wanted: str | None) -> tuple[str, ...]:
    """The columns of the table: those that are named, separated by commas, or the usual ones. Settings and metrics are
    columns too."""
    names = tuple(name for name in (wanted or "").split(",") if name)
    return names or USUAL


def selected(runs: Sequence[Past], where: str | None) -> list[Past]:
    """The runs of which every condition is true: "status=finished,optimizer.lr<0.01". Raises UsageError."""
    conditions = [_condition(text) for text in (where or "").split(",") if text]
    if runs and conditions:
        _check_names(runs, [name for name, _, _ in conditions])
    return [past for past in runs if all(_holds(past, *condition) for condition in conditions)]


def table(runs: Sequence[Past], shown: Sequence[str] = USUAL) -> str:
    """One line per run: enough of the id to name it, when, how it ended, what it came to. A long name is cut."""
    if not runs:
        return "no such runs; launch one with conf=NAME"
    _check_names(runs, shown)
    rows: list[tuple[str, ...]] = [tuple(shown)]
    rows += [tuple(console.plain(cell(past, column)) for column in shown) for past in map(_named_shortly, runs)]
    return aligned(rows)


def _named_shortly(past: Past) -> Past:
    """A name may be as long as the store takes, and the column would be as wide for all runs."""
    return past if len(past.name) <= _LONGEST else replace(past, name=f"{past.name[: _LONGEST - 1]}…")


def cell(past: Past, name: str) -> str:
    """The text in a column; empty if the run has no such thing."""
    if name in _CELLS:
        return _CELLS[name](past)
    if name in past.metrics:
        return f"{past.metrics[name]:.6g}"
    if name.startswith(LABEL):
        return past.labels.get(name.removeprefix(LABEL), "")
    return past.settings.get(name, "")


def frame(runs: Sequence[Past], shown: Sequence[str] | None = None) -> pandas.DataFrame:
    """The same as a table of pandas, with whole ids, times and numbers as such. shown: columns; None for the usual ones, with
    every result. Raises UsageError for a name that no run has."""
    import pandas

    if shown is None:
        results = sorted({name for past in runs for name in past.metrics if name.startswith(_RESULTS)})
        shown = [*(name for name in USUAL if name != "results"), *results]
    elif runs:
        _check_names(runs, shown)
    return pandas.DataFrame([[_value(past, name) for name in shown] for past in runs], columns=list(shown))


def _value(past: Past, name: str) -> Any:
    """The value in a column; None if the run has no such thing."""
    if name in _VALUES:
        return _VALUES[name](past)
    if name in past.metrics and name not in _CELLS:
        return past.metrics[name]
    return _read(cell(past, name))


def _read(text: str) -> Any:
    """A setting as it was: the store keeps text. A text such as 007 or 2024_01, which Python writes of no number, is none."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            if str(number := kind(text)) == text:
                return number
    return {"": None, **dict.fromkeys(_NO_VALUE), "True": True, "False": False}.get(text, text)


def _check_names(runs: Sequence[Past], names: Iterable[str]) -> None:
    """Raises UsageError for a name that no run has."""
    known = {*_CELLS, *(key for past in runs for key in (*past.metrics, *past.settings))}
    known |= {f"{LABEL}{label}" for past in runs for label in past.labels}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 3)
            hint = (
                f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_CELLS)}, settings and metrics"
            )
            raise UsageError(f"runs: no run has {name!r}", hint, code="record.no-such-name")


def _condition(text: str) -> tuple[str, str, str]:
    """(name, operator, value). Raises UsageError."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(
            f"where={text}: it is no condition",
            "write NAME=VALUE, NAME!=VALUE, NAME<VALUE, <=, > or >=, separated by commas",
            code="record.condition",
        )
    return found[1], found[2], found[3]


def _holds(past: Past, name: str, sign: str, value: str) -> bool:
    """Numbers are compared as such, an id or a digest by as much of it as is given; a run that has no such thing is no
    match."""
    if name in _OF_DIGITS and sign in ("=", "!="):
        whole = _VALUES[name](past) or ""
        return bool(whole) and (value != "" and whole.startswith(value)) is (sign == "=")
    held = str(past.metrics[name]) if name in past.metrics and name not in _CELLS else cell(past, name)
    held = past.name if name == "name" else held  # without the kind
    try:
        return bool(held) and _COMPARED[sign](float(held), float(value))
    except ValueError:
        if sign in ("=", "!="):
            return bool(held) and _COMPARED[sign](held, value)
        if held in _NO_VALUE:
            return False
        raise UsageError(
            f"where: {name} {sign} {value}: {held!r} is not a number that could be compared",
            code="record.not-comparable",
        ) from None


def _started(past: Past) -> str:
    return datetime.fromtimestamp(past.started_ms / 1000).strftime("%Y-%m-%d %H:%M")


def _results(past: Past) -> str:
    chosen = [entry for entry in past.metrics.items() if entry[0].startswith(_RESULTS)]
    metrics = sorted(chosen, key=lambda entry: (not entry[0].startswith("validation/"), entry[0]))
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics[:_SHOWN_METRICS])


def _rerun(past: Past) -> str:
    """The verdict, and of which run this one is the rerun."""
    if past.rerun_of is None:
        return past.verdict or ""
    return f"{past.verdict or 'no verdict'}, of {past.rerun_of[:8]}"


_VALUES: dict[str, Callable[[Past], Any]] = {  # of those cells that are no text
    "run": lambda past: past.run_id,
    "started": lambda past: datetime.fromtimestamp(past.started_ms / 1000, UTC),
    "name": lambda past: past.name,
    "steps": lambda past: past.steps,
    "digest": lambda past: past.digest,
}
_OF_DIGITS = ("run", "digest")  # hexadecimal ones, which are no number where they look like one
_CELLS: dict[str, Callable[[Past], str]] = {
    "run": lambda past: past.run_id[:8],
    "started": _started,
    "status": lambda past: past.status.lower(),
    "name": lambda past: past.name if past.kind == "run" else f"{past.name} ({past.kind})",
    "experiment": lambda past: past.experiment,
    "user": lambda past: past.user or "",
    "steps": lambda past: "" if past.steps is None else str(past.steps),
    "results": _results,
    "digest": lambda past: (past.digest or "")[:12],
    "rerun": _rerun,
}
