"""Models in MLflow: a run's as one of MLflow's logged models, registered where that is asked for; and weights from one.

A logged model is a folder with an `MLmodel` file, which says how MLflow loads it: as a python_function whose loader is
`orchestrator.worker.serving`. MLflow's own flavour for PyTorch pickles the module, or needs an example input for torch.export,
which nothing of a run tells. Sources: https://mlflow.org/docs/latest/ml/model/ (logged models), .../ml/model-registry/.

It neither reads nor writes weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.common import temporary
from orchestrator.errors import ConfigurationError, UsageError
from orchestrator.provenance.tracking import uploads
from orchestrator.provenance.tracking.addresses import is_server
from orchestrator.provenance.tracking.client import Client
from orchestrator.provenance.tracking.store import DIGEST_OF_BEST, USER, Store
from orchestrator.provenance.tracking.store_errors import reason

LOADER = "orchestrator.worker.serving"
# The name of a run's logged model: runs:/RUN_ID/trained. Not the name of a folder of its artifacts, which MLflow's clients
# could not list any more where the process has another store.
NAME = "trained"
_FOLDER = "model"  # of the run's artifacts, where its weights lie too
WEIGHTS = "model.safetensors"
ALIAS = "newest"  # of a registered model that is given none
MLMODEL = "MLmodel"
_MODELS, _RUNS = "models:/", "runs:/"
DIGEST = "digest"  # a tag of runs, logged models and versions


@dataclass(frozen=True)
class Registration:
    """A name in the registry, and the alias that is to stand for the newest version."""

    name: str
    alias: str

    @classmethod
    def parse(cls, text: str) -> Registration:
        """Read `NAME` or `NAME@ALIAS`."""
        name, _, alias = text.partition("@")
        return cls(name, alias or ALIAS)


@dataclass(frozen=True)
class ModelFolder:
    """The folder to be logged."""

    path: Path  # the folder, which gets its MLmodel file here
    step: int  # after which the weights are
    params: Mapping[str, str]  # of the logged model
    tags: Mapping[str, str] = field(default_factory=dict)  # of the logged model
    name: str = NAME  # of the logged model
    loader: str = LOADER  # a module with `_load_pyfunc(path)`
    code: str | None = None  # the folder in `path` from which Python imports the pipeline; None where it needs none
    tag: str | None = None  # of the run, which gets the model's URI; None: no tag


class ModelLog:
    """Logs the model of a run when it is called, step by step; called again after a failure, in another process too, it goes
    on where that was. Two at once may log it twice."""

    def __init__(
        self,
        client: Client,  # of the store
        run_id: str,  # of the run that has trained it
        folder: ModelFolder,  # what is logged
        registration: Registration | None,  # of the version that it becomes; None: of none
        *,
        is_by_server: bool = False,  # whether its files are sent to an MLflow server
    ) -> None:
        self._is_by_server = is_by_server
        self._client = client
        self._run_id = run_id
        self._folder = folder
        self._registration = registration

    def __call__(self) -> str | None:
        """The URI of the version that is registered, if one is. Raises what MLflow raises."""
        model_id = self._logged()
        version = None if self._registration is None else self._register(self._registration, model_id)
        if self._folder.tag is not None:
            self._client.set_tag(self._run_id, self._folder.tag, f"{_MODELS}{model_id}")
        return version

    def _logged(self) -> str:
        """The id of the model, complete."""
        folder = self._folder
        model = self._client.model_of_run(self._run_id, folder.name)  # of an earlier call
        if model is not None and model.is_output:
            return model.model_id
        model_id = model.model_id if model else self._begun()
        if model is None or not model.is_ready:
            self._upload(model_id)
        self._client.output_model(self._run_id, model_id, folder.step)
        return model_id

    def _begun(self) -> str:
        folder = self._folder
        return self._client.begin_model(self._run_id, folder.name, folder.tags, folder.params)

    def _upload(self, model_id: str) -> None:
        flavor: dict[str, Any] = {"loader_module": self._folder.loader}
        if self._folder.code is not None:
            flavor |= {"code": self._folder.code, "env": {"virtualenv": "python_env.yaml"}}
        described = self._client.mlmodel(self._run_id, model_id, flavor)
        (self._folder.path / MLMODEL).write_text(described, encoding="utf-8")
        self._client.log_model_artifacts(model_id, str(self._folder.path))
        if self._is_by_server:
            files = uploads.below(self._folder.path)
            uploads.check(files, lambda folder: self._client.list_logged_model_artifacts(model_id, folder or None))
        self._client.finalize_logged_model(model_id, "READY")

    def _register(self, wanted: Registration, model_id: str) -> str:
        try:
            self._client.create_registered_model(wanted.name)
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise
        versions = self._client.search_model_versions(f"name='{wanted.name}'")
        mine = [version.version for version in versions if version.run_id == self._run_id]
        version = str(mine[0]) if mine else self._made_version(wanted.name, model_id)
        self._client.set_registered_model_alias(wanted.name, wanted.alias, version)
        uri = f"{_MODELS}{wanted.name}/{version}"
        self._client.set_tag(self._run_id, "registered_model", uri)
        return uri

    def _made_version(self, name: str, model_id: str) -> str:
        made = self._client.create_model_version(
            name,
            self._source(model_id),
            self._run_id,
            tags=dict(self._folder.tags),
            model_id=model_id,
            await_creation_for=0,
        )
        return str(made.version)

    def _source(self, model_id: str) -> str:
        """MLflow looks `models:/` up in the store of the whole process, which is a server's own only."""
        if is_server(self._client.tracking_uri):
            return f"{_MODELS}{model_id}"
        return str(self._client.get_logged_model(model_id).artifact_location)


def pin(store: Store, name: str) -> str:
    """The same model by a name that will always mean it: an alias becomes its version, the beginning of a run's id the whole.
    Raises ConfigurationError where there is no such model."""
    _ = store.client.mlflow
    from mlflow.exceptions import MlflowException

    if name.startswith(_RUNS):
        run, _, path = name.removeprefix(_RUNS).partition("/")
        try:
            return f"{_RUNS}{store.find(run).run_id}/{path or NAME}"
        except UsageError as error:
            raise ConfigurationError([f"initial: {name}: {error.message}"], error.remedy, code=error.code) from None
    wanted, _, alias = name.removeprefix(_MODELS).partition("@")
    try:
        if alias:
            return f"{_MODELS}{wanted}/{store.client.get_model_version_by_alias(wanted, alias).version}"
        if "/" in wanted:
            store.client.get_model_version(*wanted.split("/", 1))
        else:
            store.client.get_logged_model(wanted)
    except MlflowException as error:
        raise ConfigurationError(
            [f"initial: there is no {name} in {store.shown}: {reason(error)}"],
            _known(store, wanted.partition("/")[0]),
            code="initial.no-such-model",
        ) from error
    return name


def fetch_weights(store: Store, pinned: str, target: Path) -> None:
    """Bring the weights of a model into a file. Raises ConfigurationError where it has none that can be read without running
    code of others."""
    with temporary.folder(target.parent) as place:
        try:
            found = _download(store, f"{_location(store, pinned)}/{WEIGHTS}", place)
        except _failures() as error:
            raise ConfigurationError(
                [f"initial: {pinned} has no {WEIGHTS} that can be had from {store.shown}: {reason(error)}"],
                "name a model that a finished run of orchestrator has logged",
                code="initial.no-weights",
            ) from error
        shutil.move(found, target)


def fetch_folder(store: Store, run_id: str, target: Path) -> bool:
    """Bring the logged model of a run into a folder that is not there yet; whether there is one that can be had."""
    with temporary.folder(target.parent) as place:
        try:
            found = _download(store, _location(store, f"{_RUNS}{run_id}/{NAME}"), place)
        except _failures():
            return False
        if not (Path(found) / MLMODEL).exists():
            return False
        shutil.move(found, target)
        return True


def _download(store: Store, uri: str, place: Path) -> str:
    """The path of the file or folder in `place`. Raises what MLflow raises."""
    _ = store.client.mlflow
    from mlflow.artifacts import download_artifacts

    return str(download_artifacts(artifact_uri=uri, dst_path=str(place), tracking_uri=store.client.tracking_uri))


def _failures() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException

    return MlflowException, OSError


def digest_of(store: Store, pinned: str) -> str | None:
    """The digest of a model's weights as its run has reported it; None where none did, as of models of other makes. Raises what
    MLflow raises."""
    scheme, name, rest = _parts(pinned)
    client = store.client
    if scheme == _RUNS:
        tags = client.get_run(name).data.tags if rest == NAME else {}
    else:
        tags = client.get_model_version(name, rest).tags if rest else client.get_logged_model(name).tags
    return dict(tags).get(DIGEST_OF_BEST) or dict(tags).get(DIGEST)


def user_of(store: Store, pinned: str) -> str | None:
    """The user who launched the run that has made a model, by their own account; None where no run is known. Raises what MLflow
    raises."""
    scheme, name, rest = _parts(pinned)
    client = store.client
    run: str | None = name
    if scheme != _RUNS:
        run = client.get_model_version(name, rest).run_id if rest else client.get_logged_model(name).source_run_id
    return client.get_run(run).data.tags.get(USER) if run else None


def location(store: Store, pinned: str) -> str | None:
    """The place of a model's files; None if there is no such model that can be had."""
    _ = store.client.mlflow
    from mlflow.exceptions import MlflowException

    try:
        return _location(store, pinned)
    except (MlflowException, OSError):
        return None


def _location(store: Store, pinned: str) -> str:
    """MLflow would look `models:/` and `runs:/` up in the store of the whole process. Raises what MLflow raises."""
    scheme, name, rest = _parts(pinned)
    if scheme == _RUNS:
        info = store.client.get_run(name).info
        own = [
            model.artifact_location
            for model in store.client.search_logged_models([info.experiment_id], f"source_run_id = '{name}'")
            if model.name == rest
        ]
        return str(own[0] if own else f"{info.artifact_uri}/{_FOLDER if rest == NAME else rest}")
    if rest:
        found = str(store.client.get_model_version_download_uri(name, rest))
        return _location(store, found) if found.startswith(_MODELS) else found
    return str(store.client.get_logged_model(name).artifact_location)


def _parts(pinned: str) -> tuple[str, str, str]:
    """`models:/` or `runs:/`, the name or id, and the version or path, empty where there is none."""
    scheme = _RUNS if pinned.startswith(_RUNS) else _MODELS
    name, _, rest = pinned.removeprefix(scheme).partition("/")
    return scheme, name, rest


def _known(store: Store, name: str) -> str:
    """A remedy: the names, or the versions and aliases, that there are."""
    registered = {model.name: model for model in store.client.search_registered_models()}
    if name not in registered:
        names = f"; registered are: {', '.join(sorted(registered))}" if registered else "; none is registered"
        return f"tracking.register=NAME registers the model of a run, and runs:/RUN_ID is the one of any{names}"
    versions = sorted(int(each.version) for each in store.client.search_model_versions(f"name = '{name}'"))
    aliases = ", ".join(f"{alias} (version {version})" for alias, version in registered[name].aliases.items())
    return f"{name} has the versions {', '.join(map(str, versions)) or 'none'} and the aliases {aliases or 'none'}"
