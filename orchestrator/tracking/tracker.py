"""One MLflow run, from its creation to its end. Metrics are collected and sent in batches: a single one costs 4 to 90 ms.

Once the run exists, a store that fails, such as a server that goes away, ends nothing: what it did not take is kept and tried
again, and `trouble` says why. The files of the run's folder hold the same and more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.tracking.models import ModelFolder, ModelLog, Registration
from orchestrator.tracking.store import Store, identity_of_process, reason

if TYPE_CHECKING:
    from mlflow.entities import Run

Status = Literal["FINISHED", "FAILED", "KILLED"]
_BATCH = 1000  # MLflow's limit for one request
_PATIENCE_S = 30.0
_FORBIDDEN = re.compile(r"[^\w\-. /:]")


class Tracker:
    """Made by `create` or `reopen`. `every_s`: how long metrics may wait."""

    def __init__(self, store: Store, run: Run, *, every_s: float) -> None:
        from mlflow.entities import Metric

        self._metric = Metric
        self._client = store.client
        self.run_id: str = run.info.run_id
        self.name: str = run.info.run_name
        self.experiment_id: str = run.info.experiment_id
        self.started_ms: int = run.info.start_time
        self.artifacts: str = run.info.artifact_uri
        self._every_s = every_s
        self._pending: list[Any] = []
        self._later: list[Callable[[], object]] = []  # after the metrics, in order
        self.trouble: str | None = None
        self._sent_at = time.monotonic()

    @classmethod
    def create(cls, store: Store, experiment_id: str, name: str | None, *, every_s: float) -> Tracker:
        """A new run."""
        run = store.client.create_run(experiment_id, tags=identity_of_process(), run_name=name)
        return cls(store, run, every_s=every_s)

    @classmethod
    def reopen(cls, store: Store, run_id: str, *, every_s: float) -> Tracker:
        """A run that has ended, which goes on in this process."""
        for key, value in identity_of_process().items():  # first: whoever looks for orphans takes it for one otherwise
            store.client.set_tag(run_id, key, value)
        store.client.update_run(run_id, status="RUNNING")
        return cls(store, store.client.get_run(run_id), every_s=every_s)

    def describe(self, parameters: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Parameters are written once; None and empty texts are shown as such, since MLflow wants text."""
        from mlflow.entities import Param, RunTag

        params = [Param(_key(key), _text(value)) for key, value in parameters.items()]
        labels = [RunTag(_key(key), value) for key, value in tags.items()]
        for start in range(0, max(len(params), len(labels)), 100):
            part = slice(start, start + 100)
            self._client.log_batch(self.run_id, params=params[part], tags=labels[part])

    def inputs(self, data: Iterable[tuple[str, str, str]]) -> None:
        """Data that the run reads, as MLflow's dataset inputs: (name, digest, source). Remembered, like metrics."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        tags = [InputTag("mlflow.data.context", "training")]
        found = [
            DatasetInput(Dataset(name, digest[:36], "dvc", json.dumps({"path": source, "md5": digest})), tags)
            for name, digest, source in data
        ]

        def log() -> None:
            try:
                self._client.log_inputs(self.run_id, datasets=found)
            except Exception:  # MLflow's own store, when two runs at once are the first to name these data
                self._client.log_inputs(self.run_id, datasets=found)

        if found:
            self._later.append(log)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Remember metrics; they are sent by `flush`, `tick` or `end`."""
        now_ms = int(time.time() * 1000)
        self._pending += [self._metric(_key(key), value, now_ms, step) for key, value in values.items()]

    def tick(self) -> None:
        """Send what has waited long enough; after a failure not before `_PATIENCE_S`."""
        now = time.monotonic()
        if self.trouble is not None:
            due = now - self._sent_at >= _PATIENCE_S
        else:
            due = now - self._sent_at >= self._every_s or len(self._pending) >= _BATCH
        if due:
            self.flush()

    def flush(self) -> None:
        """Send everything, or as much as the store takes: `trouble` says what went wrong, the rest is kept."""
        try:
            while self._pending:
                self._client.log_batch(self.run_id, metrics=self._pending[:_BATCH])
                del self._pending[:_BATCH]
            while self._later:
                self._later[0]()
                del self._later[0]
            self.trouble = None
        except Exception as error:  # MLflow's, sqlite's, requests': the run does not depend on them
            self.trouble = reason(error)
        self._sent_at = time.monotonic()

    def tag(self, key: str, value: str) -> None:
        """Remembered, like metrics."""
        self.tag_other(self.run_id, key, value)

    def tag_other(self, run_id: str, key: str, value: str) -> None:
        """A tag on another run. Remembered, like metrics."""
        self._later.append(lambda: self._client.set_tag(run_id, _key(key), value))

    def artifact(self, path: Path, folder: str) -> None:
        """Remembered, like metrics: the file is read when it is sent."""
        self._later.append(lambda: self._client.log_artifact(self.run_id, str(path), folder))

    def model(self, folder: ModelFolder, registration: Registration | None) -> None:
        """The trained model, as a logged model of MLflow. Remembered, like metrics: the folder is read when it is sent."""
        self._later.append(ModelLog(self._client, self.run_id, folder, registration))

    def end(self, status: Status) -> None:
        """Send all there is, the status last. `trouble` is None exactly when the store has everything."""
        self._later.append(lambda: self._client.set_terminated(self.run_id, status))
        self.flush()


def _key(name: str) -> str:
    return _FORBIDDEN.sub("_", name)[:250]


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
