"""A later command sends MLflow what it lacks of earlier runs, such as one whose server was gone at its end.

Each run's folder holds what is missing (`provenance.tracking.outbox`); a lock there keeps two processes from sending it at
once, and who would drive the run meanwhile waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.driver import copies
from orchestrator.driver.folders import RunFolder
from orchestrator.errors import OrchestratorError
from orchestrator.provenance.tracking import Store, Tracker, default_uri, outbox
from orchestrator.provenance.tracking.addresses import database_of
from orchestrator.provenance.tracking.store_errors import reason


@dataclass(frozen=True)
class Sent:
    """The result for one run. trouble: why MLflow still lacks some of it, or None; gone: files that were to be sent, and are
    not there any more; refused: what MLflow takes never; is_left_out: nothing was sent, since the run has gone on elsewhere."""

    run_id: str
    trouble: str | None = None
    gone: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    is_left_out: bool = False

    @property
    def sentence(self) -> str:
        if self.trouble is not None:
            return (
                f"MLflow still lacks some of run {self.run_id}: {self.trouble}\n"
                f"  to give that up, remove .orchestrator/{self.run_id}/{outbox.FILE}"
            )
        if self.is_left_out:
            return f"what MLflow lacked of run {self.run_id} is left out: another process has gone on with it elsewhere"
        lost = (
            f", except for {', '.join(self.gone)}, of which the run's folder has nothing any more" if self.gone else ""
        )
        never = f", and except for {', '.join(self.refused)}, which it refuses" if self.refused else ""
        return f"MLflow has got what it lacked of run {self.run_id}{lost}{never}"


def send(store: Store) -> list[Sent]:
    """Send this store what it lacks of runs of this project; those that somebody drives or sends are passed over."""
    return [_send(store, run_id) for run_id, name in _waiting(store.folder) if name == store.name]


def send_first(store: Store, say: Callable[[str], None]) -> list[Sent]:
    """As `send`, before a run is read there: it would seem to run, and to have no digest. say: told what came of it."""
    sent = send(store)
    for each in sent:
        say(f"note: {each.sentence}")
    return sent


def opened(uri: str | None, folder: Path, name: str, say: Callable[[str], None]) -> Store:
    """The store that has a run of this name, once it has what it lacked. Raises as `Store.with_run`."""
    store = Store.with_run(uri, folder, name)
    send_first(store, say)
    return store


def send_all(folder: Path, given: Store | None) -> list[Sent]:
    """The same for every store that lacks something. folder: the project's `.orchestrator`; given: one that is open."""
    stores: dict[str | None, Store | str] = {} if given is None else {given.name: given}
    found = []
    for run_id, name in _waiting(folder):
        if name not in stores:
            stores[name] = _opened(folder, name)
        store = stores[name]
        found.append(Sent(run_id, store) if isinstance(store, str) else _send(store, run_id))
    return found


def _waiting(folder: Path) -> Iterator[tuple[str, str | None]]:
    """(id, name of its store) of each run that has something to be sent and that no other process sends. Its folder is leased
    meanwhile."""
    for path in sorted(folder.glob(f"*/{outbox.FILE}")):
        files = RunFolder(folder, path.parent.name)
        with files.sending() as may:
            if not may:
                continue
            if path.exists() and path.stat().st_size:  # else somebody has just sent it
                name = outbox.store_of(path)  # a rerun, which ran elsewhere, names the project's own by its address
                yield files.path.name, None if name == default_uri(folder) else name
            else:
                path.unlink(missing_ok=True)


def _opened(folder: Path, name: str | None) -> Store | str:
    """The store, or why it cannot be asked."""
    database = folder / "mlflow.db" if name is None else database_of(name)
    if database is not None and not database.exists():
        return f"{database} is gone"
    try:
        return Store(name, folder)
    except OrchestratorError as error:
        return error.message if error.__cause__ is None else reason(error.__cause__)


def _send(store: Store, run_id: str) -> Sent:
    files = RunFolder(store.folder, run_id)
    try:
        if copies.is_behind(store, run_id, store.driving(run_id).driver, files):  # it would undo what that one has told
            (files.path / outbox.FILE).unlink()
            return Sent(run_id, is_left_out=True)
        tracker = Tracker.catch_up(store, run_id)
    except Exception as error:  # MLflow's, requests', of a damaged file
        return Sent(run_id, reason(error))
    return Sent(run_id, tracker.trouble, tuple(tracker.gone), tuple(tracker.refused))
