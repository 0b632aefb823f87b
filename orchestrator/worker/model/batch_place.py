"""Memory on the device from which recordings read micro-batches of one shape, each copied there as one.

It does not know what is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from orchestrator.numerics.batches import rebuilt, taken_apart
from orchestrator.numerics.byte_layout import ByteLayout
from orchestrator.numerics.copy_stream import page_locked
from orchestrator.numerics.staging import Arriving, Staging

_ALIGNMENT: Final = 512  # bytes: as torch's allocator places tensors, for kernels may depend on it


class BatchPlace:
    """The place of one micro-batch at a time, or of all of a step. batch: as it lies there; size_bytes: of its tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor], batch: Any, staging: Staging) -> None:
        """batch: of these tensors, as the first one."""
        self._device = staging.device
        # in which all lie; not those of a class that may hold more than elements
        self._memory: torch.Tensor | None = None
        if all(type(tensor) is torch.Tensor and not tensor.is_quantized for tensor in tensors):
            self._layout = ByteLayout(tensors, _ALIGNMENT)
            self._memory = staging.empty(self._layout.offsets[-1], torch.uint8)
            # Each with a version of its own: code that writes into one changes no other.
            self._places = [place.data for place in self._layout.views(self._memory)]
        else:
            self._places = [staging.batch(tensor) for tensor in tensors]
        self.size_bytes = sum(tensor.nbytes for tensor in tensors)
        self.batch = rebuilt(batch, self._places)
        self.copy(tensors)

    def load(self, arriving: Arriving, tensors: Sequence[torch.Tensor]) -> Any:
        """Copy a micro-batch to this place; returns it there. The copy is made in the stream that computes, so after the replay
        before has read the last one. tensors: of the batch in host memory."""
        nearest = arriving.nearest()
        if nearest is not arriving.host:
            apart = taken_apart(nearest)
            assert apart is not None
            tensors = apart[0]
        self.copy(tensors)
        return self.batch

    def copy(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put these there. From page-locked memory, or else the thread would wait."""
        if self._memory is None or any(tensor.device.type != "cpu" for tensor in tensors):
            for place, tensor in zip(self._places, tensors, strict=True):
                place.copy_(page_locked(tensor, self._device), non_blocking=True)
            return
        # As one: small tensors cost calls.
        together = torch.empty(self._memory.numel(), dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        for place, tensor in zip(self._layout.views(together), tensors, strict=True):
            place.copy_(tensor.detach())
        self._memory.copy_(together, non_blocking=True)
