"""Which client a slot plays in a round, and which of the client's samples each of its local steps takes: a pure function of
seed, parts, round and slot; never of the workers.

If there are as many clients as shards, shard s is client s in each round. If there are more, the shards of a round are slots:
clients that own samples are drawn for them without replacement, in an order drawn from (seed, round).

A round's local steps are numbered through the run: local step h of round r is t = r * stretch + h, and the rows of (t, slot)
are those of its client. `steps_per_round` is the most local steps that a slot can have; one with fewer has no rows at its last
t.

    epochs      each pass over the client's samples in an order drawn from (seed, round and pass, client), in as few batches as
                hold them, whose lengths differ by at most one: a last batch with what is left may have one row, from which
                batch normalisation learns so badly that a single client can spoil a round
    steps       the same order, but every batch is full: it goes on with the next pass
    by weights  as many rows, each drawn with replacement in proportion to the weights, from (seed, t, slot)

Nothing is kept of a client between two rounds in which it is played.
Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017), algorithm 1.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy
import torch

from orchestrator.common.values import Span
from orchestrator.data.division import SampleSubset
from orchestrator.data.drawn import Drawn, by_weight
from orchestrator.errors import ConfigurationError
from orchestrator.numerics import streams

_PASSES_KEPT = 16  # the present ones, and those that are fetched ahead
_ROUNDS_KEPT = 4


class ClientSampler:
    """A sampler of clients. Raises ConfigurationError where more slots than clients with samples are to be filled."""

    def __init__(
        self,
        seed: int,  # of what is drawn
        order: Drawn,  # how many rows a slot takes in a local step
        parts: Sequence[SampleSubset],  # by client, its samples
        local: Span,  # how long a slot trains in a round
        steps_per_round: int | None = None,  # the most local steps of a round; None: the clients' sizes decide it
    ) -> None:
        self._seed = seed
        self._parts = parts
        self._local = local
        self._shards = order.shards
        self._rows = [last - first for first, last in (order.rows(0, slot) for slot in range(order.shards))]
        self._owning = [client for client, part in enumerate(parts) if len(part.samples)]
        self.are_drawn = len(parts) > order.shards
        if self.are_drawn and len(self._owning) < order.shards:
            raise ConfigurationError(
                [
                    f"data.shards: {order.shards} shards, but only {len(self._owning)} of {len(parts)} clients own samples; in "
                    "each step a shard plays a client of its own"
                ],
                f"set data.shards={len(self._owning)}, or have the partition leave fewer clients empty",
                code="data.empty-clients",
            )
        largest = max(len(part.samples) for part in parts)
        self.steps_per_round = steps_per_round or self._steps_of(largest, min(self._rows))
        self._pass = functools.lru_cache(_PASSES_KEPT)(self._shuffled)
        self._sampled = functools.lru_cache(_ROUNDS_KEPT)(self._drawn)

    def client(self, round_: int, slot: int) -> int:
        """The one that this slot plays in this round."""
        return self._sampled(round_)[slot] if self.are_drawn else slot

    def samples(self, round_: int, slot: int) -> int:
        """How many the client owns that this slot plays in this round."""
        return len(self._parts[self.client(round_, slot)].samples)

    def local_steps(self, round_: int, slot: int) -> int:
        """How many the slot has in this round."""
        return self._steps_of(self.samples(round_, slot), self._rows[slot])

    def indices(self, step: int, slot: int) -> list[int]:
        """The samples of a local step, numbered through the run, as indices into the dataset; empty when it has none."""
        round_, local_step = divmod(step, self.steps_per_round)
        client = self.client(round_, slot)
        part, rows = self._parts[client], self._rows[slot]
        if local_step >= self._steps_of(len(part.samples), rows):
            return []
        found = (
            self._by_epochs(round_, local_step, client, rows)
            if self._local.epochs
            else self._by_steps(round_, local_step, client, rows)
        )
        if part.weights is not None:
            found = by_weight(numpy.cumsum(part.weights), len(found), self._seed, step, slot)
        indices: list[int] = part.samples[found].tolist()
        return indices

    def _steps_of(self, samples: int, rows: int) -> int:
        """The steps of a client with so many samples, in batches of so many rows."""
        return self._local.in_steps(-(-samples // rows)) if samples else 0

    def _by_epochs(self, round_: int, local_step: int, client: int, rows: int) -> numpy.ndarray:
        """Positions in the part."""
        samples = len(self._parts[client].samples)
        batches = -(-samples // rows)
        epoch, batch = divmod(local_step, batches)
        first, end = samples * batch // batches, samples * (batch + 1) // batches
        return self._pass(round_ * self._local.in_steps(1) + epoch, client)[first:end].numpy()

    def _by_steps(self, round_: int, local_step: int, client: int, rows: int) -> numpy.ndarray:
        """Positions in the part."""
        samples = len(self._parts[client].samples)
        passes = -(-self.steps_per_round * max(self._rows) // samples)  # of a round at most
        first, pieces = local_step * rows, []
        while rows:
            number, start = divmod(first, samples)
            piece = self._pass(round_ * passes + number, client)[start : start + rows].numpy()
            pieces.append(piece)
            first, rows = first + len(piece), rows - len(piece)
        return numpy.concatenate(pieces)

    def _shuffled(self, number: int, client: int) -> torch.Tensor:
        return streams.permutation(self._seed, "local order", number, len(self._parts[client].samples), client)

    def _drawn(self, round_: int) -> list[int]:
        """The clients of a round, by slot."""
        order = streams.permutation(self._seed, "clients", round_, len(self._owning))
        return [self._owning[each] for each in order[: self._shards].tolist()]
