"""The checks, reports and exchanges that all trainers of a lockstep step share, whether they compute a whole model or a
stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from orchestrator.comm.collectives import BUFFERS, Exchange
from orchestrator.errors import NonFinite, PipelineRaised
from orchestrator.worker.member.generation import ProcessServices
from orchestrator.worker.model.moving_buffers import DIFFERING, BufferRemains
from orchestrator.worker.model.output_checks import NON_FINITE_REMEDY
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.step_report import UNKNOWN, Consensus


class SentBytes:
    """Tells the bytes that the members send in a step, when they change by more than a twentieth. Payloads in packed form
    differ by a few bytes from step to step."""

    def __init__(self, services: ProcessServices) -> None:
        self._services = services
        self._told = UNKNOWN

    def tell(self, step: int, sent_bytes: int) -> None:
        if sent_bytes != UNKNOWN and (self._told == UNKNOWN or abs(sent_bytes - self._told) > self._told / 20):
            self._told = sent_bytes
            self._services.emit({"event": "sent", "step": step, "bytes": sent_bytes})


def joined(
    left: BufferRemains, exchange: Exchange, step: int, attempt: int, consensus: Consensus
) -> list[torch.Tensor]:
    """The buffers that are joined, as all shards leave them: the same at every member, whatever it has computed. Raises what
    the transport raises."""
    if not left:
        return []
    return left.joined(exchange.gather(step, attempt, BUFFERS, left.payload(consensus.first)))


def looked_at(losses: Mapping[int, float | torch.Tensor]) -> dict[int, float]:
    """The losses by shard; those on a device are read all at once."""
    unread = {shard: loss for shard, loss in losses.items() if isinstance(loss, torch.Tensor)}
    numbers = torch.stack([*unread.values()]).tolist() if unread else ()
    known = dict(zip(unread, numbers, strict=True))
    return {shard: known[shard] if shard in known else float(loss) for shard, loss in losses.items()}


def check_counters(replica: Replica, before: Sequence[int] | None, now: Sequence[int]) -> None:
    """Raises PipelineRaised if an earlier shard left other values in the integer buffers. before: None if there was none."""
    if before is not None and now != before:
        names = zip(replica.counter_names(), now, before, strict=True)
        name = next(name for name, value, earlier in names if value != earlier)
        raise PipelineRaised(
            f"the shards left different values in the integer buffer {name!r}",
            DIFFERING,
            code="model.integer-buffer-free",
        )


def not_finite(replica: Replica, i: int, step: int, shard: int, samples: str) -> NonFinite:
    """The error of a shard whose i-th tensor of the layout has a value that is not finite. samples: as of
    `MicroBatches.named`."""
    name = replica.layout.slots[i].name
    what = f"gradient of {name}" if i < len(replica.parameters) else f"statistic {name}"
    return NonFinite(
        f"the {what} is not finite at step {step}, shard {shard}{samples}", NON_FINITE_REMEDY, code="loss.not-finite"
    )
