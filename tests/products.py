"""Tests of which `make check` and `make test` run a part, and `make test-long` all: products of cases, laws with costly
examples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest
from hypothesis import settings

from tests.collecting import is_mark_left_out

FEW: Final = 10  # examples of the short profile of hypothesis


def thinned(cases: Iterable[Any], every: int, first: int = 0) -> list[Any]:
    """Parameters: one in `every` as it is, from the `first` on, the others marked `long`, or left out where `-m` leaves those
    out."""
    cases = list(cases)
    shown = cases[first::every]
    if shown and is_mark_left_out("long"):
        return shown
    return [
        case if number % every == first else pytest.param(case, marks=pytest.mark.long)
        for number, case in enumerate(cases)
    ]


def fewer(part: int, most: int = 1000) -> settings:
    """For a law whose examples are costly: one in `part` of those that the short profile draws, all of a longer one, and no
    more than `most`."""
    drawn = settings().max_examples
    is_short = drawn <= FEW  # not asked of the profile, which is there only under pytest
    return settings(max_examples=min(-(-drawn // part) if is_short else drawn, most))
