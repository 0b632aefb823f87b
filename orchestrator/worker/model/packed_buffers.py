"""Buffers of a model in one piece of memory: on a device, one copy then takes or sets all of them, whatever their types.

Each begins at a 64-byte boundary, as parameters do, and what lies between them is zero. Buffers that share memory stay where
they are, and so do those in host memory, of which the user's code may keep views. They are copied one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from orchestrator.numerics import foreach
from orchestrator.numerics.byte_layout import ByteLayout

_ALIGNMENT: Final = 64  # bytes


class PackedBuffers:
    """The buffers of one model in one piece of memory. layout: where the tensors lie in it."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],  # which stay the objects that they are
        others: Sequence[torch.Tensor],  # that may share memory with them
        empty: Callable[[int, torch.dtype], torch.Tensor],  # makes memory where they are
        *,
        moves: bool,  # whether the tensors may be moved
    ) -> None:
        self._tensors = tensors
        self.layout = ByteLayout(tensors, _ALIGNMENT)
        self._empty = empty
        self._bytes: torch.Tensor | None = None
        self.places: list[int | None] = [None] * len(tensors)  # their addresses, where they have to stay
        if moves and _movable(tensors, others):
            self._bytes = self.memory(self.layout.offsets[-1])
            for tensor, place in zip(tensors, self.layout.views(self._bytes), strict=True):
                place.copy_(tensor)
                tensor.data = place
            self.places = [tensor.data_ptr() for tensor in tensors]

    def memory(self, size: int) -> torch.Tensor:
        """Zeros for the first tensors, up to an offset."""
        return self._empty(size, torch.uint8).zero_()

    def take(self, into: torch.Tensor, views: Sequence[torch.Tensor]) -> None:
        """Copy all tensors there. views: those of that memory."""
        if self._bytes is not None:
            into.copy_(self._bytes)
        else:
            foreach.copy(views, self._tensors)

    def taken(self, size: int) -> torch.Tensor:
        """A copy of the first tensors, up to an offset, in new memory."""
        if self._bytes is not None:
            return self._bytes[:size].clone()
        memory = self.memory(size)
        views = self.layout.views(memory)
        foreach.copy(views, self._tensors[: len(views)])
        return memory

    def put(self, memory: torch.Tensor, views: Sequence[torch.Tensor]) -> None:
        """Set all tensors to what was taken, and raise no version. views: those of that memory."""
        if self._bytes is not None:
            self._bytes.copy_(memory)
            return
        try:
            foreach.copy([tensor.data for tensor in self._tensors], views)
        except RuntimeError:  # a batch that is refused has resized one
            for tensor, view in zip(self._tensors, views, strict=True):
                if tensor.shape != view.shape:
                    tensor.data = torch.empty_like(view)
            foreach.copy([tensor.data for tensor in self._tensors], views)


def _movable(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether none has gaps or shares memory."""
    own = {id(tensor) for tensor in tensors}
    all_ = [*tensors, *(other for other in others if id(other) not in own)]
    storages = [each.untyped_storage().data_ptr() for each in all_ if each.numel()]
    return len(set(storages)) == len(storages) and all(
        type(each) is torch.Tensor and torch.ops.aten.is_non_overlapping_and_dense(each) for each in tensors
    )
