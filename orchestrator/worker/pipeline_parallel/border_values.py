"""The values that cross a border between two stages: tensors, to the bit and the byte of their address, and generators.

A tensor arrives with its stride and its address modulo 512: both can change the bits of a product or of a sum. The states of
the generators travel with activations and with gradients, since the unsplit computation draws from them in one sequence. A
packed value lies where it was computed. A message carries it through host memory or leaves it on the device; on arrival it
goes to where this stage computes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy
import torch

from orchestrator.numerics import streams
from orchestrator.numerics.copy_stream import page_locked
from orchestrator.numerics.staging import Direct, Staging
from orchestrator.worker.pipeline_parallel.fake_tensors import Key

# In bytes: 64 is what vectors of a processor ask for, 256 what cuBLAS looks at, 512 what CUDA allocates.
ALIGNMENT: Final = 512
TOGETHER: Final = 64  # bytes: where the tensors of a message begin, one behind the other


class BorderValue(NamedTuple):
    """A tensor on its way. at: its address modulo 512; data: 1-D, the elements that its size and stride span, in their order in
    memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    at: int
    data: torch.Tensor


class Generators(NamedTuple):
    """The states of torch's, Python's and numpy's generators. of_torch: of the processor and of GPUs, as `streams` has them."""

    of_torch: tuple[torch.Tensor, ...]
    python: Any
    numpy_state: Any

    @classmethod
    def now(cls) -> Generators:
        states = tuple(generator.get_state() for generator in streams.torch_generators())
        return cls(states, random.getstate(), numpy.random.get_state(legacy=False))

    def restore(self) -> None:
        for generator, state in zip(streams.torch_generators(), self.of_torch, strict=False):
            generator.set_state(state)
        random.setstate(self.python)
        numpy.random.set_state(self.numpy_state)


def same_generators(left: Generators, right: Generators) -> bool:
    if left.python != right.python or not all(map(torch.equal, left.of_torch, right.of_torch)):
        return False
    return same_of_numpy(left.numpy_state, right.numpy_state)


def same_of_numpy(left: Any, right: Any) -> bool:
    others = ("has_gauss", "gauss")
    alike = left["state"]["pos"] == right["state"]["pos"] and all(left[key] == right[key] for key in others)
    return alike and bool(numpy.array_equal(left["state"]["key"], right["state"]["key"]))


@dataclass(frozen=True)
class Activations:
    """From a stage to the next one."""

    border_values: Sequence[BorderValue]  # the tensors
    flows: Sequence[bool]  # for each tensor, whether a gradient comes back
    places: Sequence[tuple[int, int]]  # which tensor of the arguments of the call at the border, which border value
    skips: Sequence[tuple[Key, int]]  # which earlier output, which border value
    generators: Generators  # as this stage leaves them
    told: str = ""  # the results of readers' calls before the border (`call_results.to_text`)


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
    return BorderValue(size, stride, plain.data_ptr() % ALIGNMENT, plain.as_strided((_span(plain),), (1,)).clone())


def size_of(tensor: torch.Tensor) -> int:
    """The bytes that it takes on its way; 0 of one that cannot go."""
    if tensor.layout != torch.strided:
        return 0
    return -(-_span(tensor) * tensor.element_size() // TOGETHER) * TOGETHER


def _span(tensor: torch.Tensor) -> int:
    """The elements from its first one in memory to its last one."""
    reach = ((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
    return 1 + sum(reach) if tensor.numel() else 0


def unpack(value: BorderValue, staging: Staging | None = None) -> torch.Tensor:
    """A new tensor as it was packed; no view, so that whoever gets it may change it in place. staging: to where it goes; None:
    to host memory."""
    size, stride, at, data = value
    spare = ALIGNMENT // data.element_size() + 1
    memory = (staging or Direct()).empty(data.numel() + 2 * spare, data.dtype)
    start = (at - memory.data_ptr()) % ALIGNMENT // data.element_size()
    memory[start : start + data.numel()].copy_(page_locked(data, memory.device), non_blocking=True)
    return torch.empty(0, dtype=data.dtype, device=memory.device).set_(memory.untyped_storage(), start, size, stride)


def placed(tensor: torch.Tensor, offset: int, staging: Staging) -> torch.Tensor:
    """A parameter or a buffer where a stage computes, at the address modulo 512 that it has unsplit. offset: of its first
    element in the layout of the whole."""
    return unpack(pack(tensor)._replace(at=offset * tensor.element_size() % ALIGNMENT), staging)
