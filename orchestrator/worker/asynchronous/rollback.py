"""A replica as it was at the last sync barrier, to the bit: where an async phase that fails goes back to."""

from __future__ import annotations

import torch

from orchestrator.worker.model.replica import Replica


class Rollback:
    """A copy of a replica to go back to. parameters: in float32, of the layout's size, where updates are added; buffers:
    statistics, then counters."""

    def __init__(self, replica: Replica) -> None:
        self.parameters = replica.staging.flat(replica.layout.size)
        self._buffers: list[torch.Tensor] = []
        self._replica = replica

    def keep(self) -> None:
        """This is a sync barrier."""
        self.parameters.copy_(self._replica.flat)
        self._buffers = self._replica.buffers()

    def bring_back(self) -> None:
        self._replica.flat.copy_(self.parameters)
        self._replica.set_buffers(self._buffers)
        self._replica.begin_step()
        self._replica.begin_shard()
