"""A module and a data module of Lightning as true command lines: two lines of configuration, a loss, a rerun, a checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.cli.watching import WatchedRun
from tests.projects import REPOSITORY, Project

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(1200)]

CONF = """
pipeline:
  target: images:Images
  data: images:Data
run: {epochs: 20}
data: {shards: 4, batch_size: 32}
"""
LOAD = """
import torch
from images import Images
module = Images.load_from_checkpoint("trained.ckpt")
print(type(module).__name__, module.hparams.channels, len(module.state_dict()))
"""
UNFIT = """
from images import Images

class Unfit(Images):
    def on_train_epoch_end(self):
        self.log("x", self.trainer.limit_val_batches)

    def configure_gradient_clipping(self, optimizer, *_):
        self.logger.experiment.add_scalar("x", 1)

    def training_step(self, batch, batch_idx):
        self.logger.experiment.add_scalar("x", 1)
        return super().training_step(batch, batch_idx)
"""


@pytest.fixture
def images(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    shutil.copy2(REPOSITORY / "tests" / "adapters" / "images.py", tmp_path / "images.py")
    (tmp_path / "unfit.py").write_text(UNFIT)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "images.yaml").write_text(CONF)
    project.commit()
    return project


def test_a_worker_is_killed_the_rerun_is_exact_and_lightning_reads_the_model(images: Project) -> None:
    run = WatchedRun(images, "conf=images", "cluster.workers=4", "output=json")
    run.wait_for_steps(8)
    os.kill(max(run.living().values()), signal.SIGKILL)
    run.wait_for("worker_lost")
    done = run.end()
    assert done.code == 0, done.err
    assert {"validation/val_accuracy", "validation/val_f1", "validation/val_loss"} <= set(done.report["metrics"])
    assert "self.log in training_step of Images (train_loss, train_accuracy) is not recorded" in done.err
    repeated = images.run(f"rerun={run.run_id}", "cluster.workers=1", "output=json")
    assert repeated.code == 0, repeated.err
    assert repeated.report["verdict"] == "exact"
    written = images.run(f"export={run.run_id}", "to=trained.ckpt", "output=json")
    assert written.code == 0, written.err
    assert written.report["digest"] == done.report["digest"]
    assert images.shell(f"python -W ignore -c '{LOAD}'").out.split() == ["Images", "8", "9"]
    more = images.run("conf=images", "run.epochs=1", "initial=trained.ckpt", "cluster.workers=1", "output=json")
    assert more.code == 0, more.err
    settings = (images.folder(more.report["run_id"]) / "settings.yaml").read_text()
    assert done.report["digest"] in settings
    assert images.leftovers() == []


def test_all_that_does_not_fit_is_told_at_once(images: Project) -> None:
    done = images.run("conf=images", "pipeline.target=unfit:Unfit", "plan=true", "output=json")
    assert done.code == 2
    assert done.report["error"]["codes"] == ["lightning.hook", "lightning.use"]
    for named in ("on_train_epoch_end", "configure_gradient_clipping", "self.logger"):
        assert named in done.report["error"]["message"]
    assert images.runs() == {}
