"""Tensors of any types as bytes: those of one, and the places of several in one piece, which one copy then takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes (uint8) in row-major order, where it lies; of a contiguous tensor its own memory."""
    # Torch keeps any stride of one element, as in `x[::3]`, and then shows no bytes.
    return tensor.detach().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether shapes and bytes are equal, or both are missing."""
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.equal(bytes_of(one), bytes_of(other))


def of_bytes(content: bytes) -> torch.Tensor:
    """These bytes as a new tensor (uint8)."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


class ByteLayout:
    """The places of several tensors in one piece of memory. offsets: in bytes, where each tensor begins, and at last where all
    end; no two are equal."""

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
