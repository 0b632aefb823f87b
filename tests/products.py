"""Of what `make check` and `make test` run a part, and `make test-long` all: products of cases, laws with costly examples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def thinned(cases: Iterable[Any], every: int) -> list[Any]:
    """Parameters: one in `every` as it is, the others marked `long`."""
    return [
        case if number % every == 0 else pytest.param(case, marks=pytest.mark.long) for number, case in enumerate(cases)
    ]


def fewer(part: int, most: int = 1000) -> settings:
    """For a law whose examples are costly: one in `part` of those that the profile draws, and no more than `most`."""
    return settings(max_examples=min(-(-settings().max_examples // part), most))
