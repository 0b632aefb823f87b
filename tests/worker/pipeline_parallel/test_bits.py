"""A micro-batch in stages leaves the bits of the unsplit one; what is left out in the naive ways leaves others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from orchestrator.worker.pipeline_parallel import all_stages, border_values, replay
from orchestrator.worker.pipeline_parallel.border_values import Generators
from tests.products import thinned
from tests.worker.pipeline_parallel.bits import cuts_of, split, surveyed, unsplit
from tests.worker.pipeline_parallel.models import CASES
from tests.worker.pipelines import has_lstm_of_bfloat16

pytestmark = [
    pytest.mark.usefixtures("deterministic"),
    pytest.mark.filterwarnings(
        "ignore:None of the inputs have requires_grad=True"
    ),  # a checkpoint on shapes, in the prefix
]


@pytest.fixture
def deterministic() -> Any:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(CASES, 5))
def test_stages_leave_the_bits_of_the_unsplit_model(name: str) -> None:
    case = CASES[name]
    assert split(case, cuts_of(case, case.borders)).differing(unsplit(case)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(CASES, 5))
def test_what_crosses_has_the_size_that_was_foretold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, sizes, forward = CASES[name], [], replay.Stage.forward

    def noted(*given: Any) -> replay.Forward:
        found = forward(*given)
        if found.leaves is not None:
            sizes.append(sum(border_values.size_of(each.data) for each in found.leaves.border_values))
        return found

    monkeypatch.setattr(replay.Stage, "forward", noted)
    cuts = cuts_of(case, case.borders)
    split(case, cuts)
    assert tuple(sizes) == cuts.crossing


@pytest.mark.parametrize("name", thinned(["mlp", "gpt", "shared block"], 3))
def test_chosen_borders_too(name: str) -> None:
    case = CASES[name]
    expected = unsplit(case)
    for stages in (2, 3, 4):
        cuts = cuts_of(case, stages=stages)
        assert cuts.stages == stages
        assert split(case, cuts).differing(expected) == []


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", thinned(CASES, len(CASES), 9))
def test_every_single_border(name: str, mixed: bool) -> None:
    case = CASES[name]
    if mixed and "lstm" in name and not has_lstm_of_bfloat16():
        pytest.skip("torch has no LSTM of bfloat16 for this processor")
    expected, found = unsplit(case, mixed=mixed), surveyed(case, mixed=mixed)
    borders = [call for position, call in enumerate(found.calls, 1) if position not in found.barred]
    assert len(borders) >= len(case.borders)
    for border in borders:
        differing = split(case, cuts_of(case, (border,), mixed=mixed), mixed=mixed).differing(expected)
        assert not differing, border


def _contiguous(border_value: border_values.BorderValue, *_: object) -> torch.Tensor:
    """As it would arrive with its shape and values alone."""
    tensor = border_values.unpack(border_value)
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def _afresh(_: Generators) -> None:
    torch.default_generator.manual_seed(1)


def _added_afterwards(backward: Callable[..., Any]) -> Callable[..., Any]:
    def naive(stage: replay.Stage, record: Any, came: Any, tied: Any) -> Any:
        gradients_back = backward(stage, record, came, {})
        for name, gradient in tied.items():
            parameter = stage.held[name]
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return gradients_back

    return naive


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "where", "what", "instead"),
    [
        ("transposed", replay, "unpack", _contiguous),
        ("mlp", Generators, "restore", _afresh),
        ("noise in backward", Generators, "restore", _afresh),
        ("shared block", replay.Stage, "backward", _added_afterwards(replay.Stage.backward)),
    ],
)
def test_naive_ways_leave_other_bits(
    case: str, where: Any, what: str, instead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = CASES[case]
    expected, cuts = unsplit(chosen), cuts_of(chosen, chosen.borders)
    monkeypatch.setattr(where, what, instead)
    assert split(chosen, cuts).differing(expected)


def test_what_comes_over_a_border_is_neither_leaf_nor_view() -> None:
    tensor = all_stages.delivered(torch.randn(3, 4).t())
    assert tensor.stride() == (1, 4)
    assert tensor._base is None
    tensor.add_(1)


@pytest.mark.parametrize("offset", range(0, 16, 5))
def test_a_tensor_arrives_at_its_address_modulo_64(offset: int) -> None:
    tensor = torch.randn(64)[offset : offset + 9]
    arrived = all_stages.delivered(tensor)
    assert arrived.data_ptr() % 64 == tensor.data_ptr() % 64
    assert torch.equal(arrived, tensor)
    expanded = all_stages.delivered(torch.randn(1, 3).expand(5, 3))
    assert expanded.stride() == (0, 1)
