"""The driver's side of the actors: start them, wait for whatever happens next, speak to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import RayError

from orchestrator.cluster.actors import Answer, MemberActor, Role
from orchestrator.errors import WorkerLost
from orchestrator.topologies import Schedule

_POLL_S = 2.0  # how long an idle actor holds a poll
_DRAIN_S = 5.0  # how long a member may take for its last words; one that is stopped never answers
_PIECE_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Place:
    """node: its id; project: the folder in which the member works, None for a carried copy; options: for `ray.remote`."""

    node: str
    project: str | None
    options: Mapping[str, Any]


Kind = Literal["prepared", "ran", "entries", "died"]


@dataclass(frozen=True)
class Heard:
    """An answer to `prepare` or `run`, entries of the outbox, or the news that the member died (`why`: in Ray's words)."""

    member: int
    kind: Kind
    answer: Answer
    entries: list[dict[str, Any]]
    why: str = ""


class Members:
    """All members of a run, by number, each in its place. The entries of member 0 are wanted at once; the others' may
    wait."""

    def __init__(self, roles: list[Role], settings: str, secret: bytes, places: Sequence[Place]) -> None:
        options: dict[str, Any] = {"max_restarts": 0, "concurrency_groups": {"control": 2}}
        actor: Any = ray.remote(**options)(MemberActor)
        self._nodes = [place.node for place in places]
        self._actors = [
            actor.options(**place.options).remote(role, settings, secret, place.project)
            for role, place in zip(roles, places, strict=True)
        ]
        self._seen = [0] * len(roles)
        self._waiting: dict[Any, tuple[int, Kind]] = {}
        for member in range(len(roles)):
            self._ask(member, "prepared", self._actors[member].prepare.remote())
            self._poll(member)

    def run(self, member: int, generation: dict[str, Any], peers: dict[int, Any], facts: Any) -> None:
        self._ask(member, "ran", self._actors[member].run.remote(generation, member, peers, facts))

    def save_weights(self, member: int, path: str) -> None:
        """Bring the trained weights of the member into a file here: written by itself on this node, and in pieces through
        Ray from another, so that a big model needs no more memory than a piece. Raises WorkerLost when it is gone."""
        try:
            if self._nodes[member] == ray.get_runtime_context().get_node_id():
                ray.get(self._actors[member].save_weights.remote(path))
            else:
                self._fetch_weights(self._actors[member], path)
        except RayError as error:
            raise WorkerLost(f"the trained weights were lost with worker {member}", details=str(error)) from error

    def _fetch_weights(self, actor: Any, path: str) -> None:
        source = ray.get(actor.save_weights.remote(None))
        with open(path, "wb") as file:
            while piece := ray.get(actor.read_weights.remote(source, file.tell(), _PIECE_BYTES)):
                file.write(piece)

    def hear(self, timeout_s: float) -> Iterator[Heard]:
        """Whatever came within `timeout_s`; nothing when nothing came."""
        if not self._waiting:
            return
        ready, _ = ray.wait(list(self._waiting), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        for reference in ready:
            member, kind = self._waiting.pop(reference)
            try:
                answer = ray.get(reference)
            except RayError as error:
                yield Heard(member, "died", {}, [], str(error))
                continue
            if kind == "entries":
                self._seen[member] += len(answer)
                self._poll(member)
                yield Heard(member, "entries", {}, answer)
            else:
                yield Heard(member, kind, answer, [])

    def drain(self, member: int) -> list[dict[str, Any]]:
        """What the member still has to say after its last answer."""
        try:
            entries: list[dict[str, Any]] = ray.get(
                self._actors[member].take.remote(self._seen[member], 0.0, 0.0), timeout=_DRAIN_S
            )
        except RayError:
            return []
        self._seen[member] += len(entries)
        return entries

    def _poll(self, member: int) -> None:
        gather_s = 0.05 if member == 0 else 0.5
        self._ask(member, "entries", self._actors[member].take.remote(self._seen[member], _POLL_S, gather_s))

    def _ask(self, member: int, kind: Kind, reference: Any) -> None:
        self._waiting[reference] = (member, kind)


def roles(schedule: Schedule) -> list[Role]:
    """The role of each member of a schedule: workers first."""
    workers: list[Role] = ["worker"] * schedule.workers
    servers: list[Role] = ["server"] * schedule.servers
    return workers + servers
