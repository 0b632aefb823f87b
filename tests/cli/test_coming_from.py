"""The page for who comes from another tool: each job there and here, executed word for word.

Packages that are not in the environment lie in a folder of their own, which `make others` fills and `make test-long` needs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.projects import REPOSITORY, Done, Project, packages

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(1800)]
PAGE = (REPOSITORY / "docs" / "coming-from.md").read_text()
BLOCK = re.compile(r"^```(\w+) ?([\w./]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = [
    (part.startswith(("Lightning\n", "Hugging Face\n")), *found)
    for part in PAGE.split("\n## ")
    for found in BLOCK.findall(part)
]
HERE = "python -m orchestrator"


def test_each_job_is_done_there_and_here(tmp_path: Path) -> None:
    project = Project(tmp_path)
    said: list[tuple[str, Done]] = []
    for is_of_others, language, name, text in BLOCKS:
        if language != "bash":
            (project.path / name).parent.mkdir(exist_ok=True)
            (project.path / name).write_text(text)
            continue
        for command in text.splitlines():
            if command.startswith("cd "):
                project.path = project.path / command.removeprefix("cd ")
                continue
            others = f"export PYTHONPATH={packages('others')} HOME={tmp_path}; "
            if command.startswith(HERE):  # what the run imports is part of its identity
                others = f"export PYTHONPATH={REPOSITORY}:{packages('others')}; " if is_of_others else ""
            done = project.shell(others + command)
            assert done.code == 0, (command, done.out, done.err)
            said.append((command, done))
    _check(said)
    assert project.leftovers() == []


def _check(said: list[tuple[str, Done]]) -> None:
    """The same settings give the same digest each time; there, each tool says that it has learned."""
    same = f"{HERE} conf=spirals pipeline.args.width=48"
    wide = [done for command, done in said if command.startswith(same) and "show=" not in command]
    digests = {found for done in wide for found in re.findall(r"digest +(\w{64})", done.err)}
    assert len(wide) == 6
    assert len(digests) == 1
    reruns = [done for command, done in said if "rerun=last" in command]
    assert len(reruns) == 3
    assert all("exact" in rerun.err + rerun.out for rerun in reruns)
    lit = next(done for command, done in said if command.endswith("conf=lit cluster.workers=2"))
    assert float(re.findall(r"validation/accuracy ([\d.]+)", lit.err)[-1]) > 0.9
    listed = next(done for command, done in said if "tag.wider" in command)
    assert listed.out.splitlines()[1].split()[2] == "true"
    words = next(done for command, done in said if f"{HERE} conf=words" in command)
    there = next(done for command, done in said if "train_trainer" in command)
    losses = [re.search(r"validation.loss (\S+?),?$", done.out + done.err, re.MULTILINE) for done in (words, there)]
    assert all(found is not None and float(found[1]) < 0.1 for found in losses)
    for command in ("python train_hydra.py width=48", "python train_lightning.py"):
        there = next(done for each, done in said if each == command)
        assert all(float(found) > 0.9 for found in re.findall(r"^accuracy ([\d.]+)$", there.out, re.MULTILINE))
