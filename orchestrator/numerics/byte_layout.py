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
        """alignment: in bytes, of each tensor; a multiple of the size of any element."""
        self.offsets = [0]
        self._places: list[tuple[torch.dtype, torch.Size, tuple[int, ...], int]] = []
        for like in (torch.empty_like(tensor, device="meta") for tensor in tensors):
            self._places.append((like.dtype, like.shape, like.stride(), self.offsets[-1] // like.element_size()))
            self.offsets.append(self.offsets[-1] + max(1, -(-like.nbytes // alignment)) * alignment)

    def views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Tensors like those that begin in this memory (uint8, from the beginning of a storage), where they lie there."""
        size = memory.numel()
        kinds = {kind: memory.view(kind) for kind in {kind for kind, *_ in self._places}}
        return [
            kinds[kind].as_strided(shape, stride, place)
            for (kind, shape, stride, place), offset in zip(self._places, self.offsets, strict=False)
            if offset < size
        ]
