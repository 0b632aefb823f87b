"""Errors cross processes as dictionaries and come out as what they were."""

from __future__ import annotations

import pytest

from orchestrator import errors


@pytest.mark.parametrize("kind", [errors.NonFinite, errors.PipelineRaised, errors.WorkerLost, errors.Interrupted])
def test_an_error_survives_the_journey(kind: type[errors.OrchestratorError]) -> None:
    error = kind("what", "do this", "Traceback ...")
    error.recurs = kind is errors.PipelineRaised
    back = errors.from_dict(error.as_dict())
    assert back.recurs == error.recurs
    assert type(back) is kind
    assert (back.message, back.remedy, back.details) == ("what", "do this", "Traceback ...")
    assert str(back) == "what\n  do this"


def test_a_configuration_error_keeps_its_exit_code_and_its_problems() -> None:
    error = errors.ConfigurationError(["a: wrong", "b: worse"])
    assert (error.exit_code, str(error)) == (2, "the configuration is wrong:\n  - a: wrong\n  - b: worse")
    assert errors.from_dict(error.as_dict()).exit_code == 2
