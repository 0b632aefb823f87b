"""A member's part of a model in stages: the stage's parameters and buffers, by their names in the whole model, and where they
lie in its layout.

The whole model's layout is part of a run's identity, whatever holds it. A stage keeps whole blocks of it, one behind the
other, with the other stages' places in them empty. So the fingerprint of a stage's result, taken with the blocks' own
numbers, is a part of the sum that is the fingerprint of the whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from orchestrator.numerics.layout import BLOCK, Layout, Run


class StageModule(torch.nn.Module):
    """The parameters and buffers of a model that one stage owns, under their names in the model. Its modules are the
    model's."""

    def __init__(self, model: torch.nn.Module, owned: Collection[str]) -> None:
        super().__init__()
        self.__dict__["whole"] = model  # not a module of this one, under other names
        self._own_parameters = [(name, each) for name, each in model.named_parameters() if name in owned]
        self._own_buffers = [(name, each) for name, each in model.named_buffers() if name in owned]

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return iter(self._own_parameters)

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:  # noqa: ARG002
        return (parameter for _, parameter in self._own_parameters)

    def named_buffers(self, *_: Any, **__: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._own_buffers)

    def buffers(self, recurse: bool = True) -> Iterator[torch.Tensor]:  # noqa: ARG002
        return (buffer for _, buffer in self._own_buffers)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Module]]:
        return self.__dict__["whole"].named_modules(*args, **kwargs)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class PartLayout:
    """The layout of a stage's tensors within that of the whole model. layout: of the stage's tensors, in the order of the
    whole one. places: of each, its number there; numbers: of each block, its number there."""

    layout: Layout
    places: tuple[int, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, whole: Layout, owned: Collection[str]) -> PartLayout:
        places = [i for i, slot in enumerate(whole.slots) if slot.name in owned]
        slots = [whole.slots[i] for i in places]
        numbers = sorted({number for slot in slots for number in _blocks(slot.offset, slot.elements)})
        at = {number: i for i, number in enumerate(numbers)}
        moved = [
            replace(slot, offset=at[slot.offset // BLOCK] * BLOCK + slot.offset % BLOCK)
            for slot in slots
            if slot.elements
        ]
        empty = {slot.name: replace(slot, offset=0) for slot in slots if not slot.elements}
        by_name = {slot.name: slot for slot in moved} | empty
        return cls(
            Layout(tuple(by_name[slot.name] for slot in slots), len(numbers) * BLOCK), tuple(places), tuple(numbers)
        )

    @property
    def runs(self) -> list[Run]:
        """The pieces whose blocks lie one behind the other in the whole layout, too."""
        edges = [i for i in range(1, len(self.numbers)) if self.numbers[i] != self.numbers[i - 1] + 1]
        pieces = pairwise([0, *edges, len(self.numbers)])
        return [Run(start * BLOCK, end * BLOCK, self.numbers[start]) for start, end in pieces if start < end]


def _blocks(offset: int, elements: int) -> range:
    return range(offset // BLOCK, (offset + elements - 1) // BLOCK + 1) if elements else range(0)


def spread(values: Sequence[Any], places: Sequence[int], length: int, fill: Any) -> list[Any]:
    """`length` values: these at their places, `fill` elsewhere."""
    whole = [fill] * length
    for place, value in zip(places, values, strict=True):
        whole[place] = value
    return whole
