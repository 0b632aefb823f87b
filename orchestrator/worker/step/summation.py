"""How the contributions of a worker's shards become the summed gradient.

DirectSum       onto the grid as they come, then one sum: the vote follows (`numerics.exact`)
CompressedSum   held until the vote, then encoded and summed in phases (`optim.compressions.codec`)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy
import torch
from numpy.typing import NDArray

from orchestrator.comm.collectives import Exchange, Memory
from orchestrator.comm.topologies.schedule import Schedule
from orchestrator.numerics import exact, foreach, levels
from orchestrator.numerics.device import kernels as device
from orchestrator.numerics.device.kernels import Kernels
from orchestrator.numerics.grid import Grid, magnitude_of
from orchestrator.numerics.layout import Layout, Run
from orchestrator.optim.compressions.codec import Agreement, Codec, Held, Nothing, Result, Rows
from orchestrator.optim.transforms import State
from orchestrator.worker.model.shard_states import ShardStates
from orchestrator.worker.step.carriers import Carriers
from orchestrator.worker.step_report import Consensus

Tensors = Sequence[torch.Tensor | None]
_RESIDUAL = "residual/"


class Summation(Protocol):
    """One worker's sums of a step: `clear`, `add` for each shard, `complete`; `total` after the vote; then `commit`."""

    result: torch.Tensor  # float32, of the layout's size; valid after `total`
    most_waiting: int  # contributions that may wait to be added up; until then they may not change
    replicated: State  # what it needs from step to step, equal at all workers

    @property
    def late(self) -> device.Accumulator | None:
        """Takes the place of `add` for contributions whose weight lies on the device, unread. None if weights have to be
        known."""

    @property
    def held_bytes(self) -> int:
        """The bytes on a device of contributions that wait, or of their own sum, outside regions."""

    def suit(self, schedule: Schedule, rank: int) -> None:
        """As `Memory.suit`."""

    def clear(self) -> None: ...

    def add(self, shard: int, tensors: Tensors, weight: float, grid: Grid) -> None: ...

    def complete(self, total_weight: float, *, alone: bool) -> NDArray[numpy.int64]:
        """As `Accumulator.complete`. alone: nobody else has anything to add."""

    def watch(self) -> None:
        """Remember what others are going to read."""

    def intact(self) -> bool:
        """Whether that is unchanged."""

    def total(self, exchange: Exchange, step: int, attempt: int, consensus: Consensus) -> int:
        """Take part in the exchange; returns the fingerprint of the result."""

    def commit(self) -> None:
        """The step is applied."""


class DirectSum:
    """Implements `Summation`."""

    held_bytes = 0

    def __init__(
        self,
        layout: Layout,  # of the exchanged tensors
        memory: Memory,  # of this member
        states: ShardStates | None,  # what shards keep, staged with their contributions; None where they keep nothing
        kernels: Kernels | None = None,  # where the memory is on a device
        runs: Sequence[Run] = (),  # of a layout that is a part of a larger one
    ) -> None:
        self._accumulator: exact.Accumulator | device.Accumulator
        if kernels is None:
            is_exact = memory.contribution.dtype == torch.float64
            self._accumulator = exact.Accumulator(layout, memory.contribution, exact=is_exact, lent=True)
        else:
            self._accumulator = device.Accumulator(layout, memory.contribution, kernels, runs)
        self._memory = memory
        self._states = states
        self._runs = runs
        self._watched = 0
        self.result = memory.result
        self.most_waiting = self._accumulator.most_waiting
        self.late = self._accumulator if isinstance(self._accumulator, device.Accumulator) else None
        self.replicated: State = {}

    def suit(self, schedule: Schedule, rank: int) -> None:
        self._memory.suit(schedule, rank)

    def clear(self) -> None:
        self._accumulator.clear()

    def add(self, shard: int, tensors: Tensors, weight: float, grid: Grid) -> None:  # noqa: ARG002
        self._accumulator.add(tensors, weight, grid)

    def complete(self, total_weight: float, *, alone: bool) -> NDArray[numpy.int64]:
        magnitudes = self._accumulator.complete((total_weight, self._memory.result) if alone else None)
        self._memory.finished = self._accumulator.finished
        return magnitudes

    def watch(self) -> None:
        self._watched = self._fingerprint()

    def intact(self) -> bool:
        return self._watched == self._fingerprint()

    def _fingerprint(self) -> int:
        contribution = self._memory.contribution
        if contribution.dtype == torch.float64:
            return exact.fingerprint_of_integers(contribution.view(torch.int64))
        return exact.fingerprint_of(contribution, 0)

    def total(self, exchange: Exchange, step: int, attempt: int, consensus: Consensus) -> int:
        if self._states is not None:
            self._states.secure()
        return exchange.total(step, attempt, consensus.total_weight)

    def part_of_fingerprint(self) -> int:
        """The part of the result in the fingerprint of a larger layout, modulo 2**64."""
        if self.late is not None and self._memory.finished is not None:
            return exact.wrap(int(self._memory.finished))
        return exact.wrap(sum(exact.fingerprint_of(self.result[start:end], first) for start, end, first in self._runs))

    def commit(self) -> None:
        pass


class CompressedSum:
    """Implements `Summation`. The states of shards are staged once the last phase is encoded, and before anything of it is
    sent. A member that has committed the step has received this worker's part of that phase, so this worker had staged by
    then. Its states are therefore not lost with a step that it did not commit itself."""

    late: None = None

    def __init__(
        self,
        codec: Codec,  # its parameters come first in the layout, then statistics
        carriers: Carriers,  # the phases of the codec and of the statistics
        layout: Layout,  # of the exchanged tensors
        result: torch.Tensor,  # of the layout's size, on the device of the contributions
        states: ShardStates | None,  # what shards keep; None where they keep nothing
        *,
        copies: bool = False,  # whether a contribution lies where the next one is going to
    ) -> None:
        self._codec = codec
        self._copies = copies
        self._carriers = carriers
        self._slots = layout.slots
        self._states = states
        self.result = result
        self._means = [result[slot.offset : slot.offset + slot.elements] for slot in layout.slots]
        self._parameters = len(layout.slots) - carriers.statistics
        self.most_waiting = 1 if copies else 1 << 30
        self.replicated = codec.replicated()
        self.clear()

    @property
    def held_bytes(self) -> int:
        found = [each for held in self._held for each in held.tensors if each is not None]
        return self._carriers.held_bytes + sum(each.nbytes for each in found if not exact.in_host_memory(each))

    def suit(self, schedule: Schedule, rank: int) -> None:
        self._carriers.suit(schedule, rank)

    def clear(self) -> None:
        self._held: list[Held] = []
        self._statistics: list[Tensors] = []
        self._largest: list[torch.Tensor] = []
        self._places_taken: set[int] = set()  # by those that are held
        self._following = self.replicated

    def add(self, shard: int, tensors: Tensors, weight: float, grid: Grid) -> None:  # noqa: ARG002
        flat = [
            None if tensor is None else exact.in_order(tensor, slot).as_strided((slot.elements,), (1,))
            for tensor, slot in zip(tensors, self._slots, strict=True)
        ]
        if self._states is not None and self._codec.kept:
            row, present = self._states.of(shard), [i for i in self._codec.kept if flat[i] is not None]
            gradients = [each for i in present if (each := flat[i]) is not None]
            whole = foreach.sums(gradients, [row[f"{_RESIDUAL}{i}"] for i in present])
            for i, tensor in zip(present, whole, strict=True):
                flat[i] = tensor
        self._largest.append(levels.largest(flat, self.result))
        if self._copies:
            kept = self._codec.kept if self._states is not None else ()
            passing = [i for i, tensor in enumerate(flat) if tensor is not None and i not in kept]
            originals = [original for i in passing if (original := flat[i]) is not None]
            copies = [torch.empty_like(tensor) for tensor in originals]
            foreach.copy(copies, originals)
            for i, copied in zip(passing, copies, strict=True):
                flat[i] = copied
        places = [0 if each is None else each.data_ptr() for each in flat]
        exact.take_places(self._places_taken, places, self._slots)
        self._held.append(Held(shard, weight, flat[: self._parameters]))
        self._statistics.append(flat[self._parameters :])

    def complete(self, total_weight: float, *, alone: bool) -> NDArray[numpy.int64]:  # noqa: ARG002
        if not self._held:
            return numpy.empty((0, len(self._slots)), numpy.int64)
        weights = numpy.array([[held.weight] for held in self._held])
        return exact.weighted(torch.stack(self._largest).cpu().numpy(), weights)  # a device is asked once

    def watch(self) -> None:
        """Does nothing: the payloads are encoded after the vote."""

    def intact(self) -> bool:
        return True

    def total(self, exchange: Exchange, step: int, attempt: int, consensus: Consensus) -> int:  # noqa: ARG002
        total_weight = consensus.total_weight
        largest = [None if bits < 0 else magnitude_of(bits) for bits in consensus.magnitudes]
        carriers, parameters = self._carriers, self._parameters
        if carriers.of_statistics is not None:
            carriers.of_statistics.load(self._held, Rows(self._statistics, largest[parameters:]))
            means = carriers.carry(carriers.of_statistics, exchange, step, total_weight)
            for i, out in enumerate(self._means[parameters:]):
                means.write(i, out)
        agreement = Agreement(step, total_weight, largest[:parameters], self.replicated)
        results: list[Result] = []
        active = [carriers.takes_part(carrier, step) for carrier in carriers.of_codec]
        for phase, carrier in enumerate(carriers.of_codec):
            if not active[phase]:
                results.append(Nothing())
                continue
            carrier.load(self._held, self._codec.encode(phase, agreement, self._held, results))
            if not any(active[phase + 1 :]):
                self._stage()
            results.append(carriers.carry(carrier, exchange, step, total_weight))
        self._following = self._codec.decode(agreement, results, self._means[:parameters])
        for out, found in zip(self._means, largest, strict=True):
            if found is None:
                out.zero_()
        return exact.wrap(exact.fingerprint_of(self.result, 0))

    def commit(self) -> None:
        self.replicated = self._following

    def _stage(self) -> None:
        if self._states is None:
            return
        for each in self._held:
            residuals = {f"{_RESIDUAL}{i}": each.tensors[i] for i in self._codec.kept}
            known = {name: tensor for name, tensor in residuals.items() if tensor is not None}
            self._states.stage(each.shard, known)
        self._states.secure()


def first_residuals(codec: Codec | None, result: torch.Tensor, layout: Layout) -> State:
    """The state that a shard keeps for a compression before the first step: residuals of zero, where the result is."""
    kept = () if codec is None else codec.kept
    return {f"{_RESIDUAL}{i}": result.new_zeros(layout.slots[i].elements) for i in kept}
