"""The commands of docs/streaming.md run in the order of the page, and a kill on the way changes no bit."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.projects import REPOSITORY, Project, make_project

pytestmark = [pytest.mark.ray, pytest.mark.long]

PAGE = (REPOSITORY / "docs" / "streaming.md").read_text()
(PREPARE, HERE), (THERE,) = (
    block.splitlines() for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[:2]
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path / "stream", ["conf", "pipelines", "dvc.yaml", "dvc.lock", ".gitignore"])
    made.shell("git init -q && dvc init -q && dvc config core.analytics false")
    made.commit()
    return made


def test_the_commands_of_the_page_and_a_kill_come_to_one_digest(project: Project) -> None:
    prepared = project.shell(PREPARE)
    assert prepared.code == 0, prepared.err
    assert "modified" not in project.shell("dvc status prepare_stream").out  # the files are those that were recorded
    here = project.shell(f"{HERE} output=json")
    assert here.code == 0, here.err
    cache = Path(project.temporary) / "files"
    there = project.shell(f"{THERE.replace('/tmp/files', str(cache))} data.loaders=1 output=json")
    assert there.code == 0, there.err
    assert there.report["digest"] == here.report["digest"]
    (read,) = there.report["bytes_read"].values()
    assert read["fetched"] > 0
    assert sum(path.stat().st_size for path in cache.iterdir()) <= 12_000_000
    words = [word.replace("$PWD", str(project.path)).replace("/tmp/files", str(cache)) for word in THERE.split()[3:]]
    driver = project.start(*words, "checkpoint.every=5")
    while not list(project.path.glob(".orchestrator/*/checkpoints/checkpoint-*10.json")):
        assert driver.poll() is None, driver.communicate()[1]
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    resumed = project.run("resume=last", "cluster.workers=2", "output=json")
    assert resumed.code == 0, resumed.err
    assert resumed.report["digest"] == here.report["digest"]
    assert project.leftovers() == []
