"""Metrics of a worker's GPU, told now and then: utilization, memory, temperature and power, as `nvidia-smi` tells them.

The tool is asked as a program of its own with a deadline, so a driver that hangs holds only this thread up. Then, and where
there is no tool, that is said once, and nothing more is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.provenance.environment import cards
from orchestrator.provenance.environment.cards import CardsUnknown

EVERY_S = 30.0

Measure = Callable[[str], Mapping[str, float]]


def begin(card: str, emit: Callable[[dict[str, Any]], None]) -> None:
    """In a thread that ends with the process. card: the UUID; emit: takes an event."""
    over = threading.Event()
    threading.Thread(target=lambda: tell(card, emit, over.wait), name="card metrics", daemon=True).start()


def tell(
    card: str,
    emit: Callable[[dict[str, Any]], None],
    wait: Callable[[float], bool],
    measure: Measure = cards.measure,
) -> None:
    """Tell the metrics of a GPU again and again. wait: for so many seconds, and whether that is the end."""
    while not wait(EVERY_S):
        try:
            found = measure(card)
        except (CardsUnknown, OSError) as error:
            emit({"event": "device", "why": f"metrics of its GPU are not told: {error}"})
            return
        if not found:  # such as a MIG device, of which nothing is told alone
            return
        emit({"event": "card_measured", "card": card, "measured": dict(found)})
