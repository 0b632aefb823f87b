"""Whether the workers that share a GPU have room there for what each needs beside activations. Pure.

It is looked at twice: before anything is started, as far as is certain wherever Ray puts the workers; and before the first
step, when each has told its GPU. The room is what was free there before a worker of the run took any, so what others use does
not count. The driver's part for each process is known about, and worth a note only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from orchestrator.common.gpu_memory import PROCESS_BYTES
from orchestrator.common.values import sized
from orchestrator.errors import ConfigurationError
from orchestrator.provenance.environment.cards import Card

_MUCH = 0.1  # of a GPU, taken by others, from which on it is worth a word


class CardMemory(NamedTuple):
    """The GPU of a worker, and its memory when the worker had started CUDA and taken nothing else."""

    uuid: str
    name: str  # of the product
    free_bytes: int
    total_bytes: int


class Tenant(NamedTuple):
    """A worker on a GPU. needed_bytes: that it has there beside activations, for certain."""

    worker: str
    card: CardMemory
    needed_bytes: int


class _Shared(NamedTuple):
    """A GPU with all who compute there."""

    card: CardMemory
    tenants: Sequence[Tenant]

    @property
    def needed_bytes(self) -> int:
        return sum(tenant.needed_bytes for tenant in self.tenants)

    def __str__(self) -> str:
        """How much is needed there, and how much there is."""
        card, many = self.card, len(self.tenants) > 1
        sizes = sorted({tenant.needed_bytes for tenant in self.tenants})
        each = " to ".join(dict.fromkeys((sized(sizes[0]), sized(sizes[-1]))))
        who = ", ".join(tenant.worker for tenant in self.tenants)
        sharing = f"{len(self.tenants)} workers share" if many else f"{who} computes on"
        told = f", {sized(self.needed_bytes)} together ({who})" if many else ""
        return (
            f"{sharing} {f'GPU {card.uuid}' if card.uuid else 'a GPU'} ({card.name}, {sized(card.total_bytes)}), of which "
            f"{sized(card.free_bytes)} were free before; {'each' if many else 'it'} needs {each} beside activations{told}"
        )


def refusal(tenants: Iterable[Tenant]) -> ConfigurationError | None:
    """Why the run cannot begin; None where all have room."""
    full = [shared for shared in _by_card(tenants) if shared.needed_bytes > shared.card.free_bytes]
    if not full:
        return None
    sharing = any(len(shared.tenants) > 1 for shared in full)
    others = any(shared.card.free_bytes < (1 - _MUCH) * shared.card.total_bytes for shared in full)
    return _error([*map(str, full)], sharing=sharing, others=others)


def notes(tenants: Iterable[Tenant]) -> Iterator[str]:
    """On the GPUs where all have room, but hardly any is left."""
    for shared in _by_card(tenants):
        of_driver = (len(shared.tenants) - 1) * PROCESS_BYTES  # whoever told what is free had its own already
        if shared.needed_bytes <= shared.card.free_bytes < shared.needed_bytes + of_driver:
            yield (
                f"{shared}, and the driver takes about {sized(PROCESS_BYTES)} for each process: memory may run out; let fewer "
                "workers share it (cluster.workers, cluster.gpus_per_worker)"
            )


def refusal_of_all(needed: Sequence[int], there: Sequence[tuple[Card, int]]) -> ConfigurationError | None:
    """As `refusal`, where it is not known yet who will compute where. needed: bytes of each worker; there: the GPUs, and the
    bytes that are free on each."""
    if not there or not needed:
        return None
    free = [size for _, size in there]
    sharing = -(-len(needed) // len(free))  # so many share one of them at least
    least = sum(sorted(needed)[:sharing])
    if max(needed) <= max(free) >= least and sum(needed) <= sum(free):
        return None
    sizes = " to ".join(dict.fromkeys((sized(min(needed)), sized(max(needed)))))
    who = "a worker needs" if len(needed) == 1 else f"{len(needed)} workers need"
    all_of_them = "" if len(needed) == 1 else f" each, {sized(sum(needed))} together,"
    cards = ", and ".join(f"{sized(size)} are free on GPU {card}" for card, size in there)
    return _error([f"{who} {sizes}{all_of_them} beside activations, and {cards}"], sharing=sharing > 1, others=True)


def _error(found: Sequence[str], *, sharing: bool, others: bool) -> ConfigurationError:
    """sharing, others: whether several workers are on such a GPU, and whether others may be."""
    remedies = [
        *["let fewer workers share a GPU (lower cluster.workers, or raise cluster.gpus_per_worker)"] * sharing,
        *["end what else is on it (nvidia-smi)"] * others,
        "cut the model into stages (cluster.stages) on several GPUs, or take an optimizer that keeps less",
    ]
    return ConfigurationError([f"no room on a GPU: {why}" for why in found], "; or ".join(remedies), code="gpu.crowded")


def _by_card(tenants: Iterable[Tenant]) -> list[_Shared]:
    """The first worker on a GPU found most of it free, as nobody of the run was there. One without a UUID is alone."""
    there: dict[str, list[Tenant]] = {}
    for tenant in tenants:
        there.setdefault(tenant.card.uuid or tenant.worker, []).append(tenant)
    most = [max((tenant.card for tenant in each), key=lambda card: card.free_bytes) for each in there.values()]
    return [_Shared(card, each) for card, each in zip(most, there.values(), strict=True)]
