"""Which clients a slot plays in a private round, and which of a client's samples each of its steps takes.

Clients are drawn by Poisson sampling, each with the same chance, independent of all others, and dealt to the slots in turns,
so a slot plays none, one or more. The players of a round are secret, which makes its epsilon small (Mironov, Talwar and
Zhang, 2019); only workers are told.

A micro-batch is known by (step, client), not by (step, slot): what a client contributes depends on its own samples, the seed
and public settings alone, never on who else there is or plays. So the clipping norm bounds the influence of a client on a
round. For the same reason local steps are numbered in strides that no client's size decides.

    local steps   t = round * stride + h, stride = local.steps; or 2**20 with local.epochs, whose number differs by client
    rows          data.batch_size / data.shards for each client
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy

from orchestrator.common.values import Span, Steps
from orchestrator.data.clients import ClientSampler
from orchestrator.data.division import SampleSubset
from orchestrator.data.drawn import Drawn
from orchestrator.data.plan import Data
from orchestrator.errors import ConfigurationError, Inconsistent
from orchestrator.optim.privacy.keys import Keys

_STRIDE = 1 << 20
_ROUNDS_KEPT = 4
_RANGE = 1 << 64  # of a draw


class PoissonSampler(ClientSampler):
    """Its `indices` and `local_steps` are asked by client. Raises ConfigurationError where there are more clients than the
    settings say."""

    def __init__(self, seed: int, data: Data, parts: Sequence[SampleSubset]) -> None:
        assert data.privacy is not None
        self._clients, self._expected, self._slots = data.privacy.clients, data.privacy.expected, data.shards
        if len(parts) > self._clients:
            raise ConfigurationError(
                [
                    f"privacy.clients: the partition finds {len(parts)} clients, and the settings allow {self._clients}; the "
                    "number is part of what is promised, so it has to be known without the data"
                ],
                "set privacy.clients to at least as many",
                code="privacy.more-clients",
            )
        rows = data.batch_size.least // data.shards
        drawn = Drawn(sum(len(part.samples) for part in parts), Steps.constant(rows * len(parts)), len(parts))
        local = data.local or Span(steps=1)
        super().__init__(seed, drawn, parts, local, steps_per_round=local.steps or _STRIDE)
        longest = max(self.local_steps(0, client) for client in range(len(parts)))
        if longest > self.steps_per_round:
            raise ConfigurationError(
                [
                    f"local.epochs: a client has {longest} local steps in a round, at most {self.steps_per_round} are possible"
                ],
                "lower local.epochs, or raise data.batch_size",
                code="privacy.local-epochs",
            )
        self._assigned = functools.lru_cache(_ROUNDS_KEPT)(self._assign)
        self._keys: Keys | None = None

    def unlock(self, keys: Keys) -> None:
        """From now on it is known who plays."""
        self._keys = keys
        self._assigned.cache_clear()

    def sampled_clients(self, round_: int, slot: int) -> tuple[int, ...]:
        """The clients that this slot plays in this round."""
        return self._assigned(round_)[slot]

    def slot_of(self, round_: int, client: int) -> int:
        """The slot that plays this client in this round."""
        return next(slot for slot, sampled in enumerate(self._assigned(round_)) if client in sampled)

    def _assign(self, round_: int) -> list[tuple[int, ...]]:
        if self._keys is None:
            raise Inconsistent(
                "who plays in a round is asked without a key",
                "this is a fault of orchestrator",
                code="privacy.no-key-for-clients",
            )
        drawn = [
            each
            for each in sampled_clients(self._keys, round_, self._expected, self._clients)
            if each < len(self._parts)
        ]
        return assign_to_slots(drawn, self._slots)


def sampled_clients(keys: Keys, round_: int, expected: int, clients: int) -> list[int]:
    """The numbers of those that play, in order. expected: so many do on average, of `clients`. A client's draw is at a place of
    its own in the stream, so whether it plays does not depend on who else there is."""
    if expected >= clients:
        return list(range(clients))
    below = numpy.uint64(expected * _RANGE // clients)
    found: list[int] = numpy.flatnonzero(keys.stream("clients", round_).take(clients) < below).tolist()
    return found


def assign_to_slots(sampled_clients: list[int], slots: int) -> list[tuple[int, ...]]:
    """By slot, whom it plays: evenly, in turns."""
    return [tuple(sampled_clients[slot::slots]) for slot in range(slots)]
