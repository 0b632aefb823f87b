"""The words of a launch about the name that its run shares with others."""

from __future__ import annotations

import pytest

from orchestrator.config.settings import load, origins
from orchestrator.driver.recording.opening import another_name, name_in_store

CONF = {"run": {"name": "digits", "steps": 4}, "pipeline": {"target": "a:B"}, "optimizer": {"name": "sgd", "lr": 0.1}}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["optimizer.lr=0.5", "run.seed=7"], "run.name=digits-lr0.5-seed7"),
        (["optimizer.name=adam", "cluster.workers=3"], "run.name=digits-nameadam"),
        (["cluster.workers=3"], None),
        (["optimizer.lr=0.5", "run.name=mine"], None),
        ([], None),
    ],
)
def test_a_name_tells_what_the_command_line_changed_of_the_result(typed: list[str], said: str | None) -> None:
    assert another_name(load([CONF], typed), origins([CONF], typed)) == said


def test_a_run_that_nobody_named_has_the_name_of_its_pipeline() -> None:
    unnamed = {**CONF, "run": {"steps": 4}}
    assert name_in_store(load([unnamed], ["pipeline.target=here.there:Signs"])) == "Signs"
    assert name_in_store(load([unnamed], ["pipeline.target=here.there:Signs", "run.name=mine"])) == "mine"
