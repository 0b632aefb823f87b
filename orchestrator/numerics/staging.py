"""The seam between host memory and the device where the model computes.

    Direct     the model lives in host memory: gradients are summed and sums are applied where they lie, nothing is copied
    Copying    the model lives elsewhere (a GPU): a shard's gradients come out in one copy, the sum goes in in one copy
    Resident   the model lives elsewhere, and so do contributions, sums and results: nothing is copied

With the first two, magnitudes, grid, exact sums, exchange and fingerprint work in host memory. Everything but the name of the
device is the same for a GPU and for one of these onto the CPU, and so the tests run whole trainings through all of them.

Batches go to a GPU beside what it computes (`copy_stream.py`). Copies of gradients are not hidden behind computation, and a
worker uses one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import torch

from orchestrator.numerics import foreach
from orchestrator.numerics.batches import mapped, tensors_of
from orchestrator.numerics.copy_stream import Begun, CopyStream, page_locked
from orchestrator.numerics.enqueued import mark_of
from orchestrator.numerics.layout import Layout

# Smaller batches are copied where they are computed with: events would cost the thread more than the card waits for the copy.
_BESIDE_BYTES: Final = 1 << 20
TOGETHER_BYTES: Final = 1 << 20  # of all batches that are read and brought to a device as one

Tensors = Sequence[torch.Tensor | None]  # float32, in the order of the layout


class HostTransfer(Protocol):
    """Carries the tensors of one layout. result: the summed gradient where the model computes."""

    @property
    def result(self) -> Sequence[torch.Tensor]: ...

    def out(self, tensors: Tensors, index: int) -> Tensors:
        """The tensors in host memory, where they stay until the next call with the same `index`."""

    def back(self) -> None:
        """Bring the sum into `result`."""


class Arriving:
    """A batch on its way to where the model computes."""

    def __init__(
        self,
        host: Any,  # as it was fetched
        bring: Callable[[], Any],  # what gives the batch on the device
        begun: Callable[[], Any] | None = None,  # the same to be copied from, if copies are under way
        *,
        waits: bool = False,  # whether those copies only begin when somebody asks
    ) -> None:
        self.host = host
        self.is_under_way = begun is not None and not waits
        self._bring = bring
        self._begun = begun

    def there(self) -> Any:
        """The batch on the device, for what is enqueued from now on. A copy each time, unless copies are under way."""
        return self._bring()

    def nearest(self) -> Any:
        """The batch to be copied from by what is enqueued now: on the device if it is under way."""
        return self.host if self._begun is None else self._begun()


class Staging(Protocol):
    """One for each worker."""

    device: torch.device  # where the model computes
    copies_ahead: bool  # whether it serves to begin a batch before its turn
    answers_late: bool  # whether a look at a value waits for all that was enqueued, so that many are looked at together

    def move(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have these tensors, which stay the objects that they are, lie on the device. Tensors that share memory share it
        there."""

    def batch(self, batch: Any) -> Any:
        """The batch with its tensors on the device."""

    def begin(self, batch: Any) -> Arriving:
        """Begin to bring the batch there, beside what the device computes. A batch that is dropped on its way costs nothing
        more."""

    def begin_together(self, tensors: Sequence[torch.Tensor], rows: Sequence[int]) -> list[Arriving]:
        """As `begin`, of small batches, with one copy for all when the first is asked for. Each has so many rows of the
        tensors, behind those of the one before."""

    def empty(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """New memory on the device, 1-D."""

    def mark(self) -> Callable[[], None]:
        """A function that waits until the device has done all that this thread has enqueued up to now."""

    def to_sums(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the model where contributions are added up."""

    def flat(self, elements: int) -> torch.Tensor:
        """Zeros (float32) where contributions are added up, which are copied to and from the device."""

    def integers(self, elements: int) -> torch.Tensor:
        """Zeros (int64) where contributions are added up."""

    def from_peer(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that came from another member, where contributions are added up."""

    def reading(self, flat: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A function that gives the present values of a flat float32 tensor of the model, where contributions are added up.
        They stand until its next call."""

    def host_transfer(self, layout: Layout, result: torch.Tensor) -> HostTransfer:
        """result: flat, float32, where contributions are added up; it is only read."""


class Direct:
    """Implements `Staging` for a model in host memory."""

    device = torch.device("cpu")
    copies_ahead = False
    answers_late = False

    def move(self, tensors: Sequence[torch.Tensor]) -> None:
        pass

    def batch(self, batch: Any) -> Any:
        return batch

    def begin(self, batch: Any) -> Arriving:
        return Arriving(batch, lambda: batch)

    def begin_together(self, tensors: Sequence[torch.Tensor], rows: Sequence[int]) -> list[Arriving]:
        return [self.begin(batch) for batch in _by_rows(tensors, rows)]

    def empty(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(elements, dtype=dtype)

    def mark(self) -> Callable[[], None]:
        return _nothing

    def to_sums(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def flat(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements)

    def integers(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, dtype=torch.int64)

    def from_peer(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def reading(self, flat: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: flat

    def host_transfer(self, layout: Layout, result: torch.Tensor) -> HostTransfer:
        return _InPlace(layout.views(result))


class Copying:
    """Implements `Staging` for a model on `device`."""

    copies_ahead = True
    answers_late = True

    def __init__(self, device: torch.device, copies: CopyStream | None = None) -> None:
        """copies: beside what the device computes; None: those of a GPU."""
        self.device = device
        self._copies = CopyStream(device) if copies is None and device.type == "cuda" else copies

    def move(self, tensors: Sequence[torch.Tensor]) -> None:
        storages: dict[int, torch.Tensor] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            place = storage.data_ptr()
            if place not in storages:
                raw = torch.empty(0, dtype=torch.uint8).set_(storage)
                storages[place] = raw.to(self.device, copy=True)
            there = torch.empty(0, dtype=tensor.dtype, device=self.device)
            target = storages[place].untyped_storage()
            tensor.data = there.set_(target, tensor.storage_offset(), tensor.shape, tensor.stride())

    def batch(self, batch: Any) -> Any:
        """Follows dicts, lists, tuples and dataclasses. Any other object goes there itself if it has a method `to`, and stays
        as it is if it has none."""
        return self.begin(batch).there()

    def begin(self, batch: Any) -> Arriving:
        tensors = list(tensors_of(batch))
        begun = self._begun([tensor for tensor in tensors if _in_host_memory(tensor)])
        if begun is None:
            return Arriving(batch, lambda: mapped(batch, self._copied, self._object))

        def bring() -> Any:
            found = iter(begun.arrive())
            left = iter([next(found) if _in_host_memory(tensor) else self._copied(tensor) for tensor in tensors])
            return mapped(batch, lambda _: next(left), self._object)

        return Arriving(batch, bring, bring)

    def begin_together(self, tensors: Sequence[torch.Tensor], rows: Sequence[int]) -> list[Arriving]:
        there: list[list[torch.Tensor]] = []

        def of(index: int) -> list[torch.Tensor]:
            if not there:
                there.extend(_by_rows([self._copied(tensor) for tensor in tensors], rows))
            return there[index]

        return [self._part(here, partial(of, index)) for index, here in enumerate(_by_rows(tensors, rows))]

    def empty(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(elements, dtype=dtype, device=self.device)

    def mark(self) -> Callable[[], None]:
        mark = mark_of(self.device)
        return _nothing if mark is None else mark.synchronize

    def to_sums(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu()

    def flat(self, elements: int) -> torch.Tensor:
        return _page_locked_zeros(elements, self.device)

    def integers(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, dtype=torch.int64)

    def from_peer(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def reading(self, flat: torch.Tensor) -> Callable[[], torch.Tensor]:
        here = self.flat(flat.numel())
        return lambda: here.copy_(flat)

    def host_transfer(self, layout: Layout, result: torch.Tensor) -> HostTransfer:
        return _Carrying(layout, result, self.device)

    def _begun(self, tensors: Sequence[torch.Tensor]) -> Begun | None:
        """None where they are copied when their turn comes: few bytes, or no memory on the device for two batches."""
        if self._copies is None or sum(tensor.nbytes for tensor in tensors) < _BESIDE_BYTES:
            return None
        with suppress(torch.OutOfMemoryError):
            return self._copies.begin(tensors)
        return None

    def _part(self, here: list[torch.Tensor], there: Callable[[], list[torch.Tensor]]) -> Arriving:
        """There: within memory of several. A batch to compute with gets memory of its own, for kernels may depend on where it
        begins."""
        return Arriving(here, lambda: [tensor.clone() for tensor in there()], there, waits=True)

    def _object(self, batch: Any) -> Any:
        return batch.to(self.device)

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        return page_locked(tensor, self.device).to(self.device, copy=True, non_blocking=True)


class Resident(Copying):
    """Implements `Staging` for a model on `device` whose sums stay there."""

    def to_sums(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def flat(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, device=self.device)

    def integers(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, dtype=torch.int64, device=self.device)

    def from_peer(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)

    def reading(self, flat: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: flat

    def host_transfer(self, layout: Layout, result: torch.Tensor) -> HostTransfer:
        return _InPlace(layout.views(result))


def on(device: str) -> Staging:
    """The staging for `run.device`."""
    return Direct() if device == "cpu" else Copying(torch.device(device))


class _InPlace:
    """Implements `HostTransfer` where nothing has to be copied."""

    def __init__(self, result: Sequence[torch.Tensor]) -> None:
        self.result = result

    def out(self, tensors: Tensors, index: int) -> Tensors:  # noqa: ARG002
        return tensors

    def back(self) -> None:
        pass


class _Carrying:
    """Implements `HostTransfer`. One flat buffer on the device serves both ways: gradients leave before a sum comes."""

    def __init__(self, layout: Layout, result: torch.Tensor, device: torch.device) -> None:
        self._layout = layout
        self._sum = result
        self._there = torch.zeros(layout.size, device=device)
        self._views = layout.views(self._there)
        self._here: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        self.result = self._views

    def out(self, tensors: Tensors, index: int) -> Tensors:
        pairs = [(view, tensor) for view, tensor in zip(self._views, tensors, strict=True) if tensor is not None]
        if pairs:
            foreach.copy([view for view, _ in pairs], [tensor for _, tensor in pairs])
        flat, views = self._buffer(index)
        flat.copy_(self._there)  # waits until it is done: what comes next reads it
        return [None if tensor is None else view for tensor, view in zip(tensors, views, strict=True)]

    def back(self) -> None:
        self._there.copy_(self._sum)

    def _buffer(self, index: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        while len(self._here) <= index:
            flat = _page_locked_zeros(self._layout.size, self._there.device)
            self._here.append((flat, self._layout.views(flat)))
        return self._here[index]


def _nothing() -> None:
    """There is nothing to wait for."""


def _page_locked_zeros(elements: int, device: torch.device) -> torch.Tensor:
    """Zeros in host memory, page-locked for a GPU: a copy into other memory is made twice."""
    return torch.zeros(elements, pin_memory=device.type == "cuda")


def _by_rows(tensors: Sequence[torch.Tensor], rows: Sequence[int]) -> list[list[torch.Tensor]]:
    return [list(batch) for batch in zip(*(torch.split(tensor, list(rows)) for tensor in tensors), strict=True)]


def _in_host_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided
