"""The carriers of the phases of a compression between members, each with memory of its own and the sum that suits it.

    load    a worker puts its shards' rows into its contribution, rounded so that sums are exact
    carry   all members add up; a worker gets the means, a server (which loads nothing) only takes part

Sums are made in host memory. Rows on a device are encoded there, and those of a worker are added up there: only what is sent
leaves it. Results are decoded where they are written.

Phases follow the vote, so every member knows the largest magnitudes over all shards. Each phase rounds to what suits this
very step, and none is ever repeated. The running statistics of normalisation layers are not compressed; their exact means are
a phase of their own, before the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, Protocol

import torch

from orchestrator.comm.collectives import COMPRESSED, Exchange, Memory
from orchestrator.comm.topologies.schedule import Schedule
from orchestrator.comm.transports.base import Regions
from orchestrator.numerics import chosen, levels
from orchestrator.numerics.device import kernels as device
from orchestrator.numerics.device.kernels import Kernels
from orchestrator.numerics.exact import FEW_LEVELS, MEANS, Accumulator, Sums, in_host_memory
from orchestrator.numerics.fixed_point import divided
from orchestrator.numerics.grid import Grid, magnitude_bits, needed_exponent
from orchestrator.numerics.layout import Layout
from orchestrator.numerics.staging import Direct, Staging
from orchestrator.optim.compressions.codec import Codec, Held, Largest, Levels, Means, Phase, Result, Rows

_HERE: Final = Direct()


class Carrier(Protocol):
    """Carries one phase."""

    def load(self, held: Sequence[Held], rows: Rows) -> None:
        """Set this worker's contribution. held: whose rows they are."""

    def carry(self, exchange: Exchange, step: int, phase: int, total_weight: float) -> Result:
        """Add up with all members; to be read before the next step."""


class Carriers:
    """All that one member carries in a step: the phase of the statistics, if there are any, and those of the codec."""

    def __init__(
        self,
        codec: Codec,  # of the compression
        statistics: Sequence[int],  # the elements of each
        shards: int,  # of the run
        regions: Regions,  # the memory that members exchange through
        *,
        staging: Staging | None = _HERE,  # to the device on which rows are; None at a server, which has none
        kernels: Kernels | None = None,  # on that device; None: operations of torch
    ) -> None:
        phases: list[Phase] = [*([Means(tuple(statistics))] if statistics else []), *codec.phases]
        self._sums = [
            _LocalSum(phase, regions, staging) if isinstance(phase, Levels | Means) else None for phase in phases
        ]
        self.all = [_carrier(phase, local, shards, kernels) for phase, local in zip(phases, self._sums, strict=True)]
        self._phases = phases
        self.statistics = len(statistics)
        self.of_statistics = self.all[0] if statistics else None
        self.of_codec = self.all[bool(statistics) :]

    @property
    def held_bytes(self) -> int:
        """The bytes of their sums on a device."""
        return sum(local.values.nbytes for local in self._sums if local is not None and local.copied)

    def suit(self, schedule: Schedule, rank: int) -> None:
        """As `Memory.suit`."""
        for local in self._sums:
            if local is not None:
                local.memory.suit(schedule, rank)

    def takes_part(self, carrier: Carrier, step: int) -> bool:
        return self._phases[self.all.index(carrier)].takes_part(step)

    def relay(self, exchange: Exchange, step: int, total_weight: float) -> None:
        """A server's part in a step."""
        for carrier in self.all:
            if self.takes_part(carrier, step):
                self.carry(carrier, exchange, step, total_weight)

    def carry(self, carrier: Carrier, exchange: Exchange, step: int, total_weight: float) -> Result:
        return carrier.carry(exchange, step, COMPRESSED + self.all.index(carrier), total_weight)


class _LocalSum:
    """The sum of this worker's rows, which lies where the rows are. Members add up `memory`, which is in host memory."""

    def __init__(
        self,
        phase: Levels | Means,  # that adds up
        regions: Regions,  # as `Carriers`
        staging: Staging | None,  # as `Carriers`
    ) -> None:
        self.layout = _flat(phase.elements)
        self.has_rows = staging is not None
        self.memory = Memory(self.layout, regions, sums=_sums_of(phase), contributes=self.has_rows)
        self.values = self.memory.contribution
        self.copied = staging is not None and not isinstance(staging, Direct)
        if staging is not None and self.copied:
            if staging.device.type == "cuda":
                self.memory.page_lock()
            self.values = staging.empty(self.values.numel(), self.values.dtype).zero_()

    def contribute(self) -> None:
        if self.copied:
            self.memory.contribution.copy_(self.values)


class _LevelsCarrier:
    def __init__(
        self,
        local: _LocalSum,  # of a phase of levels
        bits: int,  # of a level
        shards: int,  # as `Carriers`
        kernels: Kernels | None,  # as `Carriers`
    ) -> None:
        self._local = local
        self._levels = levels.levels_of(bits, shards)
        self._quantizer = kernels
        self._contributed = local.layout.views(local.values) if local.has_rows else []
        self._summed = self._contributed if local.copied else local.layout.views(local.memory.result)
        self._spacings = [0.0] * len(self._summed)

    def load(self, held: Sequence[Held], rows: Rows) -> None:
        self._spacings = [levels.spacing_of(largest or 0.0, self._levels) for largest in rows.largest]
        self._local.values.zero_()
        for each, row in zip(held, rows.rows, strict=True):
            at = row, each.weight, self._spacings, self._levels, self._contributed
            levels.add_levels_of_each(*at, keeps=rows.keeps, on_device=self._quantizer)
        self._local.contribute()

    def carry(self, exchange: Exchange, step: int, phase: int, total_weight: float) -> Result:
        memory = self._local.memory
        exchange.add_up(memory, step, 0, phase)
        if self._local.copied:  # in place of what has left; the next one leaves after that
            self._local.values.copy_(memory.result, non_blocking=True)
        return _LevelsResult(self._summed, self._spacings, total_weight)


class _MeansCarrier:
    def __init__(
        self,
        local: _LocalSum,  # of a phase of means
        shards: int,  # as `Carriers`
        kernels: Kernels | None,  # as `Carriers`
    ) -> None:
        self._local = local
        self._shards = shards
        self._accumulator: Accumulator | device.Accumulator | None = None
        if local.copied:
            self._accumulator = device.Accumulator(local.layout, local.values, kernels or device.Operations())
        elif local.has_rows:
            self._accumulator = Accumulator(local.layout, local.values, exact=True)
        self._means = local.layout.views(local.memory.result)

    def load(self, held: Sequence[Held], rows: Rows) -> None:
        assert self._accumulator is not None, "a server has no rows"
        exponents = [
            needed_exponent(magnitude_bits(largest), self._shards) if largest else None for largest in rows.largest
        ]
        grid = Grid(tuple(exponents), self._shards)
        self._accumulator.clear()
        for each, row in zip(held, rows.rows, strict=True):
            self._accumulator.add(row, each.weight, grid)
        self._accumulator.complete()
        self._local.contribute()

    def carry(self, exchange: Exchange, step: int, phase: int, total_weight: float) -> Result:
        exchange.add_up(self._local.memory, step, 0, phase, total_weight)
        return _MeansResult(self._means)


class _LargestCarrier:
    def __init__(self, phase: Largest) -> None:
        self._elements = phase.elements
        self._payload = torch.empty(0, dtype=torch.uint8)

    def load(self, held: Sequence[Held], rows: Rows) -> None:
        found = []
        for each, row in zip(held, rows.rows, strict=True):
            vectors = chosen.of_each(row, rows.counts, keeps=rows.keeps)
            found.append(chosen.ChosenRow(each.shard, each.weight, vectors))
        self._payload = chosen.pack(found)

    def carry(self, exchange: Exchange, step: int, phase: int, total_weight: float) -> Result:
        payloads = exchange.gather(step, 0, phase, self._payload)
        rows = [row for payload in payloads for row in chosen.unpack(payload, len(self._elements))]
        return _LargestResult(sorted(rows, key=lambda row: row.shard), self._elements, total_weight)


class _LargestResult:
    """On a device vectors that follow one another are decoded together, when the first of them is asked for."""

    def __init__(self, rows: Sequence[chosen.ChosenRow], elements: Sequence[int], total_weight: float) -> None:
        self._rows = rows
        self._elements = elements
        self._total_weight = total_weight
        self._means: dict[int, torch.Tensor] = {}  # those that were decoded last

    def write(self, i: int, out: torch.Tensor) -> None:
        if i not in self._means:
            self._means = self._decoded(i, out)
        out.copy_(self._means[i])

    def _decoded(self, first: int, beside: torch.Tensor) -> dict[int, torch.Tensor]:
        """The means of this vector and of those behind it, where another tensor is."""
        here = in_host_memory(beside)
        starts = [0, *itertools.accumulate(self._elements[first:])]
        count = 1 if here else max(1, sum(end <= chosen.TOGETHER for end in starts[1:]))
        total = beside.new_zeros(starts[count], dtype=torch.float64)
        for row in self._rows:
            vectors = row.vectors[first : first + count]
            if not here:
                chosen.add_each(vectors, starts[:count], row.weight, total)
            elif vectors[0] is not None:
                vectors[0].add(row.weight, total)
        means = torch.split(divided(total, self._total_weight), list(self._elements[first : first + count]))
        return {first + index: mean for index, mean in enumerate(means)}


class _LevelsResult:
    def __init__(self, summed: Sequence[torch.Tensor], spacings: Sequence[float], total_weight: float) -> None:
        self._summed = summed
        self._spacings = spacings
        self._total_weight = total_weight

    def write(self, i: int, out: torch.Tensor) -> None:
        levels.mean_of_levels(self._summed[i], self._spacings[i], self._total_weight, out)


class _MeansResult:
    def __init__(self, means: Sequence[torch.Tensor]) -> None:
        self._means = means

    def write(self, i: int, out: torch.Tensor) -> None:
        out.copy_(self._means[i], non_blocking=True)  # the next contribution leaves the device after that


def _carrier(phase: Phase, local: _LocalSum | None, shards: int, kernels: Kernels | None) -> Carrier:
    """As `Carriers`. local: of a phase that adds up."""
    if isinstance(phase, Largest):
        return _LargestCarrier(phase)
    assert local is not None, "a phase is one of three kinds"
    return (
        _LevelsCarrier(local, phase.bits, shards, kernels)
        if isinstance(phase, Levels)
        else _MeansCarrier(local, shards, kernels)
    )


def bytes_beside(codec: Codec) -> int:
    """The bytes that the carriers of a codec take on a device, where rows are."""
    return sum(
        _flat(phase.elements).size * _sums_of(phase).dtype.itemsize
        for phase in codec.phases
        if isinstance(phase, Levels | Means)
    )


def _sums_of(phase: Levels | Means) -> Sums:
    return FEW_LEVELS[phase.bits] if isinstance(phase, Levels) else MEANS


def _flat(elements: Sequence[int]) -> Layout:
    return Layout.of((str(i), torch.empty(number, device="meta")) for i, number in enumerate(elements))
