"""A copy of a batch is in memory of its own, and lies there as before."""

from __future__ import annotations

import threading
from typing import Any

import numpy
import pytest
import torch

from orchestrator.numerics.batches import copied


class Locked:
    """An object that nobody can copy."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(24.0).reshape(4, 6)[1:3, 2:5],
        torch.arange(3.0).expand(4, 3),
        torch.zeros(0, 3),
        torch.tensor(2.0),
    ],
    ids=["rows", "turned", "a part", "expanded", "empty", "a number"],
)
def test_a_tensor_keeps_its_strides_and_its_values(tensor: torch.Tensor) -> None:
    expected, found = tensor.clone(), copied({"x": tensor})["x"]
    assert found.stride() == tensor.stride()
    torch.empty(0).set_(tensor.untyped_storage()).fill_(-1)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("beside", [None, Locked()], ids=["plain", "with an object that nobody can copy"])
def test_what_is_written_later_is_not_in_the_copy(beside: Any) -> None:
    rows = numpy.ones(3, numpy.float32)
    batch = {"rows": torch.from_numpy(rows), "beside": beside, "names": ["a"]}
    found = copied(batch)
    rows[:] = 7
    batch["names"].append("b")
    assert found["rows"].tolist() == [1, 1, 1]
    assert found["names"] == ["a"]


def test_containers_are_copied_and_what_nobody_can_change_is_not() -> None:
    text, inner = "a" * 100, [1, 2]
    batch = {"texts": [text, text], "numbers": (inner, inner, (1, 2)), 3: None}
    found = copied(batch)
    inner.append(3)
    assert found == {"texts": [text, text], "numbers": ([1, 2], [1, 2], (1, 2)), 3: None}
    assert found["texts"] is not batch["texts"]
    assert found["texts"][0] is text
    assert found["numbers"][0] is found["numbers"][1]


def test_an_array_is_copied_and_shared_tensors_stay_shared() -> None:
    rows, weights = torch.ones(2), numpy.ones(2)
    first, second, array = copied((rows, rows, weights))
    weights[:] = 0
    assert first is second
    assert array.tolist() == [1, 1]
