"""The commands about what a shard learns from, in the order of their pages, and what the pages say of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.projects import REPOSITORY, Done, make_digits

SAMPLES, TRAINING = (
    re.findall(r"^```bash\n(.*?)^```", (REPOSITORY / "docs" / name).read_text(), re.DOTALL | re.MULTILINE)
    for name in ("samples.md", "training.md")
)
COMMANDS = [*SAMPLES[0].splitlines(), TRAINING[-1].strip()]


@pytest.mark.long
@pytest.mark.ray
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """A divided run has its digest again on another layout; its picture is an artifact; a large batch learns as well."""
    project = make_digits(tmp_path / "digits")
    said: list[Done] = []
    for command in COMMANDS:
        said.append(project.shell(f"{command} output=json"))
        assert said[-1].code == 0, (command, said[-1].err)
    divided, again, large = (done.report for done in said)
    assert again["verdict"] == "exact"
    assert large["metrics"]["validation/accuracy"] >= 0.98
    folder = project.folder(divided["run_id"])
    assert (folder / "pictures" / "partition.png").read_bytes().startswith(b"\x89PNG")
    table = json.loads((folder / "data.json").read_text())["partition"]
    assert table["labels"] == [str(digit) for digit in range(10)]
    assert len(table["counts"]) == 8
    assert sum(map(sum, table["counts"])) == 1437
    assert project.leftovers() == []
