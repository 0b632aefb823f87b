"""Any tree becomes JSON and tensors and comes back as it was, to the last bit and the last type."""

from __future__ import annotations

import json
import math
from collections import deque
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.checkpoint.state import digest, pack, unpack
from tests.checkpoint.stores import raw
from tests.refusals import refused

of_numpy = st.builds(
    lambda dtype, value: numpy.dtype(dtype).type(value),
    st.sampled_from(["bool", "int8", "int64", "uint64", "float16", "float32", "float64"]),
    st.integers(0, 100),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | of_numpy
shapes = st.lists(st.integers(0, 3), max_size=3)
dtypes = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex128])
tensors = st.builds(lambda shape, dtype: torch.ones(shape, dtype=dtype), shapes, dtypes)
keys = st.text() | st.integers() | st.booleans() | st.none()
trees = st.recursive(
    scalars | tensors,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=12,
)


def round_trip(tree: Any) -> Any:
    named: dict[str, torch.Tensor] = {}
    packed = pack(tree, named, "tree")
    return unpack(json.loads(json.dumps(packed, allow_nan=False)), named)


@given(trees)
def test_every_tree_comes_back(tree: Any) -> None:
    assert alike(round_trip(tree), tree)


def alike(left: Any, right: Any) -> bool:
    """Equal in every type and every bit, order of dictionaries included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and raw(left) == raw(right)
    if isinstance(left, float):
        return bool(left.hex() == right.hex())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, dict):
        return alike(list(left.items()), list(right.items()))
    return bool(left == right)


@pytest.mark.parametrize("value", [0.1, -0.0, 5e-324, math.inf, -math.inf, math.nan])
def test_floats_keep_their_bits(value: float) -> None:
    assert alike(round_trip({"x": value}), {"x": value})


def test_tensors_come_back_with_memory_of_their_own() -> None:
    tensor = torch.zeros(3)
    back = round_trip([tensor])[0]
    tensor += 1
    assert back.tolist() == [0, 0, 0]


def test_tensors_come_back_on_their_device() -> None:
    """Adam counts its steps in host memory and has its moments where the parameters are."""
    tree = {
        "step": torch.tensor(3.0),
        "moment": torch.ones(2, device="meta"),
        "turned": torch.ones(2, 3, device="meta").t(),
    }
    tensors: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack(tree, tensors, "")))
    came = {
        name: torch.ones(tensor.shape) for name, tensor in tensors.items()
    }  # whatever carries them works on the host
    back = unpack(packed, came)
    assert {name: tensor.device.type for name, tensor in back.items()} == {
        "step": "cpu",
        "moment": "meta",
        "turned": "meta",
    }
    assert back["turned"].stride() == tree["turned"].stride()


def test_two_places_with_one_path_are_kept_apart() -> None:
    tree = {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}}
    assert alike(round_trip(tree), tree)


@pytest.mark.parametrize(
    ("tensor", "stride"),
    [
        (torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), (60, 1, 15, 3)),
        (torch.ones(2, 3).t(), (1, 3)),
        (torch.ones(1).expand(4), (1,)),
        (torch.ones(6)[::2], (1,)),
    ],
)
def test_dense_tensors_keep_their_order_in_memory(tensor: torch.Tensor, stride: tuple[int, ...]) -> None:
    assert round_trip(tensor).stride() == stride


@pytest.mark.parametrize(
    ("tree", "code", "named"),
    [
        ({"a": [0, {"b": {1, 2}}]}, "checkpoint.state-value", "tree/a/1/b is a builtins.set"),
        ({"a": (numpy.longdouble(1.0),)}, "checkpoint.state-value", "tree/a/0 is a numpy.longdouble"),
        ({"a": numpy.datetime64("2020")}, "checkpoint.state-value", "tree/a is a numpy.datetime64"),
        ({"size": torch.Size([1])}, "checkpoint.state-value", "tree/size is a torch.Size"),
        ({"a": {(1, 2): 3}}, "checkpoint.state-key", "tree/a has the key (1, 2)"),
    ],
)
def test_what_cannot_be_kept_is_named(tree: Any, code: str, named: str) -> None:
    with refused(code, named):
        pack(tree, {}, "tree")


@pytest.mark.parametrize(("value", "advice"), [({1}, "dict.fromkeys(...)"), (deque([1]), "a list")])
def test_what_may_stand_in_its_place_is_said(value: Any, advice: str) -> None:
    with refused("checkpoint.state-value") as found:
        pack({"a": value}, {}, "tree")
    assert f"keep {advice}" in found.value.remedy


def test_a_digest_knows_dtype_and_shape() -> None:
    zeros = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), torch.zeros(2, dtype=torch.float64)]
    assert len({digest(tensor) for tensor in zeros}) == 4
    assert digest(torch.ones(2, 3).t()) == digest(torch.ones(3, 2))
