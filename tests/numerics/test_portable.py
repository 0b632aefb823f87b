"""Portable arithmetic: correctly rounded roots, the page of operators, and which operators a run uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from orchestrator.cli import doctor
from orchestrator.numerics import determinism
from orchestrator.numerics.portable import checking, operator_overrides, used
from orchestrator.numerics.portable.checking import Known
from orchestrator.numerics.portable.conformance import PAGE
from orchestrator.numerics.portable.conformance.drawing import results
from tests.portable.golden import ROOT, environment
from tests.refusals import refused

UNPORTABLE = {"acos", "atan", "cholesky", "grid sample", "least squares"}  # docs/portable.md says so

# Operations that are mended


@given(st.floats(min_value=2.0**-149, max_value=2.0**127, width=32))
def test_a_root_is_the_nearest_number(x: float) -> None:
    root = operator_overrides.sqrt(torch.tensor([x]))
    value = Fraction(root.item())
    below, above = (Fraction(float(numpy.nextafter(root.numpy(), numpy.float32(end))[0])) for end in (0, numpy.inf))
    assert ((below + value) / 2) ** 2 <= Fraction(x) <= ((value + above) / 2) ** 2


def test_roots_of_other_types_and_layouts_are_torchs() -> None:
    grid = torch.arange(12.0).view(3, 4)
    assert torch.equal(operator_overrides.sqrt(grid.t()), torch.sqrt(grid).t())
    assert operator_overrides.sqrt(torch.tensor(4)).item() == 2.0
    assert operator_overrides.sqrt(torch.tensor([9.0], dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert operator_overrides.sqrt(torch.tensor([-1.0])).isnan().all()
    assert operator_overrides.sqrt(torch.tensor(2.0, dtype=torch.complex64)).dtype == torch.complex64
    assert operator_overrides.power(torch.tensor([1, 2, 3]), 2).tolist() == [1, 4, 9]
    assert operator_overrides.power(torch.tensor([4, 9]), 0.5).tolist() == [2.0, 3.0]
    assert operator_overrides.power_(torch.tensor([4.0, 9.0]), 0.5).tolist() == [2.0, 3.0]
    assert operator_overrides.power_(torch.tensor([4.0, 9.0]), 2).tolist() == [16.0, 81.0]


def test_the_whole_process_has_them_and_torchs_own_are_put_back() -> None:
    numbers = torch.rand(5000, generator=torch.Generator().manual_seed(1)) * 10
    before, lstm = torch.sqrt(numbers), torch.lstm
    rounded = torch.from_numpy(numpy.sqrt(numbers.numpy()))
    operator_overrides.install()
    operator_overrides.install()
    try:
        assert operator_overrides.installed()
        assert torch.lstm is not lstm
        leaf = numbers.clone().requires_grad_()
        root = leaf.sqrt()
        root.sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        for found in (root.detach(), numbers**0.5, numbers.clone().sqrt_(), torch._foreach_sqrt([numbers])[0]):
            assert torch.equal(found, rounded)
        assert torch.equal(leaf.grad, 1 / (2 * rounded))
        nn.LSTM(3, 4)(torch.ones(2, 3))
        assert torch._C._get_mkldnn_enabled()
    finally:
        operator_overrides.remove()
        operator_overrides.remove()
    assert torch.lstm is lstm
    assert torch.equal(torch.sqrt(numbers), before)


# The environment


def test_what_is_started_within_computes_portably(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AUTO")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    with determinism.environment_of("portable"):
        assert {name: os.environ[name] for name in determinism.PORTABLE} == determinism.PORTABLE
    assert os.environ["MKL_CBWR"] == "AUTO"
    assert "ATEN_CPU_CAPABILITY" not in os.environ
    with determinism.environment_of("native"):
        assert os.environ["MKL_CBWR"] == "AUTO"


def test_a_process_that_was_started_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AUTO")
    with refused("portable.process") as caught:
        determinism.prepare_thread(1, arithmetic="portable")
    assert "MKL_CBWR=COMPATIBLE" in caught.value.remedy
    assert not operator_overrides.installed()


def test_a_processor_without_avx2_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    with determinism.environment_of("portable"), refused("portable.process", "DEFAULT"):
        determinism.prepare_thread(1, arithmetic="portable")


# The page of operators


def test_the_page_is_known() -> None:
    assert len(PAGE) >= 120
    assert list(checking.known()) == list(PAGE)
    assert {*checking.unportable()} == UNPORTABLE
    assert checking.known_torch() == torch.__version__


@pytest.mark.parametrize("name", ["conv2d", "layer norm", "lstm", "optimizer Adam", "dropout"])
def test_a_case_is_a_function_of_its_name(name: str) -> None:
    torch.manual_seed(1)
    first = results(PAGE[name], name)
    torch.manual_seed(2)
    again = results(PAGE[name], name)
    assert len(first) == len(again) > 0
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_every_gradient_is_in_a_case() -> None:
    assert len(results(PAGE["conv2d"], "conv2d")) == 4  # the output; gradients of the input, the weight and the bias


def test_operators_are_seen_forward_and_backward() -> None:
    layer, image = nn.Conv2d(1, 2, 3), torch.ones(1, 1, 5, 5)
    with used.recorded() as operators:
        layer(image).relu().sum().backward()
    assert operators == {"convolution", "convolution_backward", "sum"}


def test_what_concerns_a_pipeline_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "one": Known("1", frozenset({"mm"})),
        "two": Known("2", frozenset({"mm", "tanh"})),
        "atan": Known(None, frozenset({"atan", "mm"})),
        "both": Known(None, frozenset({"mm", "tanh"})),
        "exact": Known("3", frozenset()),
    }
    monkeypatch.setattr(checking, "known", lambda: known)
    assert checking.relevant({"mm", "exp"}) == ["one"]
    assert checking.unknown({"mm", "exp"}) == ["exp"]
    assert checking.concerned({"mm"}) == []
    assert checking.concerned({"atan"}) == ["atan"]  # the only operator of its case that no portable case has
    assert checking.concerned({"mm", "tanh"}) == ["both"]


def test_an_operator_that_comes_out_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"mm small": Known("other", frozenset({"mm"})), "dot": Known(checking.computed("dot"), frozenset({"dot"}))}
    monkeypatch.setattr(checking, "known", lambda: known)
    found = checking.check(known)
    assert found.differing == ["mm small"]
    findings = doctor.Findings(found.hashes, found.differing, [])
    assert findings.exit_code == doctor.DIFFERS == 3
    assert "mm small differs (mm)" in findings.as_text()
    (told,) = findings.as_dict()["differing"]
    assert (told["operator"], told["expected"], told["got"]) == ("mm small", "other", found.hashes["mm small"])


# In processes of their own


@pytest.mark.slow
def test_the_doctor_finds_nothing_on_this_machine() -> None:
    command = (sys.executable, "-m", "orchestrator", "doctor", "output=json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["differing"] == []
    assert found["operators"] == len(PAGE)
    assert {*found["unportable"]} == UNPORTABLE


@pytest.mark.long
@pytest.mark.slow
def test_without_what_is_mended_roots_and_the_lstm_differ() -> None:
    """So the page would show it."""
    script = """
import json
from orchestrator.numerics import determinism
from orchestrator.numerics.portable import checking
determinism.prepare_thread(1)
print(json.dumps(checking.check(["sqrt", "power 0.5", "optimizer AdamW foreach", "lstm", "mm", "conv2d"]).differing))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert json.loads(done.stdout) == ["sqrt", "power 0.5", "optimizer AdamW foreach", "lstm"], done.stderr
