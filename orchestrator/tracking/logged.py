"""A folder of files as a model that MLflow's own means load: `mlflow.pyfunc.load_model(uri)`.

Its `MLmodel` names the module that loads the folder, so nothing is pickled. It is written here: MLflow's own writer imports
pandas, and looks for packages in a process of its own (4 s).
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from mlflow import MlflowClient

_DATA = "data"  # the folder within the model


@dataclass(frozen=True)
class ModelFiles:
    """folder: what is logged; loader: a module with `_load_pyfunc(path)`, which gets a copy of the folder; register: the
    registered model of which it becomes a version, None for none."""

    folder: Path
    name: str
    loader: str
    register: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


def log(client: MlflowClient, run_id: str, files: ModelFiles) -> str:
    """Log it as the model of a run, unless the run has one already; its URI. Raises what MLflow raises."""
    from mlflow.entities import LoggedModelOutput

    run = client.get_run(run_id)
    if run.outputs is not None and run.outputs.model_outputs:
        return f"models:/{run.outputs.model_outputs[0].model_id}"
    parameters = {key: str(value) for key, value in files.parameters.items()}
    model = client.create_logged_model(run.info.experiment_id, files.name, run_id, params=parameters)
    uri = f"models:/{model.model_id}"
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as place:
        shutil.copytree(files.folder, Path(place) / _DATA)
        (Path(place) / "MLmodel").write_text(
            yaml.safe_dump(_described(files, run_id, model.model_id)), encoding="utf-8"
        )
        client.log_model_artifacts(model.model_id, place)
    client.finalize_logged_model(model.model_id, "READY")
    if files.register is not None:
        _register(client, files.register, uri, model.model_id, run_id)
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 0)])
    return uri


def _described(files: ModelFiles, run_id: str, model_id: str) -> dict[str, Any]:
    """What `MLmodel` holds."""
    from mlflow.version import VERSION

    flavour = {"loader_module": files.loader, "data": _DATA, "python_version": platform.python_version()}
    return {"flavors": {"python_function": flavour}, "model_id": model_id, "run_id": run_id, "mlflow_version": VERSION}


def _register(client: MlflowClient, name: str, uri: str, model_id: str, run_id: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    client.create_model_version(name, uri, run_id, model_id=model_id)
