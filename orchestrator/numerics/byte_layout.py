"""The places of tensors of any types in one piece of bytes, which one copy then takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class ByteLayout:
    """offsets: in bytes, where each tensor begins, and at last where all end; no two are equal."""

    def __init__(self, tensors: Sequence[torch.Tensor], alignment: int) -> None:
        """alignment: in bytes, of each tensor."""
        self.offsets = [0]
        self._likes = [torch.empty_like(tensor, device="meta") for tensor in tensors]
        for like in self._likes:
            self.offsets.append(self.offsets[-1] + max(1, -(-like.nbytes // alignment)) * alignment)

    def views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Tensors like those that begin in this memory (uint8), where they lie there."""
        return [
            memory[start : start + like.nbytes].view(like.dtype).as_strided(like.shape, like.stride())
            for like, start in zip(self._likes, self.offsets, strict=False)
            if start < memory.numel()
        ]
