"""Every name becomes one that MLflow takes, different names stay different, and each can be read again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.errors import code_of
from orchestrator.provenance.tracking import names

PARTS = [
    "a",
    "/",
    ".",
    "..",
    "_",
    "_x",
    "_x005B_",
    "x005B_",
    "x_",
    " ",
    ":",
    "-",
    "\\",
    "[",
    "?",
    "\n",
    "\0",
    "\udcc3",
    "é",
    "%2F",
]
NAMES = st.lists(st.sampled_from(PARTS), max_size=8).map("".join) | st.text(max_size=30)
TAKEN = [
    "loss",
    "train/loss",
    "validation/top 1",
    "a.b-c:d",
    "größe",
    "x_1",
    ".hidden",
    "a/..b",
    "a/.b",
    "conv_x2_loss",
    "a_x_b",
]


@functools.cache
def validations() -> list[Callable[[str], None]]:
    """MLflow's own, of metrics, parameters and tags; to import them takes seconds."""
    from mlflow.utils import validation

    return [getattr(validation, f"_validate_{kind}_name") for kind in ("metric", "param", "tag")]


@pytest.mark.slow
@given(NAMES)
@example("top1/")
@example("..")
@example(".")
@example("")
@example("/")
@example("../x")
@example("..x")
@example("a//b/")
@example("name\n")
@example("_xFFFFFF_")
def test_it_is_taken_and_read_again(name: str) -> None:
    found = names.valid(name)
    for validate in validations():
        validate(found)
    assert names.original(found) == name


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKEN)
def test_what_mlflow_takes_stays(name: str) -> None:
    validations()[0](name)
    assert names.valid(name) == name


@pytest.mark.slow
@given(st.text(min_size=200, max_size=400), st.text(min_size=1, max_size=3))
def test_long_names_are_short_and_different(name: str, more: str) -> None:
    found, other = names.valid(name), names.valid(name + more)
    assert len(found) <= names.MOST
    validations()[0](found)
    assert found != other


REGISTERED = st.lists(st.sampled_from([*PARTS, "@", "'", '"', "latest", "LATEST", "v1", "v", "1", "best"]), max_size=5)


@pytest.mark.slow
@given(REGISTERED.map("".join) | st.text(max_size=10))
def test_what_is_no_problem_of_a_registered_model_mlflow_takes(registered: str) -> None:
    from mlflow.utils import search_utils
    from mlflow.utils import validation as of_mlflow

    utils, validation = cast("Any", search_utils.SearchModelVersionUtils), cast("Any", of_mlflow)
    if names.registration_problems("tracking.register", registered):
        return
    name, mark, alias = registered.partition("@")
    validation._validate_model_name(name)
    utils.parse_search_filter(f"name='{name}'")  # by which `models` looks for its version
    if mark:
        validation._validate_model_alias_name(alias)
        validation._validate_model_alias_name_reserved(alias)


@pytest.mark.parametrize(
    "registered",
    [None, "digits", f"digits@{'a' * 255}", "digits@newest", "größe.v2@b-1", 'a "b"', "m@latest-1", "m@v1a"],
)
def test_names_of_registered_models_are_no_problem(registered: str | None) -> None:
    assert names.registration_problems("tracking.register", registered) == []


@pytest.mark.parametrize(
    ("registered", "code"),
    [
        *((name, "mlflow.registered-name") for name in ("team/digits", "a:b", "O'Brien", " ", "", "..", "@newest")),
        *(
            (f"digits@{alias}", "mlflow.alias")
            for alias in ("latest", "Latest", "v1", "V12", "a b", "", "a@b", "a.b", "a" * 256)
        ),
    ],
)
def test_names_that_mlflow_refuses_after_the_training_are_refused_before_it(registered: str, code: str) -> None:
    (problem,) = names.registration_problems("tracking.register", registered)
    assert code_of(problem) == code


@pytest.mark.slow
@given(NAMES.filter(bool))
@example("resnet.v2")
@example("lr 'warm' 50%")
def test_a_run_of_any_name_can_log_a_model(name: str) -> None:
    from mlflow.utils import validation

    validation._validate_logged_model_name(names.of_logged_model(name))


def test_a_long_name_can_be_told_by_its_beginning() -> None:
    found = names.valid("class/" * 60)
    assert names.original(found) == ("class/" * 60)[: names._KEPT].rstrip("/") + "..."


@given(st.text(max_size=20) | st.sampled_from(["\udcc3", "a\0b"]))
def test_any_text_is_a_value(value: str) -> None:
    assert "\0" not in names.text(value)
    names.text(value).encode()
