"""A product of cases, some of which are enough for `make check` and `make test`; `make test-long` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], every: int) -> list[Any]:
    """Parameters: one in `every` as it is, the others marked `long`."""
    return [
        case if number % every == 0 else pytest.param(case, marks=pytest.mark.long) for number, case in enumerate(cases)
    ]
