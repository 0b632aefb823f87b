"""Errors cross processes as dictionaries and come out as what they were; each has a code, and docs/errors.md has all codes."""

from __future__ import annotations

import errno
import re

import pytest

from orchestrator import errors
from tests import error_codes


@pytest.mark.parametrize("kind", [errors.NonFinite, errors.PipelineRaised, errors.WorkerLost, errors.Interrupted])
def test_an_error_survives_the_journey(kind: type[errors.OrchestratorError]) -> None:
    error = kind("what", "do this", "Traceback ...", code="loss.value")
    error.recurs = kind is errors.PipelineRaised
    back = errors.from_dict(error.as_dict())
    assert back.recurs == error.recurs
    assert type(back) is kind
    assert (back.message, back.remedy, back.details) == ("what", "do this", "Traceback ...")
    assert (back.code, back.codes) == ("loss.value", ("loss.value",))
    assert str(back) == "what\n  do this"


def test_a_configuration_error_keeps_its_exit_code_and_its_problems() -> None:
    error = errors.ConfigurationError(["a: wrong", "b: worse"])
    assert (error.exit_code, str(error)) == (2, "the configuration is wrong:\n  - a: wrong\n  - b: worse")
    assert errors.from_dict(error.as_dict()).exit_code == 2


def test_no_message_tells_the_password_of_an_address() -> None:
    """Terminals, logs and notebooks keep it."""
    place = "s3://me:hush@bucket/x"
    for error in (
        errors.RunFailed(f"{place} is away", f"see to {place}"),
        errors.ConfigurationError([f"checkpoint.uri: {place} is away"], f"see to {place}"),
        errors.unusable(f"checkpoint.uri: {place}", ValueError(), 'no bucket is named "me:hush@bucket"'),
    ):
        told = f"{error} {error.args} {error.as_dict()} {getattr(error, 'problems', '')}"
        assert "hush" not in told
        assert "s3://bucket/x" in told


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("ssh://git@host/x.git", "ssh://git@host/x.git"),
        ("git+ssh://git@host:22/x.git", "git+ssh://git@host:22/x.git"),
        ("ssh://git:hush@host/x.git", "ssh://host/x.git"),
        ("https://hush@host/x.git", "https://host/x.git"),
    ],
)
def test_an_address_of_ssh_keeps_the_name_that_it_needs(address: str, told: str) -> None:
    assert errors.without_users(f"clone {address}") == f"clone {told}"


def test_each_problem_has_its_code() -> None:
    first, second = errors.coded("a.b", "a: wrong"), "b: worse"
    error = errors.ConfigurationError([first, second, first], code="b.c")
    assert (error.code, error.codes) == ("a.b", ("a.b", "b.c"))
    assert errors.ending(error)["error"] | {"message": ""} == {
        "kind": "ConfigurationError",
        "code": "a.b",
        "codes": ["a.b", "b.c"],
        "message": "",
        "remedy": "",
    }
    assert errors.from_dict(error.as_dict()).codes == error.codes
    assert "codes" not in errors.ending(errors.ConfigurationError([first]))["error"]


def test_an_error_of_a_version_without_codes_is_read() -> None:
    old = {"kind": "NonFinite", "message": "the loss is nan", "remedy": "", "details": ""}
    assert errors.from_dict(old).codes == ("",)


def test_every_error_has_a_code() -> None:
    assert error_codes.without_code() == []


def test_codes_follow_the_grammar() -> None:
    found = error_codes.sites()
    assert [site for site in found if not error_codes.CODE.fullmatch(site.code)] == []
    assert {site.code.partition(".")[0] for site in found} == set(error_codes.SUBJECTS)


def test_a_code_says_one_thing() -> None:
    said: dict[str, set[str]] = {}
    for site in error_codes.sites():
        said.setdefault(site.code, set()).add(re.sub(r"{[^}]*}", "{}", site.sentence))
    assert {code: sentences for code, sentences in said.items() if len(sentences) > 1} == {}


def test_the_page_of_errors_is_current() -> None:
    assert error_codes.PAGE.read_text() == error_codes.page(), "run: python -m tests.error_codes"


@pytest.mark.parametrize(("number", "code"), [(errno.EMFILE, 1), (errno.ENFILE, 1), (errno.EACCES, 2)])
def test_settings_are_not_to_blame_for_want_of_descriptors(number: int, code: int) -> None:
    """Campaign, seed 101: out of descriptors at the admission ended a run with exit code 2."""
    error = errors.unusable("checkpoint.uri: /x", OSError(number, "why"), "why")
    assert error.exit_code == code
    assert "checkpoint.uri: /x cannot be used: why" in str(error)
