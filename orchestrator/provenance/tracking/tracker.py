"""One MLflow run, from its creation to its end. Metrics are collected and sent in batches: a single one costs 4 to 90 ms.

Once the run exists, a store that fails, such as a server that goes away, ends nothing: what it did not take is kept and tried
again, and `trouble` says why. It is kept in a file too (`outbox`), from which another process sends it when this one has
ended. An item that the store refuses for good is left out and told (`notes`), and holds nothing else back.

The driver is held up while it sends, and workers that do not hear of it for long end themselves. So `tick` and `sync` send for
a second and then leave time for others, however much there is to be sent and however slow the store is.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from orchestrator import errors
from orchestrator.errors import few
from orchestrator.provenance.tracking import names, outbox, uploads
from orchestrator.provenance.tracking.client import PATIENCE_S, Dataset, Metric, Param, RunTag
from orchestrator.provenance.tracking.models import ModelFolder, ModelLog, Registration
from orchestrator.provenance.tracking.outbox import Item, Outbox
from orchestrator.provenance.tracking.store import (
    Store,
    infinite,
    tags_of_driver,
)
from orchestrator.provenance.tracking.store_errors import has_answered, is_forbidden, is_passing, is_refusal, reason
from orchestrator.provenance.tracking.uploads import NotThere, Sizes

if TYPE_CHECKING:
    from mlflow.entities import Run

Status = Literal["FINISHED", "FAILED", "KILLED"]
STATUS: Final[Mapping[errors.Status, Status]] = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
Listener = Callable[[int, Mapping[str, float]], object]
Point = tuple[str, int, float | None]  # key, step, value; None where it is no number
ERROR = "error"  # the tag of a run that has failed or was stopped: why
_BATCH, _TAGS = 1000, 100  # MLflow's limits for one request: of metrics, and of tags or parameters
_PATIENCE_S = 30.0
_HELD_S = 1.0  # after which no further request is begun
_LOCKED_S = 3.0  # with other writers of a database then, such as a backup
_REST = 3.0  # times as long as the last sending took
_PAUSES_S = (1.0, 2.0, 4.0)  # at the end, before another try at a store that is there
_MOST_FAILURES = 3  # of one kind of item, of a store that answers
_SHOWN = 3
_OF_A_STEP = "train/"  # metrics that each step has


class Tracker:
    """Made by `create`, `reopen` or `catch_up`. every_s: how long metrics may wait. gone: files that were to be sent, and are
    not there any more; refused: what the store did not take and never will; registered: the URI of the version of its model in
    the registry, once there is one."""

    def __init__(self, store: Store, run: Run, *, every_s: float) -> None:
        self._client = store.client
        self.run_id: str = run.info.run_id
        self.name: str = run.info.run_name
        self.experiment_id: str = run.info.experiment_id
        self.started_ms: int = run.info.start_time
        self.artifacts: str = run.info.artifact_uri
        self._every_s = every_s
        self._outbox = Outbox(store.folder / self.run_id, store.name)
        self._known: frozenset[Point] = frozenset()
        self._pending: list[Any] = []
        self._later: list[Item] = []  # after the metrics, in order
        self._uploaded: dict[
            str, tuple[Item, Sizes]
        ] = {}  # by path at the server, which was not asked yet whether it has it
        self.gone: list[str] = []
        self.refused: list[str] = []
        self.registered: str | None = None
        self._renamed: dict[str, str] = {}
        self._told = 0, 0  # of those that are refused, and renamed
        self.listeners: list[Listener] = []  # told of metrics as they are remembered
        self.trouble: str | None = None
        self.upload_s = 0.0  # that all artifacts have taken
        self._sent_at = time.monotonic()
        self._rest_s = 0.0  # before the next sending

    @classmethod
    def create(cls, store: Store, experiment_id: str, name: str, *, every_s: float) -> Tracker:
        """A new run."""
        run = store.client.create_run(experiment_id, tags=tags_of_driver(), run_name=names.text(name))
        return cls(store, run, every_s=every_s)

    @classmethod
    def reopen(cls, store: Store, run_id: str, *, every_s: float, since: int = 0) -> Tracker:
        """A run that has ended, which goes on in this process. since: the step from which on it computes again, and the store
        may know of that already."""
        store.tag(run_id, tags_of_driver())  # first: whoever looks for orphans takes it for one otherwise
        store.client.update_run(run_id, status="RUNNING")
        tracker = cls(store, store.client.get_run(run_id), every_s=every_s)
        unsent = outbox.read(store.folder / run_id / outbox.FILE)
        tracker._take([item for item in unsent if "end" not in item])
        tracker.flush()
        if ERROR in store.client.get_run(run_id).data.tags:  # with which it ended then
            store.client.delete_tag(run_id, ERROR)
        tracker._known = tracker._points(since)
        return tracker

    @classmethod
    def catch_up(cls, store: Store, run_id: str) -> Tracker:
        """Send what a run lacks that nobody drives any more; `trouble` is None when the store has everything. To be called
        under the lease of the run's folder. Raises what MLflow raises when the run cannot be had, ValueError for a damaged
        file."""
        items = outbox.read(store.folder / run_id / outbox.FILE)
        tracker = cls(store, store.client.get_run(run_id), every_s=math.inf)
        tracker._take(items)
        tracker.flush()
        tracker._rest()
        return tracker

    @property
    def reached(self) -> int:
        """The number of steps of which the store had heard when the run was reopened, behind those that stand; 0 where there
        are none."""
        return max((step + 1 for key, step, _ in self._known if key.startswith(_OF_A_STEP)), default=0)

    def describe(self, parameters: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Parameters are written once; None and empty texts are shown as such, since MLflow wants text."""
        params = [Param(self._key(key), names.parameter(value)) for key, value in parameters.items()]
        labels = [RunTag(self._key(key), names.text(value)) for key, value in tags.items()]
        for start in range(0, max(len(params), len(labels)), _TAGS):
            part = slice(start, start + _TAGS)
            self._log("params", params[part])
            self._log("tags", labels[part])

    def inputs(self, data: Iterable[tuple[str, str, str]]) -> None:
        """Data that the run reads, as MLflow's dataset inputs: (name, digest, source). Remembered, like metrics."""
        found = [list(each) for each in data]
        if found:
            self._add({"inputs": found})

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Remember metrics; they are sent by `flush`, `tick` or `end`. A resumed run computes some steps again, and what the
        store knows of them it is not told twice; listeners are, who may have lost it."""
        points = {self._key(key): float(value) for key, value in values.items()}
        for listener in self.listeners:
            listener(step, points)
        if self._known:
            points = {key: value for key, value in points.items() if _point(key, step, value) not in self._known}
        if points:
            self._add({"metrics": points, "step": step, "ms": _now_ms()})

    def tick(self) -> None:
        """Send what has waited long enough, for a moment; after a failure not before `_PATIENCE_S`."""
        waited_s = time.monotonic() - self._sent_at
        patience_s = self._every_s if self.trouble is None else _PATIENCE_S
        is_full = self.trouble is None and len(self._pending) >= _BATCH
        if (is_full or waited_s >= patience_s) and waited_s >= self._rest_s:
            self._try(_HELD_S)

    def flush(self) -> None:
        """Send everything, or as much as the store takes: `trouble` says what went wrong, the rest is kept."""
        self._try(math.inf)

    def _try(self, limit_s: float) -> Exception | None:
        """As `flush`, for so long. Returns what went wrong."""
        first: Exception | None = None
        began = time.monotonic()
        self._client.patience_s = PATIENCE_S if math.isinf(limit_s) else _LOCKED_S
        for send in (self._send_metrics, self._send_later, self._confirm):
            try:
                send(began + limit_s)
            except Exception as error:  # MLflow's, sqlite's, requests': the run does not depend on them
                first = first or error
                if not has_answered(error):
                    break
        self._client.patience_s = PATIENCE_S
        self.trouble = None if first is None else reason(first)
        if first is None and not self._left:
            self._outbox.clear()
        self._sent_at = time.monotonic()
        self._rest_s = _REST * (self._sent_at - began)
        return first

    @property
    def _left(self) -> int:
        return len(self._pending) + len(self._later) + len(self._uploaded)

    def _send_metrics(self, until: float) -> None:
        """Raises what MLflow raises."""
        while self._pending and time.monotonic() < until:
            self._log("metrics", self._pending[:_BATCH])
            del self._pending[:_BATCH]

    def _send_later(self, until: float) -> None:
        """An item that the store does not take holds back none that it takes. Raises what MLflow raises."""
        failed: list[Item] = []
        failures: Counter[str] = Counter()
        first: Exception | None = None
        try:
            while self._later and time.monotonic() < until:
                items = self._together()
                kind = next(iter(items[0]))
                if failures[kind] == _MOST_FAILURES:
                    failed += items
                else:
                    try:
                        self._send_together(items)
                    except Exception as error:
                        if not has_answered(error):
                            raise
                        first = first or error
                        failures[kind] += 1
                        failed += items
                del self._later[: len(items)]
        finally:
            self._later[:0] = failed
        if first is not None:
            raise first

    def _together(self) -> list[Item]:
        """The first item, with the tags that follow it where it is a tag of this run: a request takes a slow server seconds."""
        mine = itertools.takewhile(lambda item: item.get("tag", [None])[0] == self.run_id, self._later)
        return list(itertools.islice(mine, _TAGS)) or self._later[:1]

    def _send_together(self, items: list[Item]) -> None:
        """Raises what MLflow raises."""
        if len(items) > 1:
            last = {key: value for _, key, value in (item["tag"] for item in items)}
            self._log("tags", [RunTag(key, value) for key, value in last.items()])
        else:
            self._unless_refused(lambda: self._send(items[0]), _named(items[0]))

    def _confirm(self, until: float) -> None:
        """Ask the server for the artifacts that it was sent, and have those sent again that it lacks. Raises what MLflow
        raises, NotThere."""
        if self._uploaded and time.monotonic() < until:
            sent = {path: sizes for path, (_, sizes) in self._uploaded.items()}
            try:
                uploads.check(sent, lambda folder: self._client.list_artifacts(self.run_id, folder))
            except NotThere as error:
                self._later[:0] = [self._uploaded[path][0] for path in error.paths]
                self._uploaded.clear()
                raise
            except Exception as error:
                if not is_refusal(error):  # a server before MLflow 3 cannot be asked
                    raise
            self._uploaded.clear()

    def _log(self, kind: Literal["metrics", "params", "tags"], items: list[Any]) -> None:
        """If a request is refused, each half is sent by itself. Raises what MLflow raises."""
        request: dict[str, Any] = {kind: items}
        if len(items) == 1:
            what = f"{kind.removesuffix('s')} {items[0].key}"
            self._unless_refused(lambda: self._client.log_batch(self.run_id, **request), what)
        elif items:
            try:
                self._client.log_batch(self.run_id, **request)
            except Exception as error:
                if not is_refusal(error):
                    raise
                self._log(kind, items[: len(items) // 2])
                self._log(kind, items[len(items) // 2 :])

    def _unless_refused(self, send: Callable[[], object], what: str) -> None:
        """Send something by itself, and note where it is refused. Raises what else MLflow raises."""
        try:
            send()
        except Exception as error:
            is_alive = is_refusal(error) and self._client.get_run(self.run_id).info.lifecycle_stage == "active"
            if not is_alive:  # of a run that was deleted everything is refused, until it is brought back
                raise
            self._refuse(what, error)

    def _refuse(self, what: str, error: Exception) -> None:
        refused = f"{what} ({reason(error)})"
        if refused not in self.refused:
            self.refused.append(refused)

    def notes(self) -> list[str]:
        """The news about names that are others in MLflow, and about refused items."""
        renamed = [f"{name!r} is {key}" for name, key in list(self._renamed.items())[self._told[1] :]]
        refused = self.refused[self._told[0] :]
        self._told = len(self.refused), len(self._renamed)
        found = [f"MLflow takes other names: there {few(renamed, _SHOWN)}"] if renamed else []
        return [*found, *([f"MLflow refuses {few(refused, _SHOWN)}; all else is there"] if refused else [])]

    def _key(self, name: str) -> str:
        """The name in MLflow. The whole of a name that is too long stands in a tag."""
        key = names.valid(name)
        if key != name and name not in self._renamed:
            self._renamed[name] = key
            if names.is_cut(key):
                self._add({"tag": [self.run_id, f"name.{key[-names.DIGITS :]}", names.text(name)]})
        return key

    def sync(self) -> None:
        """Have all that was told either at the store or on the disk. Raises OSError."""
        if self.trouble is None and time.monotonic() - self._sent_at >= self._rest_s:
            self._try(_HELD_S)
        self._outbox.sync()

    def tag(self, key: str, value: str) -> None:
        """Remembered, like metrics."""
        self.tag_other(self.run_id, key, value)

    def tag_other(self, run_id: str, key: str, value: str) -> None:
        """A tag on another run. Remembered, like metrics."""
        self._add({"tag": [run_id, self._key(key), names.text(value)]})

    def artifact(self, path: Path, folder: str) -> None:
        """Remembered, like metrics: the file is read when it is sent."""
        item = {"artifact": [self._relative(path), folder]}
        if item not in self._later:
            self._add(item)

    def model(self, folder: ModelFolder, registration: Registration | None) -> None:
        """The trained model, as a logged model of MLflow. Remembered, like metrics: the folder is read when it is sent."""
        described = {**asdict(folder), "path": self._relative(folder.path)}
        self._add(
            {"model": described, "register": None if registration is None else [registration.name, registration.alias]}
        )

    def end(self, status: Status) -> None:
        """Send all there is, the status last. `trouble` is None exactly when the store has everything."""
        self._add({"end": status, "ms": _now_ms()})
        for pause_s in _PAUSES_S:
            left = self._left
            error = self._try(math.inf)
            if error is None or not (self._left < left or is_passing(error)):
                break
            time.sleep(pause_s)
        else:
            self.flush()
        self._rest()

    def _rest(self) -> None:
        """Items that were not sent are left to others."""
        if self.trouble is None:
            self._outbox.remove()
        else:
            self._outbox.close()

    def _add(self, item: Item) -> None:
        self._outbox.add(item)
        self._take([item])

    def _take(self, items: Iterable[Item]) -> None:
        for item in items:
            if "metrics" in item:
                step, ms = item["step"], item["ms"]
                self._pending += [Metric(key, value, ms, step) for key, value in item["metrics"].items()]
            else:
                self._later.append(item)

    def _send(self, item: Item) -> None:
        """Raises what MLflow raises."""
        match item:
            case {"tag": [run_id, key, value]}:
                self._set_tag(run_id, key, value)
            case {"inputs": found}:
                self._send_inputs(found)
            case {"artifact": [name, folder]}:
                if self._is_here(name):
                    self._upload(item, self._outbox.folder / name, folder)
            case {"model": told, "register": registered}:
                if self._is_here(told["path"]):
                    folder = ModelFolder(**{**told, "path": self._outbox.folder / told["path"]})
                    registration = None if registered is None else Registration(*registered)
                    is_by_server = uploads.by_server(self.artifacts)
                    self.registered = ModelLog(
                        self._client, self.run_id, folder, registration, is_by_server=is_by_server
                    )()
            case {"end": status, "ms": ms}:
                self._client.set_terminated(self.run_id, status, ms)

    def _set_tag(self, run_id: str, key: str, value: str) -> None:
        """Runs of others may be read and not written: this one is whole without a tag there. Raises what MLflow raises."""
        try:
            self._client.set_tag(run_id, key, value)
        except Exception as error:
            if run_id == self.run_id or not is_forbidden(error):
                raise
            self._refuse(f"tag {key} of run {run_id}", error)

    def _upload(self, item: Item, path: Path, folder: str) -> None:
        """Raises what MLflow raises, OSError."""
        least, began = path.stat().st_size, time.monotonic()
        try:
            self._client.log_artifact(self.run_id, str(path), folder)
        finally:
            self.upload_s += time.monotonic() - began
        if uploads.by_server(self.artifacts):
            self._uploaded[f"{folder}/{path.name}"] = item, Sizes(least, path.stat().st_size)

    def _send_inputs(self, found: Iterable[tuple[str, str, str]]) -> None:
        datasets = [
            Dataset(name, digest[:36], "dvc", json.dumps({"path": source, "md5": digest}))
            for name, digest, source in found
        ]
        tags = {"mlflow.data.context": "training"}
        try:
            self._client.log_datasets(self.run_id, datasets, tags)
        except Exception:  # MLflow's own store, when two runs at once are the first to name these data
            self._client.log_datasets(self.run_id, datasets, tags)

    def _is_here(self, name: str) -> bool:
        found = (self._outbox.folder / name).exists()
        if not found:
            self.gone.append(name)
        return found

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self._outbox.folder)

    def _points(self, since: int) -> frozenset[Point]:
        """The points of these steps that the store knows. Raises what MLflow raises."""
        keys = self._client.get_run(self.run_id).data.metrics
        histories = (self._client.get_metric_history(self.run_id, key) for key in keys)
        return frozenset(
            _point(each.key, each.step, each.value) for history in histories for each in history if each.step >= since
        )


def _point(key: str, step: int, value: float) -> Point:
    return key, step, None if math.isnan(value) else infinite(value)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _named(item: Item) -> str:
    """In words."""
    match item:
        case {"tag": [_, key, _]}:
            return f"tag {key}"
        case {"artifact": [name, _]}:
            return f"artifact {name}"
    return next(iter(item))
