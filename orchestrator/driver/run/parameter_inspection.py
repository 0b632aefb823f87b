"""A look at a running model: the driver is asked, asks the servers, and puts their answers together.

A server answers beside its work, from what it holds (`worker.asynchronous.held_slice`); members wait for nothing, and what a
run comes to does not depend on who looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.plan import Plan
from orchestrator.driver.run.inspection_requests import InspectionRequests, Request
from orchestrator.errors import OrchestratorError, RunFailed, UsageError

_SERVE = "launch one with topology=parameter_server and sync=ssp, asp or bap"


@dataclass
class _Asked:
    """A question about parameters that servers have been asked. servers: that have not answered yet."""

    servers: set[int]
    answers: list[Mapping[str, Any]] = field(default_factory=list)


def refusal(plan: Plan, servers: Sequence[int]) -> OrchestratorError | None:
    """Why nobody can look at a run of this plan; None when one can. servers: of the present generation."""
    if plan.lockstep or plan.mode.execution != "sprints":
        return UsageError(
            f"with sync={plan.sync.name} servers do not hold parameters", _SERVE, code="look.free-replicas"
        )
    if plan.replay:
        return UsageError(
            "it repeats another run, and servers of a replay hold no parameters", _SERVE, code="look.of-replay"
        )
    if not servers:
        name = plan.exchange.topology.name
        return UsageError(
            f"it has no server now, with topology={name}, and only servers hold parameters",
            _SERVE,
            code="look.no-servers",
        )
    return None


class ParameterInspection:
    """The requests to one run. ask: has a server look, given (server, token, request); what it says comes to `hear`."""

    def __init__(self, requests: InspectionRequests, plan: Plan, ask: Callable[[int, str, Request], None]) -> None:
        self._requests = requests
        self._plan = plan
        self._ask = ask
        self._asked: dict[str, _Asked] = {}

    def tick(self, servers: Sequence[int]) -> None:
        """Take in new requests, and pass each on to the servers or refuse it. servers: of the present generation."""
        for token, request in self._requests.requests():
            refused = refusal(self._plan, servers)
            if refused is not None:
                self._requests.answer(token, {"failed": refused.as_dict()})
                continue
            self._asked[token] = _Asked(set(servers))
            for server in servers:
                self._ask(server, token, request)

    def hear(self, server: int, answer: Mapping[str, Any]) -> None:
        """Take the answer of a server. answer: with the `token` of what was asked."""
        token = answer["token"]
        asked = self._asked.get(token)
        if asked is None:
            return
        asked.servers.discard(server)
        asked.answers.append({**answer, "server": server})
        self._finish(token, asked)

    def gone(self, member: int) -> None:
        """This member is dead: it holds nothing any more."""
        for token, asked in list(self._asked.items()):
            if member in asked.servers:
                asked.servers.discard(member)
                asked.answers.append({"server": member})
                self._finish(token, asked)

    def _finish(self, token: str, asked: _Asked) -> None:
        """Answer the request once all servers have answered. If one holds nothing yet, the asking process asks again."""
        if asked.servers:
            return
        del self._asked[token]
        failed = next((each["failed"] for each in asked.answers if "failed" in each), None)
        if failed is not None:
            self._requests.answer(token, {"failed": failed})
            return
        pieces = sorted((each for each in asked.answers if "clocks" in each), key=lambda each: int(each["part"]))
        if len(pieces) < len(asked.answers):
            self._requests.answer(token, {"slices": []})
            return
        raw = [piece["values"] for piece in pieces]
        kept = ("server", "clocks", "first")
        slices = [{**{key: piece[key] for key in kept}, "bytes": len(piece["values"])} for piece in pieces]
        self._requests.answer(token, {"slices": slices, "parameters": pieces[0]["parameters"]}, b"".join(raw))

    def close(self) -> None:
        """The run has ended. All who wait are told."""
        self._requests.clear()
        over = RunFailed("the run has ended meanwhile", code="look.run-ended").as_dict()
        for token in (*self._asked, *(token for token, _ in self._requests.requests())):
            self._requests.answer(token, {"failed": over})
