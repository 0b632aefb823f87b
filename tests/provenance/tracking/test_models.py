"""A model in a true store: logged and registered once, whatever fails on the way; found by each of its names, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigurationError
from orchestrator.provenance.tracking import Store
from orchestrator.provenance.tracking.models import (
    NAME,
    ModelFolder,
    ModelLog,
    Registration,
    fetch_folder,
    fetch_weights,
    pin,
)
from orchestrator.provenance.tracking.tracker import Tracker
from tests.refusals import refused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:The ..noload.. loader strategy is deprecated"  # MLflow's own use of SQLAlchemy
    ),
]
CALLS = (
    *("begin_model", "log_model_artifacts", "finalize_logged_model", "output_model"),
    *("create_model_version", "set_registered_model_alias"),
)


class Failing:
    """The client, of which one call fails once."""

    def __init__(self, client: Any, call: str) -> None:
        self._client = client
        self._call: str | None = call

    def __getattr__(self, name: str) -> Any:
        if name == self._call:
            self._call = None
            raise ConnectionError(name)
        return getattr(self._client, name)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(None, tmp_path_factory.mktemp("store"))


def logged(store: Store, place: Path, registration: Registration | None, fails: str | None = None) -> str:
    """The id of a run whose model was logged; its weights are the id."""
    tracker = Tracker.create(store, store.experiment("e"), "named", every_s=1.0)
    folder = place / tracker.run_id
    folder.mkdir()
    (folder / "model.safetensors").write_text(tracker.run_id)
    client: Any = store.client if fails is None else Failing(store.client, fails)
    log = ModelLog(
        client, tracker.run_id, ModelFolder(folder, 20, {"p": "1"}, {"digest": "d"}, code="code"), registration
    )
    if fails is not None:
        with pytest.raises(ConnectionError):
            log()
    version = log()
    assert version == store.client.get_run(tracker.run_id).data.tags.get("registered_model")
    return tracker.run_id


def weights(store: Store, place: Path, name: str) -> str:
    fetch_weights(store, pin(store, name), place / "weights")
    return (place / "weights").read_text()


def test_each_name_of_a_model_finds_its_weights_and_an_alias_moves(store: Store, tmp_path: Path) -> None:
    first = logged(store, tmp_path, Registration.parse("digits"))
    second = logged(store, tmp_path, Registration.parse("digits@best"))
    third = logged(store, tmp_path, Registration.parse("digits"))
    unregistered = logged(store, tmp_path, None)
    assert pin(store, "models:/digits@newest") == "models:/digits/3"
    (model,) = store.client.search_logged_models([store.experiment("e")], f"source_run_id = '{second}'")
    for name, run_id in {
        "models:/digits/1": first,
        "models:/digits@best": second,
        "models:/digits@newest": third,
        f"models:/{model.model_id}": second,
        f"runs:/{unregistered[:20]}": unregistered,
        f"runs:/{first}/trained": first,
    }.items():
        assert weights(store, tmp_path, name) == run_id, name
    outputs = store.client.get_run(second).outputs
    assert outputs is not None
    (output,) = outputs.model_outputs
    assert (output.model_id, output.step) == (model.model_id, 20)
    assert store.client.get_run(third).data.tags["registered_model"] == "models:/digits/3"


def test_the_model_of_a_run_is_found_beside_those_of_all_others(tmp_path: Path) -> None:
    """MLflow gives a hundred at a time, the newest first."""
    store = Store(None, tmp_path)
    run_id = logged(store, tmp_path, None)
    for _ in range(101):
        store.client.begin_model(Tracker.create(store, store.experiment("e"), "n", every_s=1.0).run_id, NAME, {}, {})
    assert fetch_folder(store, run_id, tmp_path / "fetched")
    assert (tmp_path / "fetched" / "model.safetensors").read_text() == run_id


@pytest.mark.parametrize("fails", CALLS)
def test_what_fails_is_gone_on_with_and_done_once(store: Store, tmp_path: Path, fails: str) -> None:
    run_id = logged(store, tmp_path, Registration.parse(fails), fails)
    found = store.client.search_logged_models([store.experiment("e")], f"source_run_id = '{run_id}'")
    assert [(model.name, model.status.value) for model in found] == [("trained", "READY")]
    (version,) = store.client.search_model_versions(f"name = '{fails}'")
    assert store.client.get_model_version(fails, version.version).aliases == ["newest"]
    assert weights(store, tmp_path, f"models:/{fails}@newest") == run_id


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("models:/known@other", "known has the versions 1 and the aliases newest (version 1)"),
        ("models:/known/7", "known has the versions 1 and the aliases newest (version 1)"),
        ("models:/unknown@newest", "tracking.register=NAME registers the model of a run"),
        ("models:/m-0123", "tracking.register=NAME registers the model of a run"),
        ("runs:/0123", "list them with: python -m orchestrator runs"),
    ],
)
def test_what_is_not_there_is_said_with_what_there_is(store: Store, tmp_path: Path, name: str, told: str) -> None:
    if not store.client.search_registered_models("name = 'known'"):
        logged(store, tmp_path, Registration.parse("known"))
    with pytest.raises(ConfigurationError) as raised:
        pin(store, name)
    assert told in str(raised.value)
    assert name in str(raised.value)


def test_a_run_that_logged_no_model_still_has_its_weights(store: Store, tmp_path: Path) -> None:
    tracker = Tracker.create(store, store.experiment("e"), "named", every_s=1.0)
    (tmp_path / "model.safetensors").write_text("of before")
    tracker.artifact(tmp_path / "model.safetensors", "model")
    tracker.end("FINISHED")
    assert weights(store, tmp_path, f"runs:/{tracker.run_id}") == "of before"


def test_a_model_of_another_make_is_refused(store: Store, tmp_path: Path) -> None:
    experiment = store.experiment("e")
    model = store.client.create_logged_model(experiment, "pickled")
    with refused("initial.no-weights"):
        fetch_weights(store, f"models:/{model.model_id}", tmp_path / "weights")
