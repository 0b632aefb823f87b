"""Streams of a GPU on a processor: every operation is done at once, and judged by what streams and events promise.

    ordered = order_streams(monkeypatch)
    with ordered.watched():
        ...
    assert not ordered.wrong

Each thread has a stream of its own that computes, as each worker's process has. Data that another stream wrote may be used
behind an event that was waited for, and so may memory be written that another stream used. Memory that another stream than
the thread's own has allocated has to be told of where it is used (`record_stream`), or the allocator gives it away too early.
Memory of the device is what another stream has made, and what is computed from that: of host memory nothing is asked. A wait
of the thread for the device orders nothing here, though it would on a card.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Stream:
    """A double of `torch.cuda.Stream`. seen: of each stream, how many operations come before the next one here."""

    def __init__(self) -> None:
        self.seen: Counter[Stream] = Counter()

    def record_event(self) -> Counter[Stream]:
        return Counter(self.seen)

    def wait_event(self, event: Counter[Stream]) -> None:
        self.seen |= event  # the larger of both


@dataclass
class Memory:
    """A storage and the streams that used it. The storage is kept, so that no address comes again."""

    storage: torch.UntypedStorage
    home: Stream  # it was allocated there
    written: tuple[Stream, int]
    used: dict[Stream, int] = field(default_factory=dict)
    told: set[Stream] = field(default_factory=set)


class Ordered(threading.local):
    """One thread's streams. wrong: what no event orders, of all threads."""

    def __init__(self, wrong: list[str]) -> None:
        self.wrong = wrong
        self.own = self.current = Stream()
        self._known: dict[int, Memory] = {}

    @contextmanager
    def within(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def watched(self) -> TorchDispatchMode:
        return _Watching(self)

    def told(self, tensor: torch.Tensor, stream: Stream) -> None:
        self._known[tensor.untyped_storage().data_ptr()].told.add(stream)

    def made(self, tensor: torch.Tensor) -> None:
        """New, on the device, in the current stream."""
        storage, stream = tensor.untyped_storage(), self.current
        self._known.setdefault(storage.data_ptr(), Memory(storage, stream, (stream, stream.seen[stream])))

    def used(self, name: str, tensor: torch.Tensor, *, writes: bool) -> bool:
        """Returns whether it is on the device."""
        stream, memory = self.current, self._known.get(tensor.untyped_storage().data_ptr())
        if memory is None:
            return False
        now = stream.seen[stream]
        writer, at = memory.written
        if stream.seen[writer] < at:
            self.wrong.append(f"{name} may come before what another stream writes there")
        if writes and any(stream.seen[other] < last for other, last in memory.used.items()):
            self.wrong.append(f"{name} may write over what another stream still uses")
        if stream not in (memory.home, *memory.told) and memory.home is not self.own:
            self.wrong.append(f"{name} uses memory that the allocator may give away")
        memory.used[stream] = now
        if writes:
            memory.written = stream, now
        return True


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, ordered: Ordered) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ordered = ordered

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        ordered, name = self._ordered, operation.overloadpacket.__name__
        stream, there = ordered.current, ordered.current is not ordered.own
        stream.seen[stream] += 1
        given = operation._schema.arguments
        named = [*zip(given, args, strict=False), *((each, kwargs.get(each.name)) for each in given[len(args) :])]
        for argument, value in named:
            writes = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in _strided(value):
                there |= ordered.used(name, tensor, writes=writes)
        for tensor in _strided(result) if there else ():
            ordered.made(tensor)
        return result


def _strided(tree: Any) -> list[torch.Tensor]:
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [each for each in tensors if each.layout == torch.strided and each.numel()]


def order_streams(monkeypatch: pytest.MonkeyPatch) -> Ordered:
    """From now on, and until the test ends, these are torch's."""
    ordered = Ordered([])
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", ordered.within)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: ordered.current)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: ordered.told(tensor, stream))
    return ordered
