"""The exchange of a member of a stage with the members of other stages in one generation: border messages of its program, and
the values of what several stages use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from orchestrator.comm.pipeline_schedules import Hosts, Task, groups_of
from orchestrator.comm.transports.base import Tag, Transport
from orchestrator.numerics.byte_layout import bytes_of
from orchestrator.numerics.enqueued import collected
from orchestrator.worker.pipeline_parallel import messages
from orchestrator.worker.pipeline_parallel.border_memory import BorderMemory
from orchestrator.worker.pipeline_parallel.border_values import Activations, Generators, Gradients
from orchestrator.worker.pipeline_parallel.cuts import Cuts
from orchestrator.worker.pipeline_parallel.messages import Border, BorderTag, Message

_NOBODY: Final = Generators((), None, None)


class StageTensors(Protocol):
    """The tensors that a stage uses. owned, guests: by name, the tensors of this stage, and those of others that it uses
    too."""

    @property
    def owned(self) -> Mapping[str, torch.Tensor]: ...

    @property
    def guests(self) -> Mapping[str, torch.Tensor]: ...


@dataclass(frozen=True)
class Wire:
    """The connection between members of stages in one generation."""

    transport: Transport  # between them
    generation: int  # its number
    timeout_s: float  # of each wait for a peer
    memory: BorderMemory | None = None  # on a device, in which tensors are left for peers; None: all travel


class Links:
    """The exchange of one member of a stage with the members of other stages."""

    def __init__(
        self,
        hosts: Hosts,  # by stage and shard, the rank that hosts it
        rank: int,  # this member's
        program: Sequence[Task],  # its tasks of a step
        cuts: Cuts,  # where the model is cut
        tied: Sequence[str],  # the trained parameters that several stages use
        wire: Wire,  # of this generation
    ) -> None:
        self.hosts = hosts
        self.rank = rank
        self.program = tuple(program)
        self.groups = groups_of(hosts)
        self.stage = next(stage for stage, ranks in enumerate(self.groups) if rank in ranks)
        # Those of its stage that it hosts.
        self.shards = tuple(shard for shard, host in enumerate(hosts[self.stage]) if host == rank)
        self.alone = len(self.groups[self.stage]) == 1  # nobody else hosts its stage
        self.is_last = self.stage == len(hosts) - 1
        self.wire = wire
        self._cuts = cuts
        self._tied = tuple(tied)
        self._border = Border(wire.transport, wire.generation, wire.timeout_s, wire.memory)
        self._refreshed = 0

    def take_from_before(self, tag: BorderTag) -> Message | None:
        """The message of the stage before on the tag's shard; None if there is no such stage."""
        return None if self.stage == 0 else self._border.receive(self.hosts[self.stage - 1][tag[3]], tag)

    def take_from_behind(self, tag: BorderTag) -> Message | None:
        """The message of the stage behind on the tag's shard; None if there is no such stage."""
        return None if self.is_last else self._border.receive(self.hosts[self.stage + 1][tag[3]], tag)

    def give_behind(self, tag: BorderTag, what: Activations | None, seeded: Generators | None) -> None:
        """Tell the stage behind; None: that nothing comes."""
        if not self.is_last:
            self._border.send(self.hosts[self.stage + 1][tag[3]], tag, what, seeded or _NOBODY)

    def after_the_last(self, tag: BorderTag, drawn: Generators | None, seeded: Generators | None) -> Message | None:
        """The last stage sends all others the generators as it has left them after a shard, None for nothing. Returns its
        message; None at the last stage."""
        *before, last = [stage[tag[3]] for stage in self.hosts]
        if not self.is_last:
            return self._border.receive(last, tag)
        message = None if drawn is None else Activations([], [], [], [], drawn)
        for rank in before:
            self._border.send(rank, tag, message, seeded or _NOBODY)
        return None

    def give_before(self, tag: BorderTag, what: Gradients | None, seeded: Generators | None) -> None:
        """Tell the stage before; None: that nothing comes."""
        if self.stage:
            self._border.send(self.hosts[self.stage - 1][tag[3]], tag, what, seeded or _NOBODY)

    def finish(self) -> None:
        """Send what the device has not done yet, when it has: before other messages."""
        self._border.finish()

    def refresh(self, held: StageTensors) -> None:
        """Give the other stages that use them the present values of what is owned here, and take those of guests: from the
        host of one's first shard, since all hosts of a stage have equal values. All members do this at the same moments:
        before each step and each evaluation."""
        self._refreshed += 1
        transport, generation, timeout_s = self.wire.transport, self.wire.generation, self.wire.timeout_s
        for number, name in enumerate(self._tied):
            owner = self._cuts.owners[name]
            tag = Tag(generation, self._refreshed, 0, messages.TIED, number)
            users = [stage for stage in range(len(self.groups)) if stage != owner and name in self._cuts.hosted[stage]]
            if self.stage == owner:
                pairs = [(rank, self.hosts[stage].index(rank)) for stage in users for rank in self.groups[stage]]
                takers = [taker for taker, shard in pairs if self.hosts[owner][shard] == self.rank]
                if takers:
                    payload = _raw(held.owned[name])
                for taker in takers:
                    transport.send(taker, tag, payload)
                transport.flush(timeout_s)
            elif self.stage in users:
                giver = self.hosts[owner][self.shards[0]]
                came = transport.receive(giver, tag, timeout_s).payload.clone()
                guest = held.guests[name]
                guest.data.copy_(came.view(guest.dtype).view(guest.shape))

    def taken_bytes(self) -> int:
        """How many bytes of border messages have been sent since this was asked last."""
        sent, self._border.sent_bytes = self._border.sent_bytes, 0
        return sent


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a copy in host memory, row-major."""
    return collected(tensor.nbytes, [(0, bytes_of(tensor))])
