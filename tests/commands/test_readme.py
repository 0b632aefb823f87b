"""Every command of the README runs, in the order in which a reader types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.projects import REPOSITORY, Project, make_project

BLOCKS = re.findall(r"```bash\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """What a clone of this tree holds, with this environment as its `.venv`."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    files = [name for name in listing.stdout.splitlines() if (REPOSITORY / name).exists()]
    project = make_project(tmp_path_factory.mktemp("clone"), files)
    (project.path / ".venv").symlink_to(sys.prefix)
    (Path(sys.prefix) / ".installed").touch()
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(project.path / name, (0, 0))  # older than the stamp of the environment, so that it is not made again
    project.commit()
    return project


@pytest.mark.ray
def test_the_commands_of_the_readme(clone: Project) -> None:
    shown = {}
    for command in COMMANDS:
        if command in ("make test", "source .venv/bin/activate"):
            continue  # the first is what runs this test; the second is what `shell` does
        before = len(clone.runs())
        done = clone.shell(command)
        assert done.code == 0, (command, done.err)
        assert len(clone.runs()) == before + 1
        shown[command] = done.err
    digests = {command: _found(r"digest +([0-9a-f]{64})", text) for command, text in shown.items()}
    assert len(digests) == 3
    assert len({(clone.folder(run_id) / "trace.jsonl").read_bytes() for run_id in clone.runs()}) == 1
    (verdict,) = (text.splitlines()[-1] for command, text in shown.items() if "rerun=" in command)
    assert verdict == "exact: all 400 steps and the final parameters agree to the last bit"
    assert len(set(digests.values())) == 1
    assert float(_found(r"results .*validation/accuracy ([\d.]+)", shown["make demo"])) >= 0.97
    assert clone.leftovers() == []


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, (pattern, text)
    return match.group(1)


def test_the_pages_that_the_readme_names_are_there() -> None:
    links = re.findall(r"\]\(([\w/.-]+)\)", (REPOSITORY / "README.md").read_text())
    assert links
    assert [link for link in links if not Path(REPOSITORY / link).exists()] == []
