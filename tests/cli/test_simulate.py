"""The examples of `simulate` in docs/simulation.md work word for word."""

from __future__ import annotations

import json

import pytest

from tests.projects import REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "simulation.md").read_text()


@pytest.mark.long
@pytest.mark.slow
def test_the_commands_of_the_page(digits: Project) -> None:
    commands = [line for line in PAGE.splitlines() if line.startswith("python -m orchestrator simulate")]
    assert len(commands) == 5
    for command in commands:
        done = digits.shell(f"{command} output=json")
        assert done.code == 0, done.err
        assert done.report["rows"]
    assert (digits.path / "simulated.png").stat().st_size > 10_000
    assert json.loads((digits.path / "simulated.json").read_text())["traceEvents"]
