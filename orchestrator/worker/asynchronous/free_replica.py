"""One worker's replica between two rests: parameters as integers, to which its own and others' updates are added in any order.

    begin      after a rest, which left parameters in float32, equal everywhere
    own        an update of a hosted shard
    other      a delta of another worker
    ledger     the fingerprint of all that was added is that of what came out of it
    adopt      the sum of everybody's updates, at the rest
    give_up    back to the last rest, to the bit: the sprint has failed

Parameters in float32 are the whole state at a sync barrier, as in lockstep, so checkpoints and state transfers are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from orchestrator.comm.collectives import Memory
from orchestrator.errors import COPIED_OTHERWISE, Inconsistent
from orchestrator.numerics import exact
from orchestrator.numerics.exact import wrap
from orchestrator.numerics.fixed_point import HOST, FixedPoint, Updating
from orchestrator.optim.transforms import State
from orchestrator.worker.asynchronous.rollback import Rollback
from orchestrator.worker.asynchronous.shard_updates import Reading, ShardUpdates, require_range
from orchestrator.worker.asynchronous.statistics import Statistics
from orchestrator.worker.asynchronous.sync_barrier import require_sum
from orchestrator.worker.member.generation import ProcessServices
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.shard_states import ShardStates


class FreeReplica:
    """A replica that runs free between sync barriers, and the states of its shards."""

    def __init__(
        self,
        replica: Replica,  # in float32, which counts at sync barriers
        updates: ShardUpdates,  # computes those of the hosted shards
        states: ShardStates,  # what the hosted shards keep
        memory: Memory,  # in which the sum of a sync barrier is added up
        services: ProcessServices,  # of the member's process
        updating: Updating = HOST,  # where that memory is
    ) -> None:
        self._updating = updating
        self.replica = replica
        self.shards: tuple[int, ...] = ()  # those that are hosted
        self._updates = updates
        self._states = states
        self._memory = memory
        self._services = services
        self._statistics = Statistics(replica)
        size, staging = replica.layout.size, replica.staging
        self._x = staging.integers(size)
        self._last_barrier = Rollback(replica)
        self._fixed = FixedPoint(())
        self._ledger = self._printed_start = 0

    def begin(self, fallback_rows: Mapping[int, State] = MappingProxyType({})) -> None:
        """Replicas run free from here. fallback_rows: what these hosted shards go on with, in place of what they keep. Raises
        CalledOff."""
        self._services.await_copied()
        self._states.discard()
        replica = self.replica
        self._last_barrier.keep()
        start = self._last_barrier.parameters
        self._fixed = FixedPoint.fitting(replica.layout, start, len(replica.parameters))
        self._start_into(self._x)
        self._memory.contribution.zero_()
        self._ledger = self._printed_start = exact.fingerprint_of_integers(self._x)
        self._updates.begin(self._fixed, {**self.rows(), **fallback_rows})

    def compute(self, shard: int, reading: Reading, x: torch.Tensor | None = None) -> tuple[float | None, torch.Tensor]:
        """Loss and update of the shard's next micro-batch, read from `x` or, without one, from this replica."""
        self._services.heartbeat.beat("compute", reading.clock, shard)
        return self._updates.compute(shard, self._x if x is None else x, reading)

    def apply_own(self, update: torch.Tensor, *unsent: torch.Tensor) -> int:
        """Add an update of a hosted shard, also to what is unsent; returns its fingerprint."""
        printed = self._updating.absorb(update, self._x, self._memory.contribution, *unsent)
        self._ledger = wrap(self._ledger + printed)
        return printed

    def apply_other(self, delta: torch.Tensor, printed: int, at: slice = slice(None)) -> None:
        """Add what another worker has sent; `printed` with its first slice, and 0 with the others."""
        self._x[at].add_(self.replica.staging.from_peer(delta))  # += would copy the slice onto itself, too
        self._ledger = wrap(self._ledger + printed)

    def compare_other(self, delta: torch.Tensor, printed: int, found: torch.Tensor) -> None:
        """As `apply_other`, of all slices as one; its own fingerprint is added to `found`, as `Updating.take_in` does."""
        self._updating.take_in(self.replica.staging.from_peer(delta), self._x, found)
        self._ledger = wrap(self._ledger + printed)

    @property
    def size(self) -> int:
        """Elements of an update."""
        return self._x.numel()

    def rows(self) -> dict[int, State]:
        """The state that each hosted shard keeps."""
        return {shard: self._states.of(shard) for shard in self.shards}

    def start(self) -> torch.Tensor:
        """The parameters at the last sync barrier, as integers in new memory."""
        return self._start_into(torch.empty_like(self._x))

    def shown(self) -> tuple[FixedPoint, torch.Tensor]:
        """The parameters at the last sync barrier, for peers to read until the next one: in the memory of its sum, which is
        free until then."""
        return self._fixed, self._start_into(self._memory.result)

    def check_ledger(self) -> None:
        """Raises Inconsistent unless this replica is the sum of what was added to it: at the rest all replicas are made equal,
        which would repair a lost or doubled update in silence."""
        if exact.fingerprint_of_integers(self._x) != self._ledger:
            raise Inconsistent(
                "a replica is not the sum of the updates that it has applied", COPIED_OTHERWISE, code="replica.ledger"
            )

    def magnitudes(self) -> list[int]:
        """The magnitudes of the hosted shards' statistics. Raises NonFinite."""
        return self._statistics.magnitudes(self._updates.buffers())

    def counters(self) -> list[int]:
        return self._statistics.counters(self._updates.buffers())

    def contribute(self, magnitudes: Sequence[int]) -> int:
        """Complete what this worker puts into the sum of the rest: what the filter held back, whose fingerprint is returned,
        and the statistics. From here on others may complete the rest without this worker, so what its shards keep is staged."""
        for shard in self.shards:
            self._states.stage(shard, self._updates.optimizers.row(shard))
        self._states.finalize()
        contribution, residual = self._memory.contribution, self._updates.residual()
        if residual is not None:
            contribution += residual
        self._statistics.contribute(self._updates.buffers(), magnitudes, contribution)
        return 0 if residual is None else exact.fingerprint_of_integers(residual)

    def adopt(self, shards: int, magnitudes: Sequence[int], counters: Sequence[int], printed: int) -> int:
        """Take the sum over; returns the fingerprint of the parameters. shards: of the run; printed: the fingerprint of all
        that workers put into it. Raises NonFinite, Inconsistent."""
        replica, summed = self.replica, self._memory.result
        end = self._statistics.start
        self._start_into(self._x)[:end].add_(summed[:end])
        found = exact.fingerprint_of_integers(self._x)
        require_sum(found, self._printed_start + printed)
        require_range(replica, self._x)
        self._updates.show(self._x)
        replica.adopt(self._statistics.means(magnitudes, summed, shards), counters)
        replica.begin_step()
        self._states.commit()
        return found

    def give_up(self) -> None:
        """Back to the last sync barrier."""
        self._last_barrier.bring_back()

    def _start_into(self, integers: torch.Tensor) -> torch.Tensor:
        """The parameters at the last sync barrier, made anew each time: to keep them would take twice their memory."""
        self._fixed.integers(self._last_barrier.parameters, integers)
        return integers
