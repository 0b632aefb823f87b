"""Files from before modules moved are still read: a logged model, a checkpoint, a crate, and names that pages promised.

`before/` was written by the version that had `orchestrator/serving` and `orchestrator/engine`: six steps of the project that
`python -m orchestrator new spirals` makes, with two workers and two shards. The crate's run has portable
arithmetic: its bits are those of any processor.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import orchestrator
from orchestrator import moved
from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.storage import open_storage

BEFORE = Path(__file__).with_name("before")
DIGEST = "42b7f8b4b316072bf0db96b67d6376d9fe545e77277b937254531ee48ce50880"


@pytest.mark.parametrize(
    ("old", "name"),
    [
        ("orchestrator.topologies", "Schedule"),
        ("orchestrator.topologies.laws", "problems"),
        ("orchestrator.synchrony", "Mode"),
        ("orchestrator.synchrony.mode", "bounded"),
        ("orchestrator.pipeline_orders", "Order"),
        ("orchestrator.sampling.partitions", "PARTITIONS"),
        ("orchestrator.combinations", "COMBINATIONS"),
        ("orchestrator.search.asking", "Ask"),
        ("orchestrator.updates.schedules", "Moment"),
        ("orchestrator.updates.compressions.codec", "Means"),
        ("orchestrator.values", "Every"),
        ("orchestrator.engine.ensemble.pyfunc", "_load_pyfunc"),
        ("orchestrator.serving", "_load_pyfunc"),
    ],
)
def test_an_old_name_is_the_same_thing(old: str, name: str) -> None:
    found = importlib.import_module(old)
    assert not found.__name__.startswith(old)
    assert getattr(found, name) is getattr(importlib.import_module(found.__name__), name)


def test_a_name_that_nobody_promised_is_not_there() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("orchestrator.engine.loop")


def test_every_new_name_is_there() -> None:
    assert all(importlib.util.find_spec(new) is not None for new in moved.MOVED.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_model_that_was_logged_before_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names `orchestrator.serving` as its loader, and brings code of its own."""
    import mlflow

    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        model = mlflow.pyfunc.load_model(str(BEFORE / "model"))
        assert model.predict(np.array([[0.5, -0.5], [1.0, 2.0]], dtype=np.float32)).shape == (2, 2)
    finally:
        sys.modules.pop("pipeline", None)


def test_a_checkpoint_that_was_written_before_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(BEFORE / "crate.zip") as crate:
        crate.extractall(tmp_path)
    storage = open_storage(tmp_path / "checkpoints")
    found = catalog.Catalog(storage, 1).latest()
    assert found.manifest is not None
    assert (found.manifest.step, found.reasons) == (6, [])
    assert re.search(DIGEST, json.dumps(json.loads((tmp_path / "run.json").read_text())))


@pytest.mark.ray
@pytest.mark.long
def test_a_crate_that_was_exported_before_is_repeated_to_the_bit(tmp_path: Path) -> None:
    root = str(Path(orchestrator.__file__).parents[1])
    words = [f"rerun={BEFORE / 'crate.zip'}", "trust=true", "environment=ignore", "output=json"]
    command = [sys.executable, "-m", "orchestrator", *words]
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "exact"
