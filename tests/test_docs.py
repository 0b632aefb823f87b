"""What the pages of docs/ show is true: their settings load, their links lead somewhere."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import yaml

from orchestrator.settings import Settings, load

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = sorted((REPOSITORY / "docs").glob("*.md"))
NEEDED = {"run": {"steps": 1000}, "pipeline": {"target": "a:B"}, "evaluation": {"every": 100}}


def examples() -> list[str]:
    """The indented blocks of the page about training: settings, a section each."""
    text = (REPOSITORY / "docs" / "training.md").read_text()
    return [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)]


@pytest.mark.parametrize("example", examples())
def test_the_settings_of_the_page_about_training_load(example: str) -> None:
    assert isinstance(load([NEEDED, yaml.safe_load(example)], []), Settings)


@pytest.mark.parametrize("page", [*PAGES, REPOSITORY / "README.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([\w/.-]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_named_in_the_readme() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert [page.name for page in PAGES if f"docs/{page.name}" not in readme] == []
