"""Writers are told what MLflow is told, in order; one that fails costs a warning and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common.values import labels_of
from orchestrator.config.settings import determining, load
from orchestrator.records import loggers
from orchestrator.records.loggers.feed import LoggerFeed
from orchestrator.records.loggers.logger import LoggedRun
from tests.refusals import refused

ME = f"{__name__}:Remembering"
NEEDED = {"run": {"steps": 3}, "pipeline": {"target": "a:B"}, "optimizer": "sgd"}


class Remembering:
    """A writer of a project's own. It fails at step 13, and waits at step 14."""

    told: dict[str, list[Any]] = {}  # noqa: RUF012
    goes_on = threading.Event()

    def __init__(self, run: LoggedRun) -> None:
        self._told = self.told[run.run_id] = []

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if step == 13:
            raise ValueError("no step 13\nand a line more")
        if step == 14:
            self.goes_on.wait()
        self._told.append((step, dict(values)))

    def end(self, status: str, results: Mapping[str, Any]) -> None:
        self._told.append((status, dict(results)))


def told(run_id: str) -> LoggedRun:
    return LoggedRun(run_id, "name", "experiment", Path(), {})


@given(st.lists(st.tuples(st.integers(20, 99), st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False)))))
def test_it_is_told_all_in_order(points: list[tuple[int, dict[str, float]]]) -> None:
    feed = LoggerFeed([ME, ME], told("all"))
    for step, values in points:
        feed.metrics(step, values)
    assert feed.end("finished", {"digest": "ff"}) == []
    assert Remembering.told["all"] == [*points, ("finished", {"digest": "ff"})]


def test_one_that_fails_is_told_nothing_more_and_the_other_all() -> None:
    feed = LoggerFeed([ME, f"{__name__}:nobody"], told("fails"))
    for step in (12, 13, 15):
        feed.metrics(step, {"a": 1.0})
    found = feed.end("failed", {})
    assert found[0] == f"tracking.also: {ME} is told nothing any more: ValueError: no step 13"
    assert found[1].startswith(f"tracking.also: {__name__}:nobody is told nothing any more: ConfigurationError")
    assert Remembering.told["fails"] == [(12, {"a": 1.0})]
    assert feed.troubles() == []


def test_one_that_does_not_come_back_is_not_waited_for() -> None:
    feed = LoggerFeed([ME], told("waits"), last_s=0.01)
    feed.metrics(14, {})
    assert feed.end("killed", {}) == [f"tracking.also: {ME} has not taken all that it was told when the run had ended"]
    Remembering.goes_on.set()


def test_what_is_not_there_is_said_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert loggers.problems(["tensorboard", "wandb"]) == [
        f"tracking.also: {name} is not installed; pip install {name}, or leave it out of tracking.also"
        for name in ("tensorboard", "wandb")
    ]
    assert loggers.problems([ME]) == []
    assert "no_such" in loggers.problems(["no_such:module"])[0]


@pytest.mark.parametrize("also", [["tensorbord"], ["wandb", "wandb"], [""]])
def test_other_names_are_refused(also: list[str]) -> None:
    with refused("settings.value", "tracking.also"):
        load([{**NEEDED, "tracking": {"also": also}}], [])


def test_notes_labels_and_writers_are_no_part_of_the_identity() -> None:
    plain = load([NEEDED], [])
    told = load([NEEDED], ["run.note=for the paper", "run.tags=[a,team=vision]", "tracking.also=[wandb]"])
    assert determining(told) == determining(plain)
    assert labels_of(told.run.tags) == {"a": None, "team": "vision"}


@pytest.mark.parametrize("tags", [["a", "a=1"], ["two words"], ["=x"], ["a="]])
def test_a_label_has_a_name_of_its_own(tags: list[str]) -> None:
    with refused("settings.value", "run.tags"):
        load([{**NEEDED, "run": {"steps": 3, "tags": tags}}], [])
