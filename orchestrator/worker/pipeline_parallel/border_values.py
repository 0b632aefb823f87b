"""What crosses a border between two stages, as values: tensors to the bit and the byte of their address, and generators.

A tensor arrives with its stride and its address modulo 64: both can change the bits of a product or of a sum. The states of the
generators travel with activations and with gradients, since the unsplit computation draws from them in one sequence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy
import torch

from orchestrator.worker.pipeline_parallel.fake_tensors import Key

_ALIGNMENT: Final = 64  # bytes


class BorderValue(NamedTuple):
    """A tensor on its way. at: its address modulo 64; data: 1-D, the elements that its size and stride span, in their order in
    memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    at: int
    data: torch.Tensor


class Generators(NamedTuple):
    """The states of torch's, Python's and numpy's generators."""

    torch_state: torch.Tensor
    python: Any
    numpy_state: Any

    @classmethod
    def now(cls) -> Generators:
        return cls(torch.default_generator.get_state(), random.getstate(), numpy.random.get_state(legacy=False))

    def restore(self) -> None:
        torch.default_generator.set_state(self.torch_state)
        random.setstate(self.python)
        numpy.random.set_state(self.numpy_state)


def same_generators(left: Generators, right: Generators) -> bool:
    if left.python != right.python or not torch.equal(left.torch_state, right.torch_state):
        return False
    return same_of_numpy(left.numpy_state, right.numpy_state)


def same_of_numpy(left: Any, right: Any) -> bool:
    others = ("has_gauss", "gauss")
    alike = left["state"]["pos"] == right["state"]["pos"] and all(left[key] == right[key] for key in others)
    return alike and bool(numpy.array_equal(left["state"]["key"], right["state"]["key"]))


@dataclass(frozen=True)
class Activations:
    """From a stage to the next one. flows: for each tensor, whether a gradient comes back; places: (which tensor of the
    arguments of the call at the border, which border value); skips: (which earlier output, which border value)."""

    border_values: Sequence[BorderValue]
    flows: Sequence[bool]
    places: Sequence[tuple[int, int]]
    skips: Sequence[tuple[Key, int]]
    generators: Generators


@dataclass(frozen=True)
class Gradients:
    """From a stage to the one before: for each tensor of its activations, None where nothing came back. tied: by name, what
    later stages contribute to parameters that earlier ones use too; weight: of the micro-batch's loss, 0 where it counts
    nothing."""

    border_values: Sequence[BorderValue | None]
    generators: Generators
    tied: dict[str, BorderValue] = field(default_factory=dict)
    weight: float = 0.0


def pack(tensor: torch.Tensor) -> BorderValue:
    """The tensor, with memory of its own."""
    plain = tensor.detach()
    size, stride = tuple(plain.size()), tuple(plain.stride())
    span = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if plain.numel() else 0
    return BorderValue(size, stride, plain.data_ptr() % _ALIGNMENT, plain.as_strided((span,), (1,)).clone())


def unpack(value: BorderValue) -> torch.Tensor:
    """A new tensor as it was packed; no view, so that whoever gets it may change it in place."""
    size, stride, at, data = value
    spare = _ALIGNMENT // data.element_size() + 1
    memory = torch.empty(data.numel() + 2 * spare, dtype=data.dtype)
    start = (at - memory.data_ptr()) % _ALIGNMENT // data.element_size()
    memory[start : start + data.numel()] = data
    return torch.empty(0, dtype=data.dtype).set_(memory.untyped_storage(), start, size, stride)
