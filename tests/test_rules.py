"""Every rule and law that code, tests and pages cite stands in docs/rules.md, and every one that stands there is cited."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.sources import FILES, ROOT

PAGE = ROOT / "docs" / "rules.md"
CITING = [*FILES, *sorted((ROOT / "tests").rglob("*.py"))] + [
    *sorted((ROOT / "orchestrator").rglob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "README.md",
]
# "rule B4", "rules C2, C5 and D", "law 2", "laws 1 and 2"; a section may be cited as a whole
CITATION = re.compile(r"\b(rule|law)s? ([A-F]\d*|\d+)((?:(?:, and |, | and )(?:[A-F]\d*|\d+))*)\b", re.IGNORECASE)
HEADING = re.compile(r"^#{2,3} (?:(Law \d+)|([A-F]\d+)|([A-F])\. .+)$", re.MULTILINE)


def entries() -> list[str]:
    return ["".join(found) for found in HEADING.findall(PAGE.read_text(encoding="utf-8"))]


def citations(text: str) -> Iterator[str]:
    """As headings of the page; a citation may be broken over two lines of a comment."""
    for kind, first, more in CITATION.findall(re.sub(r"\s*\n\s*(?:# )?", " ", text)):
        for name in re.findall(r"[A-F]\d*|\d+", first + more):
            yield f"Law {name}" if kind.lower() == "law" else name


@functools.cache
def cited() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in CITING:
        if file not in (PAGE, Path(__file__)):
            for name in citations(file.read_text(encoding="utf-8")):
                found.setdefault(name, []).append(str(file.relative_to(ROOT)))
    return found


def test_every_citation_leads_to_an_entry() -> None:
    assert {name: files for name, files in cited().items() if name not in entries()} == {}


def test_every_entry_is_cited() -> None:
    sections = [name for name in entries() if len(name) == 1]
    assert set(entries()) - set(sections) - cited().keys() == set()


def test_no_entry_stands_twice() -> None:
    assert len(entries()) == len(set(entries()))


def test_no_way_of_citing_is_overlooked() -> None:
    text = "(rule B4) rules C5 and\n# D3, laws 1 and 2; rules C2, C5 and D. Rule C1's, a rule of five, law 6).\n"
    assert list(citations(text)) == ["B4", "C5", "D3", "Law 1", "Law 2", "C2", "C5", "D", "C1", "Law 6"]
