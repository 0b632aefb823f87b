"""The driver's side of the actors: start them, wait for whatever happens next, speak to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import RayError

from orchestrator.cluster.actors import Answer, MemberActor, Role
from orchestrator.errors import WorkerLost
from orchestrator.topologies import Schedule

_POLL_S = 2.0  # how long an idle actor holds a poll


@dataclass(frozen=True)
class Heard:
    """An answer to `prepare` or `run`, entries of the outbox, or the news that the member died (`why`: in Ray's words)."""

    member: int
    kind: Literal["prepared", "ran", "entries", "died"]
    answer: Answer
    entries: list[dict[str, Any]]
    why: str = ""


class Members:
    """All members of a run, by number. reporter: whose entries are wanted at once; the others' may wait."""

    def __init__(self, roles: list[Role], settings: str, secret: bytes, project: str, cpus: float) -> None:
        options: dict[str, Any] = {"num_cpus": cpus, "max_restarts": 0, "concurrency_groups": {"control": 2}}
        actor: Any = ray.remote(**options)(MemberActor)
        self._actors = [actor.remote(role, settings, secret, project) for role in roles]
        self._seen = [0] * len(roles)
        self._waiting: dict[Any, tuple[int, str]] = {}
        for member in range(len(roles)):
            self._ask(member, "prepared", self._actors[member].prepare.remote())
            self._poll(member)

    def run(self, member: int, generation: dict[str, Any], peers: dict[int, Any], facts: Any) -> None:
        self._ask(member, "ran", self._actors[member].run.remote(generation, member, peers, facts))

    def save_weights(self, member: int, path: str) -> None:
        """Have the member write the trained weights. Raises WorkerLost when it is gone."""
        try:
            ray.get(self._actors[member].save_weights.remote(path))
        except RayError as error:
            raise WorkerLost(f"the trained weights were lost with worker {member}", details=str(error)) from error

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
                yield Heard(member, "prepared" if kind == "prepared" else "ran", answer, [])

    def drain(self, member: int) -> list[dict[str, Any]]:
        """What the member still has to say after its last answer."""
        try:
            entries: list[dict[str, Any]] = ray.get(self._actors[member].take.remote(self._seen[member], 0.0, 0.0))
        except RayError:
            return []
        self._seen[member] += len(entries)
        return entries

    def _poll(self, member: int) -> None:
        gather_s = 0.05 if member == 0 else 0.5
        self._ask(member, "entries", self._actors[member].take.remote(self._seen[member], _POLL_S, gather_s))

    def _ask(self, member: int, kind: str, reference: Any) -> None:
        self._waiting[reference] = (member, kind)


def roles(schedule: Schedule) -> list[Role]:
    """The role of each member of a schedule: workers first."""
    workers: list[Role] = ["worker"] * schedule.workers
    servers: list[Role] = ["server"] * schedule.servers
    return workers + servers
