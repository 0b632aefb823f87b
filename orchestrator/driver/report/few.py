"""Shows some of very many metrics, such as one for each of a thousand classes, and how many more there are. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")

IN_A_LINE = 8
_PLACES = "MLflow and the run's journal.jsonl"
ON_A_CARD = 20
IN_A_PICTURE = 12


def few(metrics: Mapping[str, Value], most: int) -> dict[str, Value]:
    """At most so many of these, in their order. Names with fewer parts are preferred, since parts are mostly classes or
    layers."""
    chosen = sorted(metrics, key=lambda name: name.count("/"))[:most]
    return {name: metrics[name] for name in metrics if name in chosen}


def line(metrics: Mapping[str, float]) -> str:
    """The metrics on one line."""
    shown = few(metrics, IN_A_LINE)
    parts = [f"{name} {value:.4g}" for name, value in shown.items()]
    return ", ".join([*parts, *more(len(metrics) - len(shown))])


def more(number: int) -> list[str]:
    """A phrase on those that are not shown, if there are some."""
    return [f"and {number:,} more metrics, in {_PLACES}"] if number else []
