"""Whether the members that share a GPU have room there for what each needs beside activations. Pure.

It is looked at twice: before anything is started, as far as is certain wherever Ray puts them; and before the first step,
when each has told its GPU. The room is what was free there before a member of the run took any, so what others use does
not count. The driver's part for each process is known about, and worth a note only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from orchestrator.common.figures import sized
from orchestrator.common.gpu_memory import PROCESS_BYTES
from orchestrator.errors import ConfigurationError
from orchestrator.provenance.environment.cards import Card

_ROLES = ("worker", "spare", "server")
_MUCH = 0.1  # of a GPU, taken by others, from which on it is worth a word


class CardMemory(NamedTuple):
    """The GPU of a member, and its memory when the member had started CUDA and taken nothing else."""

    uuid: str
    name: str  # of the product
    free_bytes: int
    total_bytes: int


class Tenant(NamedTuple):
    """A member on a GPU. name: its role, and its number; needed_bytes: that it has there beside activations, for certain."""

    name: str
    card: CardMemory
    needed_bytes: int


class _Shared(NamedTuple):
    """A GPU with all who compute there."""

    card: CardMemory
    tenants: Sequence[Tenant]

    @property
    def roles(self) -> list[str]:
        return [tenant.name.split()[0] for tenant in self.tenants]

    @property
    def needed_bytes(self) -> int:
        return sum(tenant.needed_bytes for tenant in self.tenants)

    def __str__(self) -> str:
        """How much is needed there, and how much there is."""
        card, many = self.card, len(self.tenants) > 1
        sizes = sorted({tenant.needed_bytes for tenant in self.tenants})
        each = " to ".join(dict.fromkeys((sized(sizes[0]), sized(sizes[-1]))))
        who = ", ".join(tenant.name for tenant in self.tenants)
        sharing = f"{_counted(self.roles)} share" if many else f"{who} computes on"
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
    roles = [role for shared in full if len(shared.tenants) > 1 for role in shared.roles]
    others = any(shared.card.free_bytes < (1 - _MUCH) * shared.card.total_bytes for shared in full)
    return _error([*map(str, full)], roles, others=others)


def notes(tenants: Iterable[Tenant]) -> Iterator[str]:
    """On the GPUs where all have room, but hardly any is left."""
    for shared in _by_card(tenants):
        of_driver = (len(shared.tenants) - 1) * PROCESS_BYTES  # whoever told what is free had its own already
        if shared.needed_bytes <= shared.card.free_bytes < shared.needed_bytes + of_driver:
            yield (
                f"{shared}, and the driver takes about {sized(PROCESS_BYTES)} for each process: memory may run out; let fewer "
                f"share it ({_settings_of(shared.roles)}cluster.workers, cluster.gpus_per_worker)"
            )


def refusal_of_all(
    needed: Sequence[int], there: Sequence[tuple[Card, int]], roles: Sequence[str] = ()
) -> ConfigurationError | None:
    """As `refusal`, where it is not known yet who will compute where. needed: bytes of each member; there: the GPUs, and the
    bytes that are free on each; roles: of the members, workers if none are given."""
    if not there or not needed:
        return None
    roles = roles or ["worker"] * len(needed)
    free = [size for _, size in there]
    sharing = -(-len(needed) // len(free))  # so many share one of them at least
    least = sum(sorted(needed)[:sharing])
    if max(needed) <= max(free) >= least and sum(needed) <= sum(free):
        return None
    sizes = " to ".join(dict.fromkeys((sized(min(needed)), sized(max(needed)))))
    who = "a worker needs" if len(needed) == 1 else f"{_counted(roles)} need"
    all_of_them = "" if len(needed) == 1 else f" each, {sized(sum(needed))} together,"
    cards = ", and ".join(f"{sized(size)} are free on GPU {card}" for card, size in there)
    return _error(
        [f"{who} {sizes}{all_of_them} beside activations, and {cards}"], roles if sharing > 1 else (), others=True
    )


def _error(found: Sequence[str], roles: Sequence[str], *, others: bool) -> ConfigurationError:
    """roles: of those that share such a GPU with others of the run; others: whether somebody else may be there."""
    fewer = (
        f"let fewer workers share a GPU (lower {_settings_of(roles)}cluster.workers, or raise cluster.gpus_per_worker)"
    )
    remedies = [
        *[fewer] * bool(roles),
        *["end what else is on it (nvidia-smi)"] * others,
        "cut the model into stages (cluster.stages) on several GPUs, or take an optimizer that keeps less",
    ]
    return ConfigurationError([f"no room on a GPU: {why}" for why in found], "; or ".join(remedies), code="gpu.crowded")


def _counted(roles: Sequence[str]) -> str:
    """So many of each, in words."""
    number = Counter(roles)
    *most, last = (f"{number[role]} {role}{'s' * (number[role] > 1)}" for role in _ROLES if number[role])
    return f"{', '.join(most)} and {last}" if most else last


def _settings_of(roles: Iterable[str]) -> str:
    """Those that say how many of these there are, beside the workers."""
    return "".join(setting for role, setting in (("spare", "cluster.spares, "),) if role in roles)


def _by_card(tenants: Iterable[Tenant]) -> list[_Shared]:
    """The first member on a GPU found most of it free, as nobody of the run was there. One without a UUID is alone."""
    there: dict[str, list[Tenant]] = {}
    for tenant in tenants:
        there.setdefault(tenant.card.uuid or tenant.name, []).append(tenant)
    most = [max((tenant.card for tenant in each), key=lambda card: card.free_bytes) for each in there.values()]
    return [_Shared(card, each) for card, each in zip(most, there.values(), strict=True)]
