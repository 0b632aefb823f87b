"""Names for results that no module returns, the same in every stage: of which operation of which module call they are.

    ("vit.encoder:chunk#2", 1, 0)     the first tensor that the second `chunk` of the first call of "vit.encoder" has returned

A stage runs the same code as all others, before its border on shapes, so operations that a module's own code calls have the
same numbers everywhere. Operations are looked at only if such a name is needed.

Results within a module call that is over at a border get no name: its code is not run again there (`memoized_calls.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from orchestrator.worker.pipeline_parallel.fake_tensors import ABOUT, Key, name_of

Opened = tuple[str, int]  # a module, and which call of it
OUTSIDE: Final[Opened] = ("", 0)  # the code that calls the model


class OperationNames:
    """Which module calls are open, and what each has computed itself so far."""

    def __init__(self) -> None:
        self._open = [OUTSIDE]
        self._done: Counter[tuple[Opened, str]] = Counter()

    @property
    def inner(self) -> Opened:
        """The innermost call."""
        return self._open[-1]

    def begin(self, name: str, call: int) -> None:
        self._open.append((name, call))

    def end(self, name: str) -> None:
        """Also of those within that ended by an exception."""
        while len(self._open) > 1 and self._open.pop()[0] != name:
            pass

    def label(self, function: str) -> Callable[[int], Key]:
        """Count a call of this torch function; gives the names of the tensors that the call returns, by their numbers."""
        inner = self.inner
        self._done[inner, function] += 1
        name = f"{inner[0]}:{function}#{self._done[inner, function]}"
        return lambda leaf: (name, inner[1], leaf)


def is_of_operation(key: Key) -> bool:
    """Whether it is of an operation, and not of a module."""
    return "#" in key[0]


class OperationWatch(TorchFunctionMode):
    """Tells `note` of each result that has one of these names."""

    def __init__(
        self, operations: OperationNames, names: frozenset[Key], note: Callable[[Key, torch.Tensor], None]
    ) -> None:
        super().__init__()
        self._operations, self._names, self._note = operations, names, note
        self._users = True

    @contextmanager
    def within(self, *, users: bool) -> Iterator[None]:
        """Note whose code runs within the block. users: whether the code within the block is the user's."""
        before, self._users = self._users, users
        try:
            yield
        finally:
            self._users = before

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not self._users or name_of(func) in ABOUT:
            return func(*args, **(kwargs or {}))
        label = self._operations.label(name_of(func))
        result = func(*args, **(kwargs or {}))
        for i, leaf in enumerate(tree_leaves(result)):
            if label(i) in self._names and isinstance(leaf, torch.Tensor):
                self._note(label(i), leaf)
        return result
