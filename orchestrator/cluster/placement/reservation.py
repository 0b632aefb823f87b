"""Room for all members of a run at once: one placement group with a bundle for each, or a clear refusal.

PACK: members share as few nodes as possible, because on one node gradients lie in shared memory, and between nodes every byte
goes through the network. Ray chooses the nodes, unless one is wished for. A demand that the nodes can never hold is refused at
once. One that they cannot hold now is waited for, no longer than `cluster.start_timeout_s`. Nodes that an autoscaler would add
are not counted: start them first.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import ray
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.cluster.ray_calls import unless_gone
from orchestrator.common.tested_versions import RAY
from orchestrator.errors import ClusterUnavailable

NODE_ID: Final = "ray.io/node-id"  # a label that Ray gives to each node
_LOOK_S = 0.5
_WISHED_S = 2.0  # for room where it is wished for; Ray gives what is free within milliseconds
_ANSWER_S = 10.0  # of a head, which is slow on a busy machine
_SITE_SHARE = 0.001
_CARD_TYPE = "accelerator_type:"  # before the name of Ray's resource of a node that has such cards
_ALL_NODES = ""
_PARTS = 10_000  # Ray counts resources in ten-thousandths


@dataclass(frozen=True)
class Need:
    """The resources that a run needs."""

    members: int  # how many, each with that much:
    cpus: float  # of each
    gpus: float = 0.0  # likewise
    together: bool = False  # whether all are on one node
    # how many of them, the first ones, are to be on nodes that offer this resource, and "" anywhere
    sites: Mapping[str, int] = field(default_factory=dict)
    card: str | None = None  # the type of their GPUs, as Ray names it; None: any
    on: Sequence[str] = ()  # ids of the nodes on which the first of them are to be

    def __str__(self) -> str:
        where = " on one node, as transport=shared_memory needs it" if self.together else ""
        each = _amount({"CPU": self.cpus, "GPU": self.gpus})
        kind = "" if self.card is None else f" of type {self.card}"
        return f"{self.members} process{'es' * (self.members != 1)} with {each}{kind} each{where}"

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    @property
    def site_of(self) -> list[str]:
        """The site of each member."""
        named = [site for site, count in sorted(self.sites.items(), reverse=True) for _ in range(count)]
        return [*named, *[""] * (self.members - len(named))]

    @property
    def bundles(self) -> list[dict[str, float]]:
        return [{**self.bundle, **self.shares(site)} for site in self.site_of]

    @property
    def selectors(self) -> list[dict[str, str]]:
        """The labels of the node of each member."""
        return [*({NODE_ID: node} for node in self.on), *({} for _ in range(self.members - len(self.on)))]

    def shares(self, site: str = "") -> dict[str, float]:
        """The shares of resources that only say where a member may be."""
        return {**site_share(site), **site_share("" if self.card is None else f"{_CARD_TYPE}{self.card}")}

    def placement(self, site: str = "") -> dict[str, dict[str, float]]:
        """The same as an option of `ray.remote`."""
        found = self.shares(site)
        return {"resources": found} if found else {}


def site_share(site: str) -> dict[str, float]:
    """The share of a site's resource that each of its workers takes, so that Ray puts it there: next to nothing."""
    return {site: _SITE_SHARE} if site else {}


@dataclass(frozen=True)
class Node:
    """A living node. name: its address and the beginning of its id, as Ray's own tools show them."""

    id: str
    address: str
    resources: Mapping[str, float]

    @property
    def name(self) -> str:
        return f"{self.address} ({self.id[:8]})"

    def holds(self, need: Need) -> int:
        """How many members it has room for when nothing else runs there."""
        if need.card is not None and need.card not in self.card_types:
            return 0
        cpus = round(self.resources.get("CPU", 0) * _PARTS) // max(1, round(need.cpus * _PARTS))
        return min(cpus, self._room_on_cards(need.gpus)) if need.gpus else cpus

    @property
    def card_types(self) -> list[str]:
        """As Ray names them; of a node with several types it tells that of the first card."""
        return sorted(name.removeprefix(_CARD_TYPE) for name in self.resources if name.startswith(_CARD_TYPE))

    def _room_on_cards(self, each: float) -> int:
        """A part of a GPU is of one card, so what is left on two of them makes no third part."""
        cards, parts = self.resources.get("GPU", 0), max(1, round(each * _PARTS))
        if parts >= _PARTS:
            return round(cards * _PARTS) // parts
        whole, rest = divmod(round(cards * _PARTS), _PARTS)
        return int(whole * (_PARTS // parts) + rest // parts)


@dataclass(frozen=True)
class ActorSlot:
    """A reserved bundle in which a member is started. options: for `ray.remote`."""

    node: Node
    options: Mapping[str, Any]


def room(need: Need, nodes: Sequence[Node]) -> int:
    """How many such members these nodes hold when nothing else runs there."""
    rooms = [node.holds(need) for node in nodes]
    return max(rooms, default=0) if need.together else sum(rooms)


def lack(need: Need, nodes: Sequence[Node]) -> str | None:
    """Why these nodes can never give what is needed, or None when they can."""
    for site, count in need.sites.items():
        if site and (why := _lacks_site(site, count, need, nodes)):
            return why
    if need.card is not None and not any(need.card in node.card_types for node in nodes):
        return (
            f"cluster.accelerator_type: no node of this Ray has a GPU of type {need.card}; there is "
            f"{', '.join(sorted({kind for node in nodes for kind in node.card_types})) or 'none of any type'}"
        )
    if room(need, nodes) >= need.members:
        return None
    told = f"the run needs {need}, more than this Ray has: {_listed(nodes)}"
    if 0 < need.gpus < 1 and any(node.resources.get("GPU") for node in nodes):
        told += f"; a part is of one GPU, which holds {_PARTS // round(need.gpus * _PARTS)} of them"
    return told


def wishes(need: Need, node: str, some: int, *, insists: bool) -> list[Need]:
    """The same with all members on this node, else with the first of them there, so many, else anywhere; as far as the node may
    ever have room. insists: without the last, where it has room for some."""
    found = next((each for each in living_nodes() if each.id == node), None)
    room = 0 if found is None else found.holds(need)
    counts = [need.members] if need.together else sorted({need.members, some}, reverse=True)
    placed = [replace(need, on=[node] * count) for count in counts if count <= room]
    return placed if placed and insists else [*placed, need]


def _lacks_site(site: str, count: int, need: Need, nodes: Sequence[Node]) -> str | None:
    offering = [node for node in nodes if node.resources.get(site, 0) > 0]
    if not offering:
        return f"data.sites: no node of this Ray offers {site}: {_listed(nodes)}"
    if sum(node.holds(need) for node in offering) < count:
        each = _amount(need.bundle)
        return (
            f"data.sites: {count} workers with {each} each are to be at {site}, which offers less: {_listed(offering)}"
        )
    return None


@contextmanager
def reserved(
    needs: Sequence[Need], timeout_s: float, check: Callable[[], None], trouble: Callable[[], str | None]
) -> Iterator[list[ActorSlot]]:
    """One slot per member, within the block. needs: one need as `wishes` gives it; what is not there at once is waited for as
    the last of them has it. check: called now and then, may raise; trouble: what is wrong with the Ray, if anything is. Raises
    ClusterUnavailable."""
    need, nodes = needs[-1], living_nodes()
    why_not = lack(need, nodes)
    if why_not is not None:
        remedy = "ask for less with cluster.workers, cluster.cpus_per_worker or cluster.gpus_per_worker, or add nodes"
        if why_not.startswith("data.sites"):
            remedy = "start that site's nodes with ray start --address=HOST:PORT --resources='{\"SITE\": 1}', and CPUs enough"
        if why_not.startswith("cluster.accelerator_type"):
            remedy = (
                "name a type that is there, leave it out, or add nodes that have such a GPU (ray status -v shows types)"
            )
        raise ClusterUnavailable(
            why_not, f"{remedy}; or transport=auto" if need.together else remedy, code="ray.cannot-hold"
        )
    strategy = "STRICT_PACK" if need.together else "PACK"
    with contextlib.ExitStack() as held:
        for each in needs:
            group: Any = placement_group(each.bundles, strategy, bundle_label_selector=each.selectors)
            held.callback(unless_gone, partial(remove_placement_group, group), trouble)
            if _has_room(group, _WISHED_S if each is not need else timeout_s, check):
                break
            held.close()
        else:
            free = _free(living_nodes())
            raise ClusterUnavailable(
                f"the run needs {need}, which did not become free within {timeout_s:g} s; free now: {free}",
                "end what else runs there, ask for less, or raise cluster.start_timeout_s",
                code="ray.not-free",
            )
        yield _slots(group, need, nodes)


def _has_room(group: Any, timeout_s: float, check: Callable[[], None]) -> bool:
    deadline = time.monotonic() + timeout_s
    while not group.wait(_LOOK_S):
        check()
        if time.monotonic() > deadline:
            return False
    return True


def _slots(group: Any, need: Need, nodes: Sequence[Node]) -> list[ActorSlot]:
    by_id = {node.id: node for node in [*nodes, *living_nodes()]}
    chosen: Mapping[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return [ActorSlot(by_id[chosen[member]], _options(need, group, member)) for member in range(need.members)]


def living_nodes() -> list[Node]:
    """Raises ClusterUnavailable where the head does not answer. Ray itself waits a minute for it, and then ends this
    process."""
    found: list[Mapping[str, Any]] = []
    failed: list[Exception] = []

    def ask() -> None:
        try:
            found.extend(ray.nodes())  # type: ignore[no-untyped-call]
        except Exception as error:  # Ray's own
            failed.append(error)

    asking = threading.Thread(target=ask, name="nodes", daemon=True)
    asking.start()
    asking.join(_ANSWER_S)
    if asking.is_alive() or failed:
        why = str(failed[0]).splitlines()[0] if failed else f"no answer within {_ANSWER_S:g} s"
        raise ClusterUnavailable(
            f"the head of the Ray does not say which nodes there are: {why}", "is it still there?", code="ray.no-nodes"
        )
    living = [node for node in found if node["Alive"]]
    return [Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"]) for node in living]


def has_room_for(resources: Mapping[str, float]) -> bool:
    """Whether a node has so much free now, beside what is reserved."""
    free = _free_by_node()
    return any(all(node.get(name, 0.0) >= least for name, least in resources.items()) for node in free.values())


def gpus_of_cluster() -> float:
    """Raises ClusterUnavailable."""
    return sum(node.resources.get("GPU", 0.0) for node in living_nodes())


def _options(need: Need, group: Any, member: int) -> dict[str, Any]:
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=member)
    where = need.placement(need.site_of[member])
    return {"num_cpus": need.cpus, "num_gpus": need.gpus, "scheduling_strategy": strategy, **where}


def _free(nodes: Sequence[Node]) -> str:
    """The free resources of each node; Ray tells them per node only in a private place, and in total otherwise."""
    free = _free_by_node()
    if _ALL_NODES in free:
        return _amount(free[_ALL_NODES])
    return _listed([Node(node.id, node.address, free.get(node.id, {})) for node in nodes])


def _free_by_node() -> Mapping[str, Mapping[str, float]]:
    """Those of all nodes together, by `_ALL_NODES`, where this Ray does not tell them by node."""
    if not RAY.is_here:
        return {_ALL_NODES: ray.available_resources()}  # type: ignore[no-untyped-call]
    from ray._private.state import available_resources_per_node

    found: Mapping[str, Mapping[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]
    return found


def _listed(nodes: Sequence[Node]) -> str:
    return "; ".join(f"node {node.name}: {_amount(node.resources)}" for node in nodes) or "no node"


def _amount(resources: Mapping[str, float]) -> str:
    cpus, gpus = resources.get("CPU", 0), resources.get("GPU", 0)
    return f"{cpus:g} CPU{'s' * (cpus != 1)} and {gpus:g} GPU{'s' * (gpus != 1)}"
