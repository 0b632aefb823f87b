"""The page about federated rounds: its commands run in the order in which a reader types them, and its settings load."""

from __future__ import annotations

import re
import textwrap

import pytest
import yaml

from orchestrator.settings import Settings, load
from tests.commands.alone import alone, trace_of
from tests.projects import REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "federated.md").read_text()
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for line in block.splitlines()
]
EXAMPLES = [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE)]
NEEDED = {"run": {"steps": 1}, "pipeline": {"target": "a:B"}}


@pytest.mark.long
@pytest.mark.ray
def test_the_commands_of_the_page(digits: Project) -> None:
    expected = alone(digits, "federated", "run.steps=3")
    first, again = (digits.shell(f"{command} output=json") for command in COMMANDS)
    assert (first.code, again.code) == (0, 0), (first.err, again.err)
    assert first.report["digest"] == expected.digest
    assert trace_of(digits, first) == expected.trace
    assert again.report["verdict"] == "exact"
    assert (digits.folder(first.report["run_id"]) / "pictures" / "partition.png").exists()


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_settings_of_the_page_load(example: str) -> None:
    assert isinstance(load([NEEDED, yaml.safe_load(example)], []), Settings)


@pytest.mark.parametrize("optimizer", re.findall(r"^\| `(\{.*?\})` \|", PAGE, re.MULTILINE))
def test_the_optimizers_of_the_page_are_on_offer(optimizer: str) -> None:
    from orchestrator.updates import optimizers

    options = yaml.safe_load(optimizer.replace("1e-3", "0.001"))
    assert optimizers.problems(options.pop("name"), options) == []
