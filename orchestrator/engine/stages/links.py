"""What a member of a stage exchanges with the members of other stages in one generation: border messages of its program, and the
values of what several stages use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from orchestrator.engine.stages import messages
from orchestrator.engine.stages.cuts import Cuts
from orchestrator.engine.stages.messages import Border
from orchestrator.engine.stages.parcels import Activations, Generators, Gradients
from orchestrator.pipelining import Hosts, Task, groups_of
from orchestrator.transports.base import Tag, Transport

Arrived = tuple[torch.Tensor, int]
_NOBODY: Final = Generators(torch.empty(0, dtype=torch.uint8), None, None)


class Links:
    """Of the member `rank`. program: its tasks of a step; shards: those of its stage that it hosts."""

    def __init__(
        self, hosts: Hosts, rank: int, program: Sequence[Task], cuts: Cuts, wire: tuple[Transport, int, float]
    ) -> None:
        """wire: the transport, the generation's number, and how long to wait for a peer."""
        self.hosts = hosts
        self.rank = rank
        self.program = tuple(program)
        self.groups = groups_of(hosts)
        self.stage = next(stage for stage, ranks in enumerate(self.groups) if rank in ranks)
        self.shards = tuple(shard for shard, host in enumerate(hosts[self.stage]) if host == rank)
        self.alone = len(self.groups[self.stage]) == 1
        self.transport, self.generation, self.timeout_s = wire
        self._cuts = cuts
        self._border = Border(*wire)
        self._refreshed = 0

    def from_before(self, task: Task, when: tuple[int, int]) -> Arrived | None:
        """What the stage before has sent of this shard; None where there is no such stage."""
        if task.stage == 0:
            return None
        peer = self.hosts[task.stage - 1][task.shard]
        return self._border.receive(peer, (*when, messages.ACTIVATIONS, task.shard))

    def from_behind(self, task: Task, when: tuple[int, int]) -> Arrived | None:
        """The same of the stage behind."""
        if task.stage == len(self.hosts) - 1:
            return None
        peer = self.hosts[task.stage + 1][task.shard]
        return self._border.receive(peer, (*when, messages.GRADIENTS, task.shard))

    def onward(self, task: Task, when: tuple[int, int], what: Activations | None, seeded: Generators | None) -> None:
        """Tell the stage behind; None: that nothing comes."""
        if task.stage < len(self.hosts) - 1:
            peer = self.hosts[task.stage + 1][task.shard]
            self._border.send(peer, (*when, messages.ACTIVATIONS, task.shard), what, seeded or _NOBODY)

    def back(self, task: Task, when: tuple[int, int], what: Gradients | None, seeded: Generators | None) -> None:
        """Tell the stage before; None: that nothing comes."""
        if task.stage:
            peer = self.hosts[task.stage - 1][task.shard]
            self._border.send(peer, (*when, messages.GRADIENTS, task.shard), what, seeded or _NOBODY)

    def refresh(self, step: int, held: Mapping[str, torch.Tensor], owned: Mapping[str, torch.Tensor] | None = None) -> None:
        """Give the stages that use them the present values of what is owned here, and take those of what is not. held: the guests of
        this stage. Of all members once before each step and each evaluation."""
        self._refreshed += 1
        for number, name in enumerate(self._cuts.tied):
            owner = self._cuts.owners[name]
            giver = self.groups[owner][0]
            takers = [
                rank
                for stage, ranks in enumerate(self.groups)
                if stage != owner and name in self._cuts.hosted[stage]
                for rank in ranks
            ]
            tag = Tag(self.generation, step, self._refreshed, messages.TIED, number)
            if self.rank == giver:
                value = (owned or self.owned)[name].detach()
                payload = value.contiguous().reshape(-1).view(torch.uint8).clone()
                messages.send_whole(self.transport, takers, tag, payload, self.timeout_s)
            elif self.rank in takers:
                payload = self.transport.receive(giver, tag, self.timeout_s).payload
                target = held[name]
                with torch.no_grad():
                    target.data.copy_(payload.clone().view(target.dtype).view(target.shape))

    owned: Mapping[str, torch.Tensor] = {}

    def taken_bytes(self) -> int:
        """How many bytes of border messages have been sent since this was asked last."""
        sent, self._border.sent_bytes = self._border.sent_bytes, 0
        return sent
