"""Copies, products and norms of many tensors are those of each, and those of a torch without calls for many."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from orchestrator.numerics import foreach


@pytest.fixture(params=[True, False])
def _with_calls_for_many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        for name in ("_COPY", "_PRODUCTS", "_SUMS", "_NORMS"):
            monkeypatch.setattr(foreach, name, None)


def tensors() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 4), (7,), (), (999,)):
        yield torch.randn(shape, generator=generator)


@pytest.mark.usefixtures("_with_calls_for_many")
def test_the_bits_are_those_of_each() -> None:
    given, factor = list(tensors()), torch.tensor(0.3)
    copied = [torch.zeros_like(each) for each in given]
    foreach.copy(copied, given)
    assert all(map(torch.equal, copied, given))
    assert all(map(torch.equal, foreach.products(given, factor), [each * factor for each in given]))
    assert all(map(torch.equal, foreach.sums(given, copied), [2 * each for each in given]))
    assert all(map(torch.equal, foreach.norms(given), map(torch.linalg.vector_norm, given)))
    assert all(map(torch.equal, foreach.norms(given, math.inf), [each.abs().max() for each in given]))


@pytest.mark.usefixtures("_with_calls_for_many")
def test_of_none_nothing_is_made() -> None:
    foreach.copy([], [])
    assert list(foreach.norms([])) == list(foreach.sums([], [])) == []


def test_what_is_of_one_type_is_copied_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    plain = foreach._COPY
    assert plain is not None

    def copy(targets: Any, sources: Any) -> Any:
        calls.append(tuple(len(each) for each in (targets, sources)))
        assert len({each.dtype for each in targets}) == 1
        return plain(targets, sources)

    monkeypatch.setattr(foreach, "_COPY", copy)
    given = [torch.tensor([1.5, 2.0]), torch.tensor(7), torch.tensor([3.0]), torch.tensor([8, 9])]
    copied = [torch.zeros_like(each) for each in given]
    foreach.copy(copied, given)
    assert all(map(torch.equal, copied, given))
    assert calls == [(2, 2), (2, 2)]
    foreach.copy(copied[::2], given[::2])
    assert calls[2:] == [(2, 2)]


def test_what_has_no_kernel_for_lists_is_copied_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA, whose kernel is made for the other types (its names in libtorch_cuda.so)."""
    plain = foreach._COPY
    assert plain is not None

    def copy(targets: Any, sources: Any) -> Any:
        assert not {each.dtype for each in targets} & {*kinds[1:]}
        return plain(targets, sources)

    kinds = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
    monkeypatch.setattr(foreach, "_COPY", copy)
    for given in ([torch.tensor([1, 2], dtype=kind) for kind in kinds], [torch.tensor(3, dtype=torch.uint16)] * 2):
        copied = [torch.zeros_like(each) for each in given]
        foreach.copy(copied, given)
        assert all(map(torch.equal, copied, given))
