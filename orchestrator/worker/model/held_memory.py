"""Memory from before a recording, which the recording reads each time it is replayed.

Code may keep a tensor and put another in its place: a moving average of the loss, a mask for the last length. Then the
allocator gives the memory of the first one to others, or back to the device, and the recording would read it there still.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class HoldMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Holds the memory that operations within the block are given and none of them has made, as long as this object lives. It
    changes no operation. Kernels that are no operations of torch, as those of compiled code, are not seen."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._before: dict[int, torch.UntypedStorage] = {}
        self._made: set[int] = set()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Has torch call compiled code as if this mode were not active."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes a second and a half within the first recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        for address, storage in _memory((args, given)):
            if address not in self._made:
                self._before.setdefault(address, storage)
        found = func(*args, **given)
        self._made |= {address for address, _ in _memory(found) if address not in self._before}
        return found


class _BesideCompiler(HoldMemory):  # type: ignore[no-untyped-call]
    """The same where torch's compiler is there, which would look at each call of it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs)


def hold_memory() -> HoldMemory:
    """One for a recording that begins now."""
    return (_BesideCompiler if "torch._dynamo" in sys.modules else HoldMemory)()


def _memory(found: Any) -> Iterator[tuple[int, torch.UntypedStorage]]:
    """Each with its address, which is that of nothing else while a recording is made: what was there before stays, and the
    recording takes memory of its own."""
    for leaf in tree_leaves(found):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            with suppress(RuntimeError):  # a class of tensors that only wrap others has no address
                storage = leaf.untyped_storage()
                yield storage.data_ptr(), storage
