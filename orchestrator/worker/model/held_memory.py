"""Memory from before a recording, which the recording reads each time it is replayed.

Code may keep a tensor and put another in its place: a moving average of the loss, a mask for the last length. Then the
allocator gives the memory of the first one to others, or back to the device, and the recording would read it there still. Or
code fills a tensor anew that it keeps, and the recording would read what is there for another micro-batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Watched:
    """Tensors that code keeps, and a recording reads. A replay runs no code that would fill one for its micro-batch."""

    def __init__(self, tensors: Sequence[torch.Tensor] = ()) -> None:
        self._versions = [(tensor, tensor._version) for tensor in tensors if not tensor.is_inference()]

    def written(self) -> str:
        """Which of them was written since, in words; empty where none was."""
        for tensor, version in self._versions:
            if tensor._version != version:
                shape = "x".join(map(str, tensor.shape)) or "one number"
                return f"a tensor that the pipeline or its model keeps ({shape}) was filled anew meanwhile"
        return ""


class HoldMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Holds the memory from before that operations within the block are given, as long as this object lives. It changes no
    operation. Compiled code (`numerics.inductor`) is seen by what it is given. Other kernels that are no operations of torch
    are not seen."""

    supports_higher_order_operators = True  # which compiled code calls

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._allocated: Set[int] | None = None
        self._before: dict[int, torch.Tensor] = {}
        self._made: set[int] = set()

    def __enter__(self) -> HoldMemory:
        self._allocated = _allocated()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        # Each with its version, and without the nodes for gradients that it may belong to.
        self._before = {address: tensor.detach() for address, tensor in self._before.items()}

    def given(self, addresses: Set[int]) -> Set[int]:
        """The addresses, among these, of memory from before that operations were given. Behind the block."""
        return addresses & self._before.keys()

    def watched(self, own: Any) -> Watched:
        """The tensors from before, but those in the memory of `own`, tensors in containers. Behind the block."""
        known = {address for address, _ in _memory(own)}
        return Watched([tensor for address, tensor in self._before.items() if address not in known])

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Has torch call compiled code as if this mode were not active."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes a second and a half within the first recording

    def compiled_code_reads(self, given: Any) -> None:
        self._hold(given)

    def _hold(self, given: Any) -> None:
        """Memory that compiled code has taken for itself is not from before, and would fill the device if it were held."""
        for address, tensor in _memory(given):
            by_compiler = self._allocated is not None and tensor.is_cuda and address not in self._allocated
            if address not in self._made and not by_compiler:
                self._before.setdefault(address, tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        self._hold((args, given))
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


def _allocated() -> Set[int] | None:
    """The addresses of all that torch has on the device; None where its allocator does not tell."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    with suppress(RuntimeError):
        snapshot: Any = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        blocks = [block for segment in snapshot for block in segment["blocks"]]
        return {block["address"] for block in blocks if block["state"] == "active_allocated"}
    return None


def _memory(found: Any) -> Iterator[tuple[int, torch.Tensor]]:
    """Each tensor with the address of its memory, which nothing else has while a recording is made: all from before stays, and
    the recording takes memory of its own."""
    for leaf in tree_leaves(found):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            with suppress(RuntimeError):  # a class of tensors that only wrap others has no address
                yield leaf.untyped_storage().data_ptr(), leaf
