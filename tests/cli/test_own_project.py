"""The page for an own project, followed word for word from an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.projects import REPOSITORY, Done, Project

PAGE = (REPOSITORY / "docs" / "own-project.md").read_text()
BLOCKS = re.findall(r"^```(\w+) ?([\w./]*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.long
@pytest.mark.ray
def test_the_page_works_word_for_word(tmp_path: Path) -> None:
    project = Project(tmp_path / "spirals")
    project.path.mkdir()
    said: dict[str, Done] = {}
    for language, name, text in BLOCKS:
        if language == "bash":
            for command in text.splitlines():
                said[command] = project.shell(command)
                assert said[command].code == 0, (command, said[command].err)
                assert "Traceback" not in said[command].err
        else:
            (project.path / name).parent.mkdir(exist_ok=True)
            (project.path / name).write_text(text)
    assert project.leftovers() == []
    _check(said)


def _check(said: dict[str, Done]) -> None:
    launches = [done for command, done in said.items() if command.startswith("python -m orchestrator conf")]
    first, second, strict = launches
    for note in re.findall(r"^    (note: this run .*)$", PAGE, re.MULTILINE):
        assert note in first.err
        assert note in second.err
    assert "note: this run" not in strict.err
    digests = [match.group(1) for done in launches for match in re.finditer(r"digest +(\w{64})", done.err)]
    assert len(digests) == 3
    assert len(set(digests)) == 1
    listed = said["python -m orchestrator runs"].out.splitlines()[1:]
    assert [line.split()[3] for line in listed] == ["finished", "finished"]
    assert all(line.endswith(digests[0][:12]) for line in listed)
    assert re.fullmatch(r"[0-9a-f]{32} [\d.]+ [\d.]+\n", said["python train.py"].out)


def test_a_mapping_is_as_good_as_a_file() -> None:
    from orchestrator.config.settings import load

    mapping = {"run": {"steps": 3}, "pipeline": {"target": "a.b:C", "args": {"x": 1.5}}, "optimizer": "sgd"}
    settings = load([mapping], ["run.seed=4"])
    assert (settings.run.steps, settings.run.seed, settings.pipeline.args, settings.optimizer.name) == (
        3,
        4,
        {"x": 1.5},
        "sgd",
    )
