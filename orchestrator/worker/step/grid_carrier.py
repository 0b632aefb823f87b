"""The sum of a step whose contributions are integers on a quantization grid: one memory of int64, and masks if sums are to
hide what each worker contributes.

    vector    the clipped contributions (and the noise), then the losses on a lattice of their own, and how many there are
    keys      at the first sum of a generation every worker tells the others its public key, through the same links
    sum       modulo 2**64, over the topology's schedule; masks cancel in it

A region is mapped by peers, so only what is masked is ever written there. The plain sum of a worker is in its own memory: on a
device, where its contributions are, and it leaves that once in a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from orchestrator.comm.collectives import GRID_KEYS, GRID_SUM, Exchange, Memory
from orchestrator.comm.topologies.schedule import Schedule
from orchestrator.comm.transports.base import Regions
from orchestrator.numerics.byte_layout import of_bytes
from orchestrator.numerics.exact import INTEGERS
from orchestrator.numerics.layout import Layout
from orchestrator.numerics.staging import Direct, Staging
from orchestrator.optim.privacy.masks import PUBLIC_BYTES, KeyPair, Masks

_LOSSES = 2  # elements: their sum, and their number


class GridCarrier:
    """The carrier of one member. size: of the layout of the contributions; staging: to the device where they are; None at a
    server. own: this worker's plain sum, and losses: where its losses go; both are set before `carry`."""

    def __init__(self, size: int, regions: Regions, *, masked: bool, staging: Staging | None) -> None:
        contributes = staging is not None
        layout = Layout.of([("sum", torch.empty(size, device="meta")), ("losses", torch.empty(_LOSSES, device="meta"))])
        self.memory = Memory(layout, regions, sums=INTEGERS, contributes=contributes)
        self._masked = masked
        self._vector = torch.zeros(layout.size if contributes else 0, dtype=torch.int64)
        self.own, self.losses = layout.views(self._vector) if contributes else (self._vector, self._vector)
        self._here = self.own
        if staging is not None and not isinstance(staging, Direct):
            self.own = staging.integers(self.own.numel())
            if staging.device.type == "cuda":
                self.memory.page_lock()
        self._summed = layout.views(self.memory.result)
        self._keys_told = False
        self._masks: Masks | None = None
        self._rank = -1

    def suit(self, schedule: Schedule, rank: int) -> None:
        """As `Memory.suit`. A new generation has new keys."""
        self.memory.suit(schedule, rank)
        self._rank, self._keys_told, self._masks = rank, False, None

    def clear(self) -> None:
        if self.own is self._here:
            self._vector.zero_()
        else:  # what is before is written over
            self._vector[self._here.numel() :].zero_()
            self.own.zero_()

    def carry(self, exchange: Exchange, step: int, attempt: int) -> tuple[torch.Tensor, int, int]:
        """Add up with all members; (sum, sum of the losses, their number). To be read before the next step. The sum is where
        the contributions are, on a device in place of this worker's own."""
        self._tell_keys(exchange, step)
        contribution, end = self.memory.contribution, self._here.numel()
        if self._masks is None:
            contribution[:end].copy_(self.own)
            contribution[end:].copy_(self._vector[end:])
        else:
            if self.own is not self._here:
                self._here.copy_(self.own)
            self._masks.add(step, attempt, self._vector)
            contribution.copy_(self._vector)
        exchange.add_up(self.memory, step, attempt, GRID_SUM)
        total, (losses, count) = self._summed[0], self._summed[1].tolist()
        if self.own is not self._here:
            total = self.own.copy_(total)
        return total, losses, count

    def relay(self, exchange: Exchange, step: int, attempt: int) -> None:
        """A server's part."""
        self._tell_keys(exchange, step)
        exchange.add_up(self.memory, step, attempt, GRID_SUM)

    def _tell_keys(self, exchange: Exchange, step: int) -> None:
        """Exchange the public keys, once in a generation. A lone worker has nobody to hide from, and its sum is the sum."""
        if not self._masked or self._keys_told:
            return
        own = KeyPair()
        keys = exchange.gather(step, 0, GRID_KEYS, of_bytes(own.public))
        publics = [_as_bytes(each) for each in keys]
        if publics:  # a server gets none
            self._masks = own.agree(self._rank, publics, exchange.generation)
        self._keys_told = True


def _as_bytes(tensor: torch.Tensor) -> bytes:
    values: Sequence[int] = tensor.tolist()
    assert len(values) == PUBLIC_BYTES
    return bytes(values)
