"""torch.optim does the same without torch's compiler, and does not import it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch

from orchestrator.numerics.portable import used
from orchestrator.optim import optimizers
from orchestrator.optim.eager import leave_the_compiler_out

SEEN = "torch._dynamo"


class Refusal:
    """A finder of modules that does not let the compiler in."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:  # noqa: ARG002
        assert name != SEEN, "the compiler was imported"


@pytest.fixture(autouse=True)
def never_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has just begun: torch wraps the step of a class when its first optimizer is built."""
    for kind in optimizers.CLASSES:
        step: Any = kind.step
        if getattr(step, "hooked", False):
            monkeypatch.setattr(kind, "step", step.__wrapped__)


@pytest.fixture
def without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has just begun, whatever other tests have imported."""
    monkeypatch.delitem(sys.modules, SEEN, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Refusal(), *sys.meta_path])


def trained(name: str) -> list[torch.Tensor]:
    """Parameters after three steps, with all that an engine calls; torch.manual_seed imports the compiler itself."""
    values = torch.Generator().manual_seed(1)
    model = torch.nn.Linear(5, 3)
    for parameter in model.parameters():
        parameter.data.normal_(generator=values)
    optimizer = optimizers.build(name, {}, model)
    batch = torch.randn(4, 5, generator=values)
    for _ in range(3):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_no_optimizer_imports_the_compiler(name: str, without_the_compiler: None) -> None:  # noqa: ARG001
    leave_the_compiler_out(optimizers.CLASSES)
    assert all(torch.isfinite(tensor).all() for tensor in trained(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_the_bits_are_those_of_torchs_own_functions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_the_compiler_out(optimizers.CLASSES)
    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, SEEN, raising=False)
        patched.setattr(sys, "meta_path", [Refusal(), *sys.meta_path])
        found = trained(name)
    import torch._dynamo  # from here on torch's own functions are called

    assert all(torch.equal(one, other) for one, other in zip(found, trained(name), strict=True))


def test_hooks_of_a_step_are_called(without_the_compiler: None) -> None:  # noqa: ARG001
    leave_the_compiler_out(optimizers.CLASSES)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    called: list[Any] = []
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    optimizer.step()
    assert called == ["after"]


def test_what_records_operators_does_not_import_it_either(without_the_compiler: None) -> None:  # noqa: ARG001
    with used.recorded() as names:
        torch.ones(2, 3).mm(torch.ones(3, 2))
    assert names == {"mm"}
