"""A digest stands for a model's state, bit for bit, name for name (rule F12)."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from orchestrator.numerics import digests
from orchestrator.numerics.digests import distinct_state, model_digest, prints_of, tensor_digests


def _linear() -> nn.Linear:
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        linear.bias.copy_(torch.tensor([0.5, -0.0]))
    return linear


def test_the_definition() -> None:
    """Names sorted, each with dtype, shape and values in row-major order; recorded runs are compared by it."""
    plain = hashlib.sha256()
    plain.update(b"bias\0torch.float32\0(2,)\0" + struct.pack("<2f", 0.5, -0.0))
    plain.update(b"weight\0torch.float32\0(2, 2)\0" + struct.pack("<4f", 1, 2, 3, 4))
    assert model_digest(_linear()) == plain.hexdigest()
    assert plain.hexdigest() == "4db78b1aacdbbeb705bf997e8cbe65513108403f9089e28b256a5d3ed9f140c1"


def test_a_change_of_one_tensor_is_seen_in_its_digest_alone() -> None:
    linear = _linear()
    before = tensor_digests(distinct_state(linear))
    with torch.no_grad():
        linear.bias[1] = 0.0  # from -0.0
    after = tensor_digests(distinct_state(linear))
    assert list(before) == ["bias", "weight"]
    assert [name for name in before if before[name] != after[name]] == ["bias"]


def _set(name: str, values: torch.Tensor) -> Callable[[nn.Linear], None]:
    return lambda linear: setattr(linear, name, nn.Parameter(values))


def _renamed(linear: nn.Linear) -> None:
    linear.register_parameter("wight", linear.get_parameter("weight"))
    del linear._parameters["weight"]


def _one_bit(linear: nn.Linear) -> None:
    linear.weight.data.view(torch.int32)[1, 0] ^= 1


@pytest.mark.parametrize(
    "change",
    [
        _set("weight", torch.tensor([[1.0, 2.0, 3.0, 4.0]])),
        _set("weight", torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)),
        _set("weight", torch.tensor([[1.0, 3.0], [2.0, 4.0]])),
        _set("bias", torch.tensor([0.5, 0.0])),
        _set("extra", torch.empty(0)),
        _renamed,
        _one_bit,
        lambda linear: linear.register_buffer("seen", torch.tensor(0)),
        lambda linear: linear.register_buffer("seen", torch.tensor(False)),
    ],
)
def test_every_difference_counts(change: Callable[[nn.Linear], None]) -> None:
    linear = _linear()
    change(linear)
    assert model_digest(linear) != model_digest(_linear())


def test_what_is_not_state_does_not_count() -> None:
    linear = _linear()
    linear.register_buffer("scratch", torch.tensor(3.0), persistent=False)
    linear.eval().requires_grad_(False)
    linear.weight.grad = torch.ones(2, 2)
    assert model_digest(linear) == model_digest(_linear())


def test_strides_do_not_count() -> None:
    plain, transposed = _linear(), _linear()
    transposed.weight.data = transposed.weight.data.T.contiguous().T
    assert transposed.weight.stride() != plain.weight.stride()
    assert model_digest(transposed) == model_digest(plain)


def test_the_order_of_definition_does_not_count() -> None:
    def model(names: str) -> nn.Module:
        module = nn.Module()
        for name in names:
            module.register_parameter(name, nn.Parameter(torch.tensor([float(ord(name))])))
        return module

    assert model_digest(model("abc")) == model_digest(model("cab"))


def test_a_tied_tensor_counts_once() -> None:
    """Tied and merely equal parameters are different models: they train differently."""
    tied, equal = (nn.Sequential(_linear(), _linear()) for _ in range(2))
    tied.get_submodule("1").weight = tied.get_submodule("0").weight
    assert list(distinct_state(tied)) == ["0.weight", "0.bias", "1.bias"]
    assert model_digest(tied) != model_digest(equal)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.bool, torch.uint8, torch.int64]
)
def test_buffers_of_any_type(dtype: torch.dtype) -> None:
    def digest(*values: int) -> str:
        model = nn.Module()
        model.register_buffer("b", torch.tensor(values, dtype=dtype).view(len(values)))
        model.register_buffer("scalar", torch.tensor(1, dtype=dtype))
        return model_digest(model)

    assert digest(0, 1) != digest(1, 0)
    assert digest(0, 1) == digest(0, 1)
    assert digest() != digest(0)


PIECES = st.sampled_from([32, 64, 1 << 20])


@given(
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.complex64, torch.uint8]),
    shape=st.lists(st.integers(0, 9), max_size=3),
    piece=PIECES,
    seed=st.integers(0, 2**32 - 1),
)
def test_the_print_of_a_tensor_on_a_device_is_free_of_its_strides_and_its_neighbours(
    dtype: torch.dtype, shape: list[int], piece: int, seed: int
) -> None:
    dice = torch.Generator().manual_seed(seed)
    tensor = torch.randint(0, 2, shape, generator=dice).to(dtype)
    turned = tensor.transpose(0, -1).contiguous().transpose(0, -1) if shape else tensor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "_PIECE", piece)
        first, _, again = prints_of([tensor, torch.ones(5), turned])
    assert first == again


def test_a_device_makes_a_print_by_one_product_and_one_sum() -> None:
    """Launches cost more than the numbers of small tensors."""
    found = Counter[str]()

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found[operation.overloadpacket.__name__] += 1
            return operation(*args, **(kwargs or {}))

    given = [torch.randn(7, number + 1) for number in range(20)]
    prints_of(given)
    with Counting():  # type: ignore[no-untyped-call]
        prints_of(given)
    assert (found["mul"], found["sum"], found["stack"]) == (20, 20, 1)


@given(
    values=st.lists(st.floats(width=32), min_size=1, max_size=200),
    data=st.data(),
    piece=PIECES,
)
def test_a_tensor_of_other_bits_has_another_print(values: list[float], data: st.DataObject, piece: int) -> None:
    """Also where two elements change places, or move by a bit in opposite directions."""
    tensor = torch.tensor(values)
    bits = tensor.clone().view(torch.int32)
    i, j = (data.draw(st.integers(0, len(values) - 1)) for _ in range(2))
    match data.draw(st.sampled_from(["flip", "swap", "opposite"])):
        case "flip":
            bits[i] ^= 1 << data.draw(st.integers(0, 30))
        case "swap":
            bits[[i, j]] = bits[[j, i]]
        case _:
            bits[i] += 1
            bits[j] -= 1
    changed = bits.view(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "_PIECE", piece)
        before, after = prints_of([tensor, changed])
    assert (before == after) == torch.equal(tensor.view(torch.int32), changed.view(torch.int32))
