"""The text of `export=` about a crate and an excerpt that it has made."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.settings import load, to_yaml
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.experiments.export.crate import ExportedCrate, of_secret
from orchestrator.experiments.export.trace_excerpt import ExportedExcerpt
from orchestrator.provenance.tracking import Past


def test_the_commands_that_it_prints_may_be_typed_whatever_the_path() -> None:
    place = "/home/me/my runs/one.zip"
    crate = ExportedCrate("0" * 32, place, 3, 100, {}, None, "1" * 64, None, None, 0, [])
    assert f"rerun='{place}' trust=true" in crate.as_text()
    assert f"verify='{place}' root=3:ab" in ExportedExcerpt("0" * 32, place, 0, 3, "3:ab").as_text()


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_secret_of_a_private_run_is_named_for_who_repeats_it(tmp_path: Path, noise: float) -> None:
    run = {"run": {"steps": 3}, "pipeline": {"target": "a:B"}, "optimizer": {"name": "sgd", "lr": 0.1}}
    privacy = {"clipping_norm": 1.0, "noise_multiplier": noise, "delta": 0.1, "secret": "/a/secret"} if noise else {}
    data = {"data": {"partition": {"name": "iid", "clients": 9}, "shards": 2, "batch_size": 2}} if noise else {}
    recorded = Recorded(Past("a" * 32, "n", "e", "FINISHED", 0, 3, {}, "4a4d"), RunFolder(tmp_path, "a" * 32))
    recorded.files.settings.write_text(to_yaml(load([{**run, "privacy": privacy, **data}], [])))
    told = of_secret(recorded)
    assert len(told) == bool(noise)
    assert all("privacy.secret=PATH; here it is /a/secret" in each for each in told)
