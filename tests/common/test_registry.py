"""Options of variants are read from annotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from orchestrator.common.registry import Table

if TYPE_CHECKING:
    import torch


def scaled(given: torch.Tensor, *, times: Annotated[int, Field(ge=1, description="How often.")] = 2) -> torch.Tensor:
    return given * times


def test_an_annotation_that_only_a_type_checker_knows_leaves_options_checked() -> None:
    """The bounds of all options were lost, in silence."""
    table: Table[Callable[..., object]] = Table("scale", {"scaled": scaled})
    assert table.options("scaled")["times"].doc == "How often."
    assert table.problems("scaled", {"times": 0}) == ["scale.times: must be at least 1, got 0"]
    assert table.problems("scaled", {"times": 3}) == []
