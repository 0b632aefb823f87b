"""The pages of docs/ are true: their settings load, their links lead somewhere. Each begins with what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import orchestrator
from orchestrator.config.settings import Settings, load
from tests import house
from tests.test_architecture import FLOORS

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = sorted((REPOSITORY / "docs").glob("*.md"))
BESIDE = [
    *(REPOSITORY / "docs" / "benchmarks").glob("*.md"),
    *REPOSITORY.glob("*.md"),
    *REPOSITORY.glob(".github/**/*.md"),
]
WITHOUT_COMMAND = {"rules.md", "settings.md"}  # to look things up
LINK = re.compile(r"\]\(([\w/.-]+)(?:#[\w.-]+)?\)")
NEEDED = {"run": {"steps": 1000}, "pipeline": {"target": "a:B"}, "evaluation": {"every": 100}}
EXAMPLES = [
    (page.name, block)
    for page in [*PAGES, *sorted((REPOSITORY / "docs" / "benchmarks").glob("*.md"))]
    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize(("page", "example"), EXAMPLES)
def test_the_settings_of_the_pages_load(page: str, example: str) -> None:
    given = yaml.safe_load(example)
    length = {"steps": None} if "epochs" in given.get("run", {}) else {}
    assert isinstance(load([NEEDED, {"run": length}, given], []), Settings), page


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


def test_every_page_is_named_in_the_readme() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert [page.name for page in PAGES if f"docs/{page.name}" not in readme] == []


@pytest.mark.slow
def test_the_pages_that_the_program_names_are_there() -> None:
    """In messages, docstrings and comments."""
    files = [
        file
        for room in ("orchestrator", "benchmarks", "campaign", "tests")
        for file in (REPOSITORY / room).rglob("*.py")
    ]
    named = {(file.name, page) for file in files for page in re.findall(r"\bdocs/[\w/-]+\.md", file.read_text())}
    assert [(file, page) for file, page in named if not (REPOSITORY / page).exists()] == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in WITHOUT_COMMAND], ids=lambda page: page.name
)
def test_a_page_begins_with_what_it_is_for_and_a_command(page: Path) -> None:
    title, text, *_ = page.read_text().split("\n\n")
    assert title.startswith("# ")
    assert not text.startswith(("#", "|", "-", "    ", "```")), text
    before_the_first_section = page.read_text().split("\n## ")[0]
    assert re.search(r"(?:^```bash$|^    python -m |`make )", before_the_first_section, re.MULTILINE)


def test_the_files_of_the_walks_are_there() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    walks = page[page.index("\n## Walks\n") : page.index("\n## The house\n")]
    named = re.findall(r"`([\w/]+/\w+\.py)`", walks)
    assert len(named) > 20
    assert [path for path in named if not (REPOSITORY / "orchestrator" / path).exists()] == []


def test_the_picture_of_the_house_is_what_the_imports_give() -> None:
    page = house.PAGE.read_text()
    assert page == house.with_picture(page), "run: python -m tests.house"


def test_a_picture_leaves_out_what_others_imply() -> None:
    assert {"cli"} == house.unimplied("__main__")
    for floor in FLOORS:
        reached = set(house.unimplied(floor))
        reached |= {below for each in reached for below in house.below(each)}
        assert reached >= house.uses(floor)


def test_every_public_name_is_on_its_page() -> None:
    page = (REPOSITORY / "docs" / "api.md").read_text()
    assert set(re.findall(r"^::: orchestrator\.(\w+)$", page, re.MULTILINE)) == set(orchestrator.__all__)
