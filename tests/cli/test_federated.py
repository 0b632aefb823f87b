"""The federated rounds of docs/samples.md: the page's commands run in the order in which a reader types them."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.cli.alone import alone, trace_of
from tests.projects import REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "samples.md").read_text()
_, ROUNDS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = ROUNDS.splitlines()


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


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", re.findall(r"^\| `(\{.*?\})` \|", PAGE, re.MULTILINE))
def test_the_optimizers_of_the_page_are_on_offer(optimizer: str) -> None:
    from orchestrator.optim import optimizer_laws

    options = yaml.safe_load(optimizer.replace("1e-3", "0.001"))
    assert optimizer_laws.problems(options.pop("name"), options) == []
