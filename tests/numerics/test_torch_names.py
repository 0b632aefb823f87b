"""A torch that lacks a name on which something hangs is refused before a run starts; others are done without."""

from __future__ import annotations

import sys

import pytest
import torch

from orchestrator.numerics import determinism, torch_names
from orchestrator.numerics.portable.conformance.drawing import Draw
from orchestrator.optim import by_element


def test_this_torch_has_all() -> None:
    assert torch_names.problems() == []


@pytest.mark.parametrize("name", torch_names.NEEDED)
def test_one_that_is_missing_is_told_with_what_hangs_on_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_names.NEEDED, f"{name}_", torch_names.NEEDED[name])
    (told,) = torch_names.problems()
    assert told.endswith(f"has no {name.replace(':', '.')}_, on which hangs: {torch_names.NEEDED[name]}")


def test_modules_have_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_names.NEEDED, "torch.of_another_time:_x", "something")
    monkeypatch.setitem(torch_names.NEEDED_OF_MODULES, "_of_another_time", "something")
    assert [told.split(" has no ")[1].split(",")[0] for told in torch_names.problems()] == [
        "torch.of_another_time._x",
        "torch.nn.Module._of_another_time",
    ]


def test_algorithms_are_deterministic_by_the_public_function_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, bool]] = []

    def use(mode: bool, *, warn_only: bool) -> None:
        asked.append((mode, warn_only))

    monkeypatch.setattr(torch, "use_deterministic_algorithms", use)
    monkeypatch.delattr(torch._C, "_set_deterministic_algorithms")
    determinism.set_deterministic_algorithms(True)
    monkeypatch.undo()
    assert asked == [(True, False)]
    monkeypatch.setitem(sys.modules, "torch._inductor.config", torch)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", use)
    determinism.set_deterministic_algorithms(False)
    determinism.set_deterministic_algorithms(True, only_warns=True)
    assert asked == [(True, False), (False, False), (True, True)]


@pytest.mark.slow
def test_gradients_are_the_same_by_the_public_function(monkeypatch: pytest.MonkeyPatch) -> None:
    below = Draw("x").both(torch.tanh, Draw("y")(5, 3))
    monkeypatch.delattr(torch.autograd.graph, "_engine_run_backward")
    assert all(map(torch.equal, Draw("x").both(torch.tanh, Draw("y")(5, 3)), below))


def test_an_optimizer_whose_hooks_are_not_found_counts_as_watched() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    assert not by_element.is_watched(optimizer)
    del optimizer._optimizer_step_pre_hooks
    assert by_element.is_watched(optimizer)
