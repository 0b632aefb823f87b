"""The slice of the parameters that a server holds while replicas run free, for who looks at a running model.

    begin     a sprint begins: nothing is known yet
    grid, base    what the first worker knows of the last rest: how parameters are represented, and this slice of them
    header, part  a delta that passes through: its updates, and what they add up to here
    rest      the base and the sum of the rest, which is what all replicas have then

Integers may be added in any order, so deltas that come before the base count too. A read is exact: it gives the sum of the
updates that `clocks` counts, as a micro-batch that has read just these would see it. Deltas come to a server causally: it has
handed on whatever a delta has read. `read` is called from another thread than all the rest.

It takes no part in the run: replicas do not depend on it. Updates of an async phase that is given up were never part of the
run, as at the workers.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from orchestrator.numerics.fixed_point import FixedPoint
from orchestrator.numerics.layout import Layout, Slot
from orchestrator.worker.asynchronous.deltas import DELTA, Header, total

Answer = dict[str, Any]


class HeldSlice:
    """The slice of the parameters that one server holds. part: the number of the slice, of `parts`; parameters: how many of
    the layout's tensors are some."""

    def __init__(self, layout: Layout, parameters: int, part: int, parts: int) -> None:
        borders = layout.borders(parts)
        self._part = part
        self._place = slice(borders[part], borders[part + 1])
        self._slots = {slot.name: slot for slot in layout.slots[:parameters]}
        self._lock = threading.Lock()
        self._x, self._base = (torch.zeros(borders[part + 1] - borders[part], dtype=torch.int64) for _ in range(2))
        self._fixed: FixedPoint | None = None
        self._whole = False  # whether the base is in
        self._clocks: Sequence[int] = ()
        self._counts: dict[tuple[int, int], Sequence[int]] = {}

    def begin(self, clocks: Sequence[int]) -> None:
        """Begin anew at a sync barrier, without parameters as yet. clocks: per shard, at the last sync barrier."""
        with self._lock:
            self._clocks, self._fixed, self._whole = tuple(clocks), None, False
            self._counts.clear()
            self._x.zero_()

    def grid(self, payload: torch.Tensor) -> None:
        fixed = FixedPoint.decode(payload)
        with self._lock:
            self._fixed = fixed

    def base(self, payload: torch.Tensor) -> None:
        """It comes after the grid."""
        with self._lock:
            self._base.copy_(payload)
            self._x += payload
            self._whole = True

    def header(self, header: Header) -> None:
        if header.kind == DELTA:
            self._counts[header.origin, header.number] = header.counts

    def part(self, origin: int, number: int, part: int, payload: torch.Tensor) -> None:  # noqa: ARG002
        counts = self._counts.pop((origin, number))
        with self._lock:
            self._x += payload
            self._clocks = total(self._clocks, counts)

    def at_barrier(self, summed: torch.Tensor, clocks: Sequence[int]) -> None:
        """Take the parameters at a sync barrier. summed: of the layout's size, in which this slice lies where it always
        does."""
        with self._lock:
            torch.add(self._base, summed[self._place], out=self._x)
            self._clocks = tuple(clocks)

    def read(self, name: str | None, first: int = 0, count: int | None = None) -> Answer:
        """The part that lies here of `count` elements of a parameter from `first` on, in the order of its memory: `{"part",
        "clocks", "first", "values"}`, float32 as bytes. Without a name the clocks alone. With all parameters' names, shapes
        and strides; empty until the base is here."""
        slot = None if name is None else self._slots.get(name)
        at = slice(0, 0) if slot is None else self._overlap(slot, first, count)
        with self._lock:
            if not self._whole:
                return {}
            fixed, clocks, integers = self._fixed, list(self._clocks), self._x[at].clone()
        assert fixed is not None
        start = 0 if slot is None else at.start + self._place.start - slot.offset
        values = b""
        if slot is not None and len(integers):
            lsb = fixed.lsb_at(slot.offset)
            values = integers.double().mul_(lsb).float().numpy().tobytes()
        parameters = {each.name: [list(each.shape), list(each.stride)] for each in self._slots.values()}
        return {"part": self._part, "clocks": clocks, "first": start, "values": values, "parameters": parameters}

    def _overlap(self, slot: Slot, first: int, count: int | None) -> slice:
        """The place of these elements of a tensor in this slice; empty if none of them lie here."""
        begin = slot.offset + first
        end = slot.offset + (slot.elements if count is None else min(slot.elements, first + count))
        start = max(begin, self._place.start)
        stop = max(start, min(end, self._place.stop))
        return slice(start - self._place.start, stop - self._place.start)
