"""The driver's loop: what members say goes to the controller, to the files and to MLflow; what the controller says is done.

All decisions are `control.controller.decide`; all numbers come from the members; here they only pass through.
"""

from __future__ import annotations

import math
import time
from typing import Any

from orchestrator.cluster.members import Heard, Members
from orchestrator.control import controller
from orchestrator.control.placement import place
from orchestrator.driver.outcome import Outcome
from orchestrator.driver.progress import Progress
from orchestrator.driver.record import Record
from orchestrator.driver.signals import Mailbox
from orchestrator.errors import Inconsistent, from_dict
from orchestrator.records.trace import Disagreement, Line, Merger
from orchestrator.settings import Settings
from orchestrator.topologies import Schedule

_TICK_S = 0.25
_REMEMBERED_LINES = 10_000


class Session:
    """One run of prepared members, from their first answer to the end of the last step."""

    def __init__(
        self,
        settings: Settings,
        schedule: Schedule,
        members: Members,
        record: Record,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._schedule = schedule
        self._members = members
        self._tracker = record.tracker
        self._journal = record.journal
        self._trace = record.trace
        self._progress = progress
        self._merger = Merger(schedule.workers)
        self._said: dict[str, int] = {}
        self._addresses: dict[int, dict[str, Any]] = {}
        self._nodes: dict[int, str] = {}
        self._pids: dict[int, int] = {}
        self._dead: set[int] = set()
        self._told_of_trouble = False
        self.outcome = Outcome(workers=schedule.workers)
        self._state = controller.State(
            schedule.workers, schedule.servers, time.monotonic(), settings.cluster.start_timeout_s
        )

    def run(self, mailbox: Mailbox) -> Outcome:
        """Until the controller says the end. Never raises for what a member or the user did: see `outcome.error`."""
        while self._state.phase != "ended":
            if mailbox.signal is not None:
                self._decide(controller.Interrupt(mailbox.signal))
            for heard in self._members.hear(_TICK_S):
                self._hear(heard)
            self._decide(controller.Tick())
            self._track()
        for member in range(self._schedule.members):
            self._entries(member, self._members.drain(member))
        return self.outcome

    def _track(self) -> None:
        self._tracker.tick()
        trouble = self._tracker.trouble
        if trouble is not None and not self._told_of_trouble:
            self._told_of_trouble = True
            self._progress.say(
                f"warning: MLflow does not take what this run reports; it goes on, and its files stay complete: {trouble}"
            )

    def _hear(self, heard: Heard) -> None:
        member, answer = heard.member, heard.answer
        if heard.kind == "entries":
            self._entries(member, heard.entries)
        elif heard.kind == "died":
            self._died(member, heard.why)
        elif "failed" in answer:
            self._decide(controller.Failed(member, from_dict(answer["failed"])))
        elif "withdrew" in answer:
            self._decide(controller.Withdrew(member, answer["withdrew"]))
        elif heard.kind == "prepared":
            self._addresses[member] = answer["addresses"]
            self._nodes[member] = answer["node"]
            self._member_started(member, answer)
            self._decide(controller.Ready(member, answer["facts"]))
        else:
            self.outcome.digest = answer["digest"] or self.outcome.digest
            self.outcome.training_s = time.monotonic() - (self.outcome.first_step_at or time.monotonic())
            self._decide(controller.Finished(member, answer["digest"]))

    def _decide(self, event: controller.Event) -> None:
        before = self._state.phase
        self._state, commands, reason = controller.decide(self._state, event, time.monotonic())
        if reason:
            self._journal.append([{"event": "decided", "from": before, "to": self._state.phase, "reason": reason}])
        for command in commands:
            if isinstance(command, controller.Begin):
                self._begin(command.facts)
            else:
                self.outcome.error = self.outcome.error or command.error

    def _begin(self, facts: Any) -> None:
        shards = place(self._settings.data.shards, self._schedule.workers)
        generation = {
            "number": 0,
            "topology": self._settings.topology.name,
            "options": self._settings.topology.options(),
            "workers": self._schedule.workers,
            "shards": shards,
        }
        self._journal.append([{"event": "generation_started", **generation, "steps": facts["steps"]}])
        self.outcome.generations = 1
        self._progress.start(facts["steps"])
        links = self._schedule.links()
        for member in range(self._schedule.members):
            linked = {a if b == member else b for a, b in links if member in (a, b)}
            peers = {peer: self._addresses[peer][self._medium(member, peer)] for peer in linked}
            self._members.run(member, generation, peers, facts)

    def _medium(self, member: int, peer: int) -> str:
        """How a pair is connected: by a Unix socket, and so by shared memory, on one node; by TCP between nodes."""
        by_tcp = self._settings.transport == "tcp" or self._nodes[member] != self._nodes[peer]
        return "tcp" if by_tcp else "unix"

    def _entries(self, member: int, entries: list[dict[str, Any]]) -> None:
        lines = [entry["trace"] for entry in entries if "trace" in entry]
        self._record_trace(lines)
        for entry in entries:
            if "printed" in entry:
                self._print(member, entry["printed"])
            elif "pid" in entry:
                self._pids[member] = entry["pid"]
            elif entry.get("event") == "evaluated" and member == 0:
                self._evaluated(entry)

    def _record_trace(self, lines: list[Line]) -> None:
        try:
            new = self._merger.add(lines)
        except Disagreement as error:
            fault = Inconsistent(str(error), "this is a fault of orchestrator")
            self._decide(controller.Failed(0, fault))
            self.outcome.error = self.outcome.error or fault  # also when the last words come after the end
            return
        if not new:
            return
        self._trace.append(new)
        self.outcome.first_step_at = self.outcome.first_step_at or time.monotonic()
        for line in new:
            self.outcome.steps = line["step"] + 1
            self.outcome.loss = float.fromhex(line["loss"])
            self._tracker.metrics(line["step"], {"train/loss": self.outcome.loss})
        self._progress.step(self.outcome.steps, self.outcome.loss or 0.0)

    def _evaluated(self, entry: dict[str, Any]) -> None:
        self.outcome.metrics = entry["metrics"]
        self._tracker.metrics(entry["step"], entry["metrics"])
        self._journal.append([{**entry, "metrics": {key: _plain(value) for key, value in entry["metrics"].items()}}])
        shown = ", ".join(f"{name} {value:.4g}" for name, value in entry["metrics"].items())
        self._progress.say(f"after step {entry['step'] + 1}: {shown}")

    def _died(self, member: int, details: str) -> None:
        """Every question that waits for a dead member's answer ends in the same news; the first is enough."""
        if member in self._dead:
            return
        self._dead.add(member)
        process = f"its process (pid {self._pids[member]})" if member in self._pids else "its process"
        when = f"at step {self.outcome.steps}" if self._state.phase == "running" else "before the first step"
        self._journal_event(f"{self._role(member)}_lost", member, step=self.outcome.steps)
        self._decide(controller.Died(member, f"{process} ended {when}", details))

    def _member_started(self, member: int, answer: dict[str, Any]) -> None:
        details = {"pid": answer["pid"], "node": answer["node"]}
        if member < self._schedule.workers:
            details["shards"] = place(self._settings.data.shards, self._schedule.workers)[member]
        self._journal_event(f"{self._role(member)}_started", member, **details)

    def _journal_event(self, event: str, member: int, **details: Any) -> None:
        role = self._role(member)
        number = member if role == "worker" else member - self._schedule.workers
        self._journal.append([{"event": event, role: number, "rank": member, **details}])

    def _role(self, member: int) -> str:
        return "worker" if member < self._schedule.workers else "server"

    def _print(self, member: int, line: str) -> None:
        """What the pipeline prints, with its worker; the same line from the other workers is shown once."""
        if len(self._said) > _REMEMBERED_LINES:
            self._said.clear()
        first = self._said.setdefault(line, member)
        if first == member:
            self._progress.say(f"[{self._state.name(member)}] {line}")


def _plain(value: float) -> float | str:
    """JSON has no NaN."""
    return value if math.isfinite(value) else str(value)
