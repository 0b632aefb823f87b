"""Errors cross processes as dictionaries and come out as what they were."""

from __future__ import annotations

import errno

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


@pytest.mark.parametrize(("number", "code"), [(errno.EMFILE, 1), (errno.ENFILE, 1), (errno.EACCES, 2)])
def test_settings_are_not_to_blame_for_want_of_descriptors(number: int, code: int) -> None:
    """Campaign, seed 101: out of descriptors at the admission ended a run with exit code 2."""
    error = errors.unusable("checkpoint.uri: /x", OSError(number, "why"), "why")
    assert error.exit_code == code
    assert "checkpoint.uri: /x cannot be used: why" in str(error)
