"""A folder of files as a model that MLflow's own means load: `mlflow.pyfunc.load_model(uri)`.

Its `MLmodel` names the module that loads the folder, so nothing is pickled. It is written here: MLflow's own writer imports
pandas, and looks for packages in a process of its own (4 s).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from orchestrator.tracking.store import is_server

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class ModelFiles:
    """folder: what is logged, and gets an MLmodel file; loader: a module with `_load_pyfunc(path)`, which gets a copy of the
    folder; register: the registered model of which it becomes a version, None for none."""

    folder: Path
    name: str
    loader: str
    register: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


def log(client: MlflowClient, run_id: str, files: ModelFiles) -> str:
    """Log it as the model of a run, and register it, unless that has been done; its URI. Raises what MLflow raises."""
    run = client.get_run(run_id)
    outputs = [] if run.outputs is None else run.outputs.model_outputs
    model_id = outputs[0].model_id if outputs else _logged(client, run.info.experiment_id, run_id, files)
    if files.register is not None:
        _register(client, files.register, model_id, run_id)
    return f"models:/{model_id}"


def _logged(client: MlflowClient, experiment_id: str, run_id: str, files: ModelFiles) -> str:
    """Its id."""
    from mlflow.entities import LoggedModelOutput

    parameters = {key: str(value) for key, value in files.parameters.items()}
    model_id = str(client.create_logged_model(experiment_id, files.name, run_id, params=parameters).model_id)
    (files.folder / "MLmodel").write_text(yaml.safe_dump(_described(files, run_id, model_id)), encoding="utf-8")
    client.log_model_artifacts(model_id, str(files.folder))
    client.finalize_logged_model(model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(model_id, 0)])
    return model_id


def _described(files: ModelFiles, run_id: str, model_id: str) -> dict[str, Any]:
    """What `MLmodel` holds."""
    from mlflow.version import VERSION

    flavour = {"loader_module": files.loader, "data": ".", "python_version": platform.python_version()}
    return {"flavors": {"python_function": flavour}, "model_id": model_id, "run_id": run_id, "mlflow_version": VERSION}


def _register(client: MlflowClient, name: str, model_id: str, run_id: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    if any(version.run_id == run_id for version in client.search_model_versions(f"name='{name}'")):
        return
    # MLflow looks a `models:/` up in the store of the whole process, which is a server's own only.
    here = None if is_server(client.tracking_uri) else client.get_logged_model(model_id).artifact_location
    client.create_model_version(name, here or f"models:/{model_id}", run_id, model_id=model_id, await_creation_for=0)
