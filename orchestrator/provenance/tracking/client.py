"""MLflow's client as this package uses it: it takes plain entries, so that MLflow is imported by who opens it alone."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

PATIENCE_S: Final = 20.0  # with other writers of a database, as MLflow has it


class Metric(NamedTuple):
    """As MLflow names the fields of its own entities, here and below."""

    key: str
    value: float
    timestamp: int  # milliseconds since 1970
    step: int


class Param(NamedTuple):
    key: str
    value: str


class RunTag(NamedTuple):
    key: str
    value: str


class Dataset(NamedTuple):
    """Names an input of a run."""

    name: str
    digest: str
    source_type: str
    source: str


class ModelOfRun(NamedTuple):
    """A logged model that a run has begun."""

    model_id: str
    is_ready: bool  # whether its files are there
    is_output: bool  # whether it is noted as the run's


class Client:
    """MLflow's own, opened when it is first asked for something. patience_s: with other writers of a database, which MLflow's
    own does not hear of."""

    patience_s = PATIENCE_S

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._open = opened

    @cached_property
    def mlflow(self) -> Any:
        """MLflow's client itself. It is asked for before something else of MLflow is imported: `lean`."""
        return self._open()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of copies and the like
            raise AttributeError(name)
        return getattr(self.mlflow, name)

    def log_batch(
        self, run_id: str, metrics: Sequence[Metric] = (), params: Sequence[Param] = (), tags: Sequence[RunTag] = ()
    ) -> None:
        client = self.mlflow
        from mlflow import entities

        client.log_batch(
            run_id,
            metrics=[entities.Metric(*each) for each in metrics],
            params=[entities.Param(*each) for each in params],
            tags=[entities.RunTag(*each) for each in tags],
        )

    def experiments(self, **wanted: Any) -> list[Any]:
        """All of them: MLflow gives a thousand at a time."""
        found: list[Any] = []
        token: str | None = None
        while True:
            page = self.mlflow.search_experiments(page_token=token, **wanted)
            found += page
            token = page.token
            if not token:
                return found

    def has_runs(self, experiment_id: str) -> bool:
        """Also deleted ones."""
        client = self.mlflow
        from mlflow.entities import ViewType

        return bool(client.search_runs([experiment_id], run_view_type=ViewType.ALL, max_results=1))

    def log_datasets(self, run_id: str, datasets: Sequence[Dataset], tags: Mapping[str, str]) -> None:
        """As inputs of the run, each with these tags."""
        client = self.mlflow
        from mlflow import entities

        labels = [entities.InputTag(key, value) for key, value in tags.items()]
        found = [
            entities.DatasetInput(entities.Dataset(each.name, each.digest, each.source_type, each.source), labels)
            for each in datasets
        ]
        client.log_inputs(run_id, datasets=found)

    def model_of_run(self, run_id: str, name: str) -> ModelOfRun | None:
        """The one of this name, or the one that is noted as the run's."""
        client = self.mlflow
        from mlflow.entities import LoggedModelStatus

        run = client.get_run(run_id)
        if run.outputs is not None and run.outputs.model_outputs:
            return ModelOfRun(str(run.outputs.model_outputs[0].model_id), is_ready=True, is_output=True)
        begun = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run_id}'")
        found = next((each for each in begun if each.name == name), None)
        if found is None:
            return None
        return ModelOfRun(str(found.model_id), is_ready=found.status == LoggedModelStatus.READY, is_output=False)

    def begin_model(self, run_id: str, name: str, tags: Mapping[str, str], params: Mapping[str, str]) -> str:
        """The id of a new logged model of the run, which has no files yet."""
        experiment = self.mlflow.get_run(run_id).info.experiment_id
        made = self.mlflow.create_logged_model(experiment, name, run_id, tags=dict(tags), params=dict(params))
        return str(made.model_id)

    def output_model(self, run_id: str, model_id: str, step: int) -> None:
        """Note it as the run's."""
        client = self.mlflow
        from mlflow.entities import LoggedModelOutput

        client.log_outputs(run_id, [LoggedModelOutput(model_id, step)])

    def mlmodel(self, run_id: str, model_id: str, flavor: Mapping[str, Any]) -> str:
        """The text of the file that says how MLflow loads the model. flavor: of the python_function."""
        _ = self.mlflow
        from mlflow.models.model import Model

        described = Model(artifact_path=f"models:/{model_id}", run_id=run_id, model_id=model_id)
        described.add_flavor("python_function", python_version=platform.python_version(), **flavor)
        return str(described.to_yaml())
