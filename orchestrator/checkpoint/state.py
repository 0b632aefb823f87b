"""The content of a checkpoint or a state transfer, JSON values and named tensors; and any tree of Python values as these two.

    None, bool, int, str   themselves
    float                  {"float": "0x1.8p+0"}: JSON has no infinities, and a reader must not round
    numpy.float32 ...      {"numpy": "float32", "value": ...}: numbers of numpy of at most 64 bits, as those of Python
    list                   a list
    tuple                  {"tuple": [...]}
    dict                   {"dict": [[key, value], ...]}: order is kept and keys may be numbers
    torch.Tensor           {"tensor": name}, with "stride" where it is dense but not in row-major order: a fused optimizer
                           walks through state and parameter by address, so channels-last state has to come back as such;
                           with "device" where it is not in host memory: of one optimizer's state a part may be there

Types are compared exactly: a subclass (torch.Size, a named tuple) would come back as something else and is
refused, by its place in the tree. No pickle.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from orchestrator.errors import RunFailed
from orchestrator.numerics import digests
from orchestrator.numerics.byte_layout import bytes_of, of_bytes

_SCALARS = (type(None), bool, int, str)
_OF_NUMPY = frozenset(numpy.dtype(code).type for code in "?bhilqBHILQefd")
# The order of a set is not that in which it was filled, and what follows from it may differ between processes.
_INSTEAD = {
    **dict.fromkeys(("set", "frozenset"), "in place of a set keep dict.fromkeys(...), whose keys have an order; "),
    "deque": "in place of a deque keep a list; ",
}


@dataclass(frozen=True)
class TrainingState:
    """A state of training, as a checkpoint or a state transfer holds it. values: JSON-able, keys are strings. tensors: any
    shapes and strides, possibly views of tensors in use. steady: the names of tensors that stay as they are until the next
    update, so that they can be copied while a step is computed. own: the names of tensors that no other member has; all others
    are the same at every worker."""

    values: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    steady: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()


def pack(tree: Any, tensors: dict[str, torch.Tensor], path: str) -> Any:
    """The tree as JSON-able values; its tensors are put into `tensors`, named by their path, not copied.

    Raises RunFailed for a value of another type, naming its path.
    """
    kind = type(tree)
    if kind is torch.Tensor or kind is torch.nn.Parameter:  # first, because a step boundary waits for this
        return _pack_tensor(tree, tensors, path)
    if kind in _SCALARS:
        return tree
    if kind is float:
        return {"float": tree.hex()}
    if kind in _OF_NUMPY:
        return {"numpy": kind.__name__, "value": pack(tree.item(), tensors, path)}
    if kind is list:
        return [pack(item, tensors, f"{path}/{i}") for i, item in enumerate(tree)]
    if kind is tuple:
        return {"tuple": [pack(item, tensors, f"{path}/{i}") for i, item in enumerate(tree)]}
    if kind is dict:
        return {
            "dict": [
                [key if type(key) is str else _key(key, path), pack(item, tensors, f"{path}/{key}")]
                for key, item in tree.items()
            ]
        }
    raise RunFailed(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold",
        f"{_INSTEAD.get(kind.__name__, '')}use None, bool, int, float, str, a number of numpy, list, tuple, dict or a tensor, "
        "or keep it out of the state",
        code="checkpoint.state-value",
    )


def unpack(packed: Any, tensors: Mapping[str, torch.Tensor], device: torch.device | None = None) -> Any:
    """The tree that `pack` was given. Its tensors are copies with memory of their own: in host memory those that were there,
    the others on `device`, None: where they were."""
    if isinstance(packed, list):
        return [unpack(item, tensors, device) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if "float" in packed:
        return float.fromhex(packed["float"])
    if "numpy" in packed:
        return numpy.dtype(packed["numpy"]).type(unpack(packed["value"], tensors, device))
    if "tuple" in packed:
        return tuple(unpack(item, tensors, device) for item in packed["tuple"])
    if "dict" in packed:
        return {unpack(key, tensors, device): unpack(item, tensors, device) for key, item in packed["dict"]}
    tensor = tensors[packed["tensor"]]
    place = "cpu" if "device" not in packed else device or packed["device"]
    if "stride" in packed:
        return torch.empty_strided(tensor.shape, packed["stride"], dtype=tensor.dtype, device=place).copy_(tensor)
    return tensor.to(place, copy=True, memory_format=torch.contiguous_format)


def to_text(tree: Any, path: str) -> str:
    """The tree with its tensors as one line. Raises RunFailed as `pack`."""
    tensors: dict[str, torch.Tensor] = {}
    packed = pack(tree, tensors, path)
    raw = {name: [_dtype(each), list(each.shape), _base64(each)] for name, each in tensors.items()}
    return json.dumps([packed, raw], separators=(",", ":"))


def from_text(text: str) -> Any:
    """The tree that `to_text` was given."""
    packed, raw = json.loads(text)
    return unpack(packed, {name: _from_base64(*each) for name, each in raw.items()})


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _base64(tensor: torch.Tensor) -> str:
    return base64.b64encode(bytes_of(tensor.cpu()).numpy().tobytes()).decode()


def _from_base64(dtype: str, shape: list[int], text: str) -> torch.Tensor:
    return of_bytes(base64.b64decode(text)).view(getattr(torch, dtype)).view(shape)


def digest(tensor: torch.Tensor) -> str:
    """Hexadecimal SHA-256 of dtype, shape and values."""
    hashed = hashlib.sha256()
    digests.update(hashed, "", tensor)
    return hashed.hexdigest()


def _key(key: Any, path: str) -> Any:
    if type(key) not in (*_SCALARS, float):
        raise RunFailed(
            f"{path} has the key {key!r}, which a checkpoint cannot hold",
            "use strings or numbers as keys",
            code="checkpoint.state-key",
        )
    return pack(key, {}, path)


def _pack_tensor(tensor: torch.Tensor, tensors: dict[str, torch.Tensor], path: str) -> dict[str, Any]:
    name = path
    while name in tensors:  # {"a/b": x, "a": {"b": y}}
        name += "'"
    tensors[name] = tensor.detach() if tensor.requires_grad else tensor
    packed: dict[str, Any] = {"tensor": name}
    if not tensor.is_contiguous() and torch.ops.aten.is_non_overlapping_and_dense(tensor):
        packed["stride"] = list(tensor.stride())
    if not tensor.is_cpu:
        packed["device"] = tensor.device.type
    return packed
