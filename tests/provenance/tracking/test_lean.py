"""MLflow's client without what it can do without, in a process of its own."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading

import pytest

from orchestrator.provenance.tracking import lean

CLIENT = """
import pathlib, sys, tempfile
from orchestrator.provenance.tracking import Store, Tracker, lean
from orchestrator.provenance.tracking.models import ModelFolder, Registration
lean.prefer()
with tempfile.TemporaryDirectory() as folder:
    store = Store(None, pathlib.Path(folder))
    tracker = Tracker.create(store, store.experiment("any"), "n", every_s=1.0)
    tracker.describe({"key": 1}, {"tag": "t"})
    tracker.inputs([("data", "md5", "place")])
    tracker.metrics(0, {"loss": 1.0})
    tracker.model(ModelFolder(pathlib.Path(folder, tracker.run_id), 1, {}), Registration.parse("m"))
    tracker.end("FINISHED")
    print(tracker.trouble, tracker.registered, store.find("last").metrics)
left_out = ("pandas", "scipy", "pygments", "fastapi", "mlflow.genai", "mlflow.gateway")
print(*(name for name in ("mlflow", *left_out) if name in sys.modules))
import pandas
from mlflow.genai.judges import CategoricalRating
assert CategoricalRating.__mro__[1:] != (object,)
"""


@pytest.mark.long
def test_a_store_is_used_without_what_others_can_import_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", CLIENT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "None models:/m/1 {'loss': 1.0}\nmlflow\n"), done.stderr


def test_only_the_thread_that_imports_mlflow_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "_wanted", True)
    monkeypatch.setattr(lean, "_SPARED", ("colorsys",))
    for name in ("mlflow", "colorsys"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found: list[str] = []
    with lean.importing():
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("colorsys")
        other = threading.Thread(target=lambda: found.append(importlib.import_module("colorsys").__name__))
        other.start()
        other.join()
    assert found == ["colorsys"]


def test_a_process_that_others_use_gets_mlflow_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "_wanted", False)
    before = list(sys.meta_path)
    with lean.importing():
        assert sys.meta_path == before
