"""The reports of a worker about its GPU, with a double of `nvidia-smi`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.cluster.actors import card_metrics
from orchestrator.driver.run.event_table import EVENTS
from orchestrator.provenance.environment.cards import CardsUnknown

MEASURED = {"utilization": 0.9, "memory_bytes": 2.0**30, "temperature_c": 60.0}


def told(*answers: Mapping[str, float] | Exception) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    left = list(answers)

    def measure(card: str) -> Mapping[str, float]:
        assert card == "GPU-a"
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    card_metrics.tell("GPU-a", events.append, lambda _seconds: not left, measure)
    return events


def test_the_card_of_a_worker_is_told_by_its_uuid() -> None:
    events = told(MEASURED, {"power_w": 300.0})
    assert [each["measured"] for each in events] == [MEASURED, {"power_w": 300.0}]
    metrics = EVENTS["card_measured"].metrics({"step": 3, "worker": 0, **events[0]})
    assert metrics == {
        "system/GPU-a/utilization": 0.9,
        "system/GPU-a/memory_bytes": 2.0**30,
        "system/GPU-a/temperature_c": 60.0,
    }
    assert EVENTS["card_measured"].fields is None


@pytest.mark.parametrize(
    "error", [CardsUnknown("nvidia-smi did not answer in 10 s", hangs=True), FileNotFoundError("x")]
)
def test_a_tool_that_does_not_answer_is_told_once_and_asked_no_more(error: Exception) -> None:
    events = told(MEASURED, error, MEASURED)
    assert [each["event"] for each in events] == ["card_measured", "device"]
    assert events[-1]["why"] == f"metrics of its GPU are not told: {error}"


def test_of_a_card_of_which_the_tool_tells_nothing_no_more_is_asked() -> None:
    assert told({}, MEASURED) == []
