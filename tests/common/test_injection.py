"""Moments have no effect before something is installed, each is one of a closed set, and the program installs nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from orchestrator.common import injection
from orchestrator.common.injection import Moment
from orchestrator.records.progress import Activity
from tests.products import thinned
from tests.sources import package
from tests.worker import pipelines
from tests.worker.runs import Layout, train


@pytest.fixture
def met() -> Iterator[list[str]]:
    """The moments, as they come."""
    found: list[str] = []

    def note(moment: Moment, step: int | None, subject: Any) -> Any:  # noqa: ARG001
        found.append(moment)
        return subject

    injection.install(note)
    yield found
    injection.install(None)


def calls() -> Iterator[tuple[str, ast.Call]]:
    """The calls of functions of `injection` in the program, with the function's name."""
    for read in package().values():
        for node in read.of(ast.Call) if "injection." in read.text else ():
            if ast.unparse(node.func).startswith("injection."):
                yield ast.unparse(node.func), node


def test_without_an_injector_the_subject_stays() -> None:
    subject = object()
    assert injection.at("send", 1, subject) is subject
    assert injection.at("manifest", 1) is None


def test_an_injector_may_put_another_subject_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injection, "_injector", lambda moment, step, subject: (moment, step, subject))
    assert injection.at("contribution", 3, "mine") == ("contribution", 3, "mine")


def test_the_program_installs_nothing() -> None:
    assert {name for name, _ in calls()} == {"injection.at"}
    assert not [file for file, read in package().items() if "common.injection import" in read.text]


def test_each_moment_has_its_place() -> None:
    """Activities are told by the heartbeat, whose call has no name of its own."""
    named = [str(call.args[0].value) for _, call in calls() if isinstance(call.args[0], ast.Constant)]
    assert sorted([*named, *get_args(Activity)]) == sorted([*get_args(Moment), "idle"])


@pytest.mark.threads
@pytest.mark.parametrize("stages", thinned([1, 2], 2))
def test_a_run_comes_by_them(met: list[str], stages: int) -> None:
    train(pipelines.Mlp, Layout(2, stages=stages), steps=2)
    assert set(met) >= {"prepare", "compute", "exchange", "send", "receive", "update", "commit", "evaluate", "idle"}
    assert set(met) <= set(get_args(Moment))
    assert ("contribution" in met) == (stages == 1)
