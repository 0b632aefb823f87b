"""PowerSGD by itself: its basis, its bounds, and what it finds again."""

from __future__ import annotations

import math

import pytest
import torch

from orchestrator.optim.compressions.codec import Agreement, Held, Model, Nothing, Result
from orchestrator.optim.compressions.laws import _Result
from orchestrator.optim.compressions.low_rank import LowRank, orthonormal


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_a_basis_is_orthonormal_and_spans_the_columns(columns: int) -> None:
    given = torch.randn(30, columns, generator=torch.Generator().manual_seed(columns)) * 1e-12
    basis = orthonormal(given)
    assert torch.allclose(basis.t() @ basis, torch.eye(columns, dtype=torch.float64), atol=1e-14)
    assert torch.allclose(basis @ (basis.t() @ given.double()), given.double(), atol=1e-24)


def test_a_column_that_others_make_up_is_zero() -> None:
    first = torch.arange(1.0, 5.0)
    assert (orthonormal(torch.stack([first, 3 * first, torch.zeros(4)], 1))[:, 1:] == 0).all()


def step(codec: LowRank, agreement: Agreement, held: list[Held], shape: tuple[int, int]) -> torch.Tensor:
    results: list[Result] = []
    for phase, carrier in enumerate(codec.phases):
        if not carrier.takes_part(agreement.step):
            results.append(Nothing())
            continue
        rows = codec.encode(phase, agreement, held, results).rows
        weighted = [(each.weight, row) for each, row in zip(held, rows, strict=True)]
        results.append(_Result(carrier.elements, weighted, agreement.total_weight))
    mean = torch.zeros(math.prod(shape))
    codec.decode(agreement, results, [mean])
    return mean.view(shape)


def test_a_mean_of_low_rank_is_found_whole_and_nothing_is_left() -> None:
    shape, dice = (20, 30), torch.Generator().manual_seed(3)
    left, right = torch.randn(20, 2, generator=dice), torch.randn(2, 30, generator=dice)
    codec = LowRank(Model((shape,), 4, 7), 2, error_feedback=True)
    held = [Held(s, 1.0 + s, [(left * (s + 1.0) @ right).reshape(-1)]) for s in range(2)]
    expected = torch.stack([_only(each).view(shape) * each.weight for each in held]).sum(0) / 3
    agreement = Agreement(0, 3.0, _largest_of(held), codec.replicated())
    assert torch.allclose(step(codec, agreement, held, shape), expected, atol=1e-4)
    assert all(float(_only(each).abs().max()) < 1e-4 for each in held)


def test_what_is_sent_and_what_is_kept_are_the_whole() -> None:
    shape, dice = (20, 30), torch.Generator().manual_seed(4)
    codec = LowRank(Model((shape,), 4, 7), 3, error_feedback=True)
    held = [Held(s, 1.0, [torch.randn(600, generator=dice)]) for s in range(4)]
    whole = torch.stack([_only(each).double() for each in held]).mean(0)
    mean = step(codec, Agreement(0, 4.0, _largest_of(held), codec.replicated()), held, shape)
    kept = torch.stack([_only(each).double() for each in held]).mean(0)
    assert torch.allclose(mean.reshape(-1).double() + kept, whole, atol=1e-5)


def test_a_gradient_of_zeros_is_none_and_the_next_look_is_a_new_one() -> None:
    codec = LowRank(Model(((20, 30),), 4, 7), 2, error_feedback=True)
    start = codec.replicated()
    held = [Held(0, 1.0, [torch.zeros(600)])]
    agreement = Agreement(0, 1.0, [0.0], start)
    results: list[_Result] = []
    for phase, carrier in enumerate(codec.phases):
        rows = codec.encode(phase, agreement, held, results).rows
        results.append(_Result(carrier.elements, [(1.0, row) for row in rows], 1.0))
    mean = torch.ones(600)
    following = codec.decode(agreement, results, [mean])["0"]
    assert (mean == 0).all()
    assert torch.allclose(following.t() @ following, torch.eye(2), atol=1e-6)
    assert not torch.equal(following, start["0"])


def test_what_would_not_shrink_is_summed_as_it_is() -> None:
    codec = LowRank(Model(((4, 4), (9,), (40, 40)), 4, 7), 2, error_feedback=True)
    assert [carrier.elements for carrier in codec.phases] == [(16, 9, 80), (80,)]
    assert list(codec.kept) == [2]
    assert len(LowRank(Model(((4, 4), (9,)), 4, 7), 2, error_feedback=True).phases) == 1


def test_what_would_not_save_enough_is_summed_as_it_is_too() -> None:
    """40 x 40 becomes ten times smaller, 40 x 10 four times."""
    shapes = ((40, 40), (40, 10))
    kept = {s: list(LowRank(Model(shapes, 4, 7), 2, error_feedback=True, saving=s).kept) for s in (1.0, 4.0, 9.9, 10.0)}
    assert kept == {1.0: [0, 1], 4.0: [0], 9.9: [0], 10.0: []}


def test_a_warm_up_is_exact_and_keeps_nothing_and_then_it_is_as_from_the_start() -> None:
    shape, dice = (20, 30), torch.Generator().manual_seed(5)
    model = Model((shape,), 4, 7)
    late, early = (LowRank(model, 2, error_feedback=True, warmup=each) for each in (3, 0))
    rows = [torch.randn(600, generator=dice) for _ in range(2)]
    whole = torch.stack(rows).double().mean(0).view(shape)

    def at(codec: LowRank, number: int) -> tuple[torch.Tensor, list[Held]]:
        held = [Held(s, 1.0, [row.clone()]) for s, row in enumerate(rows)]
        return step(codec, Agreement(number, 2.0, _largest_of(held), codec.replicated()), held, shape), held

    for number in range(3):
        mean, held = at(late, number)
        assert torch.allclose(mean.double(), whole, atol=1e-6)
        assert all((_only(each) == 0).all() for each in held)
    (mean, held), (expected, as_expected) = at(late, 3), at(early, 3)
    assert torch.equal(mean, expected)
    assert all(torch.equal(_only(one), _only(other)) for one, other in zip(held, as_expected, strict=True))
    assert not torch.allclose(mean.double(), whole, atol=1e-2)


@pytest.mark.slow
def test_a_reset_sends_all_that_was_kept() -> None:
    """So what is applied up to an exact step is the sum of all gradients up to it, to rounding."""
    shape, dice = (20, 30), torch.Generator().manual_seed(6)
    codec = LowRank(Model((shape,), 2, 7), 2, error_feedback=True, warmup=2, reset=3)
    exact = [codec.phases[-1].takes_part(number) for number in range(11)]
    assert exact == [True, True, False, False, True, False, False, True, False, False, True]
    assert all([each.takes_part(n) for n in range(11)] == [not e for e in exact] for each in codec.phases[:-1])
    state, kept = codec.replicated(), [torch.zeros(600) for _ in range(2)]
    applied, whole = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for number in range(11):
        gradients = [torch.randn(600, generator=dice) for _ in range(2)]
        whole += torch.stack(gradients).double().mean(0).view(shape)
        held = [Held(s, 1.0, [g + k]) for s, (g, k) in enumerate(zip(gradients, kept, strict=True))]
        applied += step(codec, Agreement(number, 2.0, _largest_of(held), state), held, shape).double()
        kept = [_only(each) for each in held]
        assert all((each == 0).all() for each in kept) == exact[number]
        assert torch.allclose(applied, whole, atol=1e-5) == exact[number]


def test_nothing_to_compress_needs_no_exact_steps() -> None:
    for exact in ({"warmup": 5}, {"reset": 5}):
        (only,) = LowRank(Model(((4, 4), (9,)), 4, 7), 2, error_feedback=True, **exact).phases
        assert all(only.takes_part(number) for number in range(10))


def _only(held: Held) -> torch.Tensor:
    (tensor,) = held.tensors
    assert tensor is not None
    return tensor


def _largest_of(held: list[Held]) -> list[float | None]:
    return [max(float(_only(each).double().abs().max()) * each.weight for each in held)]
