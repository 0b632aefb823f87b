"""True runs of a model of Hugging Face: four workers, of which one is killed, give the bits of one, and a rerun is exact."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.adapters.transformers import tiny
from tests.projects import REPOSITORY, Project, packages

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(1200)]
MARK = "KILLED_ONCE"
MORTAL = f"""
import os
import signal
from pathlib import Path

from orchestrator.adapters.transformers import Trainable


class Mortal(Trainable):
    def loss(self, model, batch, step=0):
        if step == 15 and not (mark := Path(os.environ["{MARK}"])).exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)
"""
CONF = {
    "run": {"name": "causal", "steps": 30},
    "pipeline": {
        "target": "mortal:Mortal",
        "args": {
            "model": tiny.CAUSAL,
            "data": "tiny:texts",
            "training": {"max_steps": "${run.steps}", "learning_rate": 0.01},
        },
    },
    "data": {"shards": 4, "batch_size": 8},
    "cluster": {"workers": 4},
    "environment": {"variables": [MARK]},
}
LOADED = "from transformers import AutoModel; print(AutoModel.from_pretrained('trained').num_parameters())"


def test_a_worker_is_killed_a_rerun_is_exact_and_the_model_is_loaded(tmp_path: Path) -> None:
    project, mark = Project(tmp_path / "project"), tmp_path / "mark"
    (project.path / "conf").mkdir(parents=True)
    (project.path / "conf" / "causal.yaml").write_text(yaml.safe_dump(CONF))
    (project.path / "mortal.py").write_text(MORTAL)
    shutil.copy(tiny.__file__, project.path / "tiny.py")
    project.variables = {"PYTHONPATH": f"{REPOSITORY}:{packages('others')}", MARK: str(mark)}
    project.commit()
    disturbed = project.run("conf=causal", "output=json")
    assert disturbed.code == 0, disturbed.err
    assert mark.exists()
    assert "lost" in disturbed.err
    again = project.run("rerun=last", "cluster.workers=1", "output=json")
    assert again.report["verdict"] == "exact", again.err
    written = project.run(f"export={disturbed.report['run_id']}", "to=trained", "model=true")
    assert written.code == 0, written.err
    loaded = project.shell(f'python -c "{LOADED}"')
    assert int(loaded.out) > 1000, loaded.err
    assert project.leftovers() == []
