"""What the compiler may not do, and where it keeps its work."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numba
import numpy
import pytest
import torch

from orchestrator.numerics.compiled import compiled, floats_at
from orchestrator.numerics.exact import Accumulator
from orchestrator.numerics.grid import Grid
from orchestrator.numerics.layout import Layout


def _nearly_a_tie() -> tuple[float, float]:
    """A float32 and a weight whose product is a little more than 2.5, and 2.5 when it is rounded to float64."""
    for k in range(1, 1000):
        value = 1 + k * 2.0**-23
        weight = 2.5 / value
        if Fraction(value) * Fraction(weight) > Fraction(5, 2) and value * weight == 2.5:
            return value, weight
    raise AssertionError("there is one among so many")


@pytest.mark.parametrize("shards", [1, 4, 5])
def test_a_product_is_rounded_before_it_is_added(shards: int) -> None:
    """A fused multiplication and addition, which this processor has, would see more than a tie and round up to 3."""
    value, weight = _nearly_a_tie()
    layout = Layout.of([("a", torch.empty(67))])
    total = torch.zeros(layout.size, dtype=torch.float64)
    accumulator = Accumulator(layout, total, exact=True)
    for _ in range(shards):
        accumulator.add([torch.full((67,), value)], weight, Grid((0,), shards))
    accumulator.complete()
    assert layout.views(total)[0].tolist() == [2.0 * shards] * 67


def test_loops_are_compiled_though_a_user_debugs_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = numba.config
    monkeypatch.setattr(config, "DISABLE_JIT", 1)

    @compiled("(int64,)")
    def floats(address: int) -> float:
        return float(floats_at(address, 2)[1])

    values = torch.tensor([1.0, 2.5])
    assert floats(values.data_ptr()) == 2.5
    assert config.DISABLE_JIT == 1


def test_without_a_folder_to_write_to_a_loop_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    njit: Callable[..., Any] = numba.njit

    def nowhere(*args: Any, cache: bool = False, **kwargs: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*args, **kwargs)

    monkeypatch.setattr(numba, "njit", nowhere)

    @compiled("(float64[::1],)")
    def double(values: Any) -> None:
        for i in range(values.size):
            values[i] *= 2

    values = numpy.arange(3.0)
    double(values)
    assert values.tolist() == [0.0, 2.0, 4.0]
