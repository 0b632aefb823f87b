"""Between where the model computes and host memory. The CPU stands in for a GPU: everything else is the same."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from orchestrator.numerics.layout import Layout
from orchestrator.numerics.staging import Copying, Direct, Staging, on

COPYING = Copying(torch.device("cpu"))


class Pair(NamedTuple):
    inputs: torch.Tensor
    labels: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Rows:
    inputs: torch.Tensor
    names: list[str]
    size: int = dataclasses.field(init=False, default=0)


class Own:
    """A container of no kind that is followed, and without a method `to`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_a_device_has_its_staging() -> None:
    assert isinstance(on("cpu"), Direct)
    assert on("cuda").device == torch.device("cuda")


def test_a_batch_is_moved_wherever_it_holds_tensors() -> None:
    x = torch.arange(3.0)
    batch: dict[str, Any] = {
        "tensor": x,
        "list": [x, (x, "text"), None, 1.5],
        "pair": Pair(x, x),
        "rows": Rows(x, ["a"]),
        "ordered": OrderedDict(b=x, a=x),
        "default": defaultdict(list, a=x),
        "proxy": MappingProxyType({"a": x}),
    }
    moved = COPYING.batch(batch)
    for part in (moved["tensor"], moved["list"][0], moved["list"][1][0], moved["pair"].labels, moved["rows"].inputs):
        assert torch.equal(part, x)
        assert part.data_ptr() != x.data_ptr()
    assert moved["list"][1:] == [(moved["list"][1][0], "text"), None, 1.5]
    assert (type(moved["pair"]), type(moved["rows"]), moved["rows"].names) == (Pair, Rows, ["a"])
    assert (type(moved["ordered"]), list(moved["ordered"])) == (OrderedDict, ["b", "a"])
    assert moved["default"].default_factory is list
    assert moved["proxy"]["a"].data_ptr() != x.data_ptr()
    assert batch["rows"].inputs is x
    assert batch["ordered"]["b"] is x
    assert batch["default"]["a"] is x


def test_batches_that_come_as_one_are_apart_where_they_compute() -> None:
    rows, names = torch.arange(10.0).view(5, 2), torch.arange(5)
    first, second = Copying(torch.device("cpu")).begin_together([rows, names], [2, 3])
    assert [each.tolist() for each in first.host] == [[[0, 1], [2, 3]], [0, 1]]
    found = second.there()
    assert [each.storage_offset() for each in found] == [0, 0]
    found[0].zero_()
    for again in (second.there(), second.nearest(), second.host):
        assert [each.tolist() for each in again] == [[[4, 5], [6, 7], [8, 9]], [2, 3, 4]]
    assert second.nearest()[0].data_ptr() != second.host[0].data_ptr(), "it is on the device by then"


def test_what_can_move_itself_does_and_what_cannot_is_left_alone() -> None:
    class Encoding(UserDict[str, torch.Tensor]):
        def to(self, device: torch.device) -> Encoding:
            return Encoding({key: value.to(device, torch.float64) for key, value in self.items()})

    assert COPYING.batch(Encoding(a=torch.ones(1)))["a"].dtype == torch.float64
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    assert isinstance(COPYING.batch(packed), PackedSequence)
    own = Own(torch.ones(1))
    assert COPYING.batch([own, "a"]) == [own, "a"]


def test_nothing_is_touched_where_the_model_is_in_host_memory() -> None:
    x = torch.ones(3)
    batch = [x]
    assert Direct().batch(batch) is batch
    address = x.data_ptr()
    Direct().move([x])
    assert x.data_ptr() == address


def test_moved_tensors_stay_themselves_and_share_what_they_shared() -> None:
    base = torch.arange(12.0)
    views = [base, base[2:5], base.view(3, 4).t(), torch.ones(1).expand(4), torch.empty(0), torch.tensor(3)]
    before, addresses = [view.clone() for view in views], [view.data_ptr() for view in views]
    kinds = [(view.stride(), view.storage_offset()) for view in views]
    COPYING.move(views)
    assert all(torch.equal(view, old) for view, old in zip(views, before, strict=True))
    assert kinds == [(view.stride(), view.storage_offset()) for view in views]
    moved = [view.data_ptr() != address for view, address in zip(views, addresses, strict=True)]
    assert moved == [True, True, True, True, False, True]  # an empty one is nowhere
    base[3] = -1
    assert views[1][1] == -1
    assert views[2][3, 0] == -1


@pytest.mark.parametrize("staging", [Direct(), COPYING], ids=["direct", "copying"])
def test_gradients_go_out_and_a_sum_comes_back(staging: Staging) -> None:
    shapes = [("a", torch.zeros(3, 2).t()), ("b", torch.zeros(())), ("c", torch.zeros(5)), ("d", torch.zeros(0))]
    layout = Layout.of(shapes)
    flat = torch.zeros(layout.size)
    host_transfer = staging.host_transfer(layout, flat)
    first = [torch.randn(2, 3), torch.randn(()), None, torch.zeros(0)]
    second = [None, torch.randn(()), torch.randn(5), None]
    kept = [None if tensor is None else tensor.clone() for tensor in first]
    out = host_transfer.out(first, 0), host_transfer.out(second, 1)
    for given, came in zip([kept, second], out, strict=True):
        assert [tensor is None for tensor in given] == [tensor is None for tensor in came]
        assert all(torch.equal(a, b) for a, b in zip(given, came, strict=True) if a is not None and b is not None)
    for _ in range(2):
        flat.uniform_()
        host_transfer.back()
        for slot, result in zip(layout.slots, host_transfer.result, strict=True):
            assert torch.equal(result, slot.view(flat))
            assert result.stride() == slot.stride
