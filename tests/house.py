"""The picture of the house in docs/architecture.md, made of the imports: `python -m tests.house` puts it there.

A box is a floor, and an arrow leads to a floor that it imports from. Arrows that others imply are left out: where a leads to b
and b to c, none leads from a to c.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping

from tests.sources import FILES, ROOT
from tests.test_architecture import FLOORS, floor_of, floors_used

PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- made by python -m tests.house -->\n", "<!-- end of the picture -->\n"


def picture() -> str:
    """A flowchart of Mermaid."""
    arrows = (f"    {floor} --> {lower}\n" for floor in FLOORS for lower in sorted(unimplied(floor), key=FLOORS.index))
    return f"```mermaid\nflowchart TB\n{''.join(arrows)}```\n"


def with_picture(page: str) -> str:
    """The text of the page with the picture of today's imports."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + picture() + END + rest.split(END)[1]


def uses(floor: str) -> frozenset[str]:
    """The other floors that it imports from."""
    return frozenset(_used()[floor] - {floor})


@functools.cache
def _used() -> Mapping[str, set[str]]:
    """The floors that each floor imports from."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in FILES:
        found[floor_of(file)] |= floors_used(file)
    return found


@functools.cache
def below(floor: str) -> frozenset[str]:
    """The floors that it reaches, over others or directly."""
    return uses(floor).union(*map(below, uses(floor)))


def unimplied(floor: str) -> set[str]:
    """The floors that it uses and reaches in no other way."""
    return {lower for lower in uses(floor) if not any(lower in below(other) for other in uses(floor))}


if __name__ == "__main__":
    PAGE.write_text(with_picture(PAGE.read_text()))
