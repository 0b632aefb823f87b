"""A folder becomes a model that MLflow itself loads, once, whatever fails in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.provenance.tracking import Store, Tracker
from orchestrator.provenance.tracking.models import ModelFolder, Registration
from orchestrator.worker.ensemble import saved
from orchestrator.worker.ensemble.saved import Blueprint
from tests.worker import pipelines as p

BLUEPRINT = Blueprint("tests.worker.pipelines:Mlp", {}, (3, 4), "mean", {}, "logits", -1)
LOADER = "orchestrator.worker.ensemble.pyfunc"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_model_is_logged_registered_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = BLUEPRINT.build()
    saved.save(model, BLUEPRINT, tmp_path / "model")
    store = Store(None, tmp_path)
    tracker = Tracker.create(store, store.experiment("e"), "whole", every_s=1.0)
    folder = ModelFolder(tmp_path / "model", 0, {"members": "2"}, name="whole", loader=LOADER, tag="model")
    registration = Registration.parse("registered")
    calls = {"left": 1}

    def failing(*arguments: Any, **options: Any) -> Any:
        """The store goes away while the first model is finished."""
        if calls["left"]:
            calls["left"] -= 1
            raise OSError("gone")
        return finalize(*arguments, **options)

    finalize = store.client.finalize_logged_model
    monkeypatch.setattr(store.client, "finalize_logged_model", failing)
    tracker.model(folder, registration)
    tracker.flush()
    assert "gone" in str(tracker.trouble)
    tracker.end("FINISHED")
    assert tracker.trouble is None
    run = store.client.get_run(tracker.run_id)
    uri = run.data.tags["model"]
    logged = store.client.get_logged_model(uri.removeprefix("models:/"))
    assert (str(logged.status), logged.source_run_id, logged.params) == ("READY", tracker.run_id, {"members": "2"})
    assert store.client.get_model_version("registered", "1").run_id == tracker.run_id
    again = Tracker.reopen(store, tracker.run_id, every_s=1.0)
    again.model(folder, registration)
    again.end("FINISHED")
    assert store.client.get_run(tracker.run_id).data.tags["model"] == uri
    assert len(store.client.search_model_versions("name='registered'")) == 1

    import mlflow

    mlflow.set_tracking_uri(store.uri)
    rows = torch.randn(5, p.FEATURES)
    for place in (uri, "models:/registered/1", str(tmp_path / "model")):
        found = mlflow.pyfunc.load_model(place).predict(rows.numpy())
        with torch.no_grad():
            assert torch.equal(torch.from_numpy(found["prediction"]), model(rows).exp())
