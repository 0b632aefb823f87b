"""The changes of one decision: the new state, the commands and the reasons. It lives for one call of `decide`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from orchestrator.controller.events import Command, End, Kill, Role, Start
from orchestrator.controller.state import ControllerState, GenerationStatus, Member, Phase
from orchestrator.errors import OrchestratorError

Value = TypeVar("Value", ControllerState, Member, GenerationStatus)


class Decision:
    """Collects what one decision changes, with a method for each kind of change; `decide` returns its state, commands
    and reasons."""

    def __init__(self, state: ControllerState, now: float) -> None:
        self.state = state
        self.now = now
        self.commands: list[Command] = []
        self.reasons: list[str] = []

    def set(self, **changes: Any) -> None:
        self.state = _changed(self.state, changes)

    def enter(self, phase: Phase) -> None:
        if self.state.phase != phase:
            self.set(phase=phase, since=self.now)

    def say(self, reason: str) -> None:
        self.reasons.append(reason)

    def do(self, command: Command) -> None:
        self.commands.append(command)

    def update(self, member: int, **changes: Any) -> None:
        changed = _changed(self.state.members[member], changes)
        self.set(members=self.state.members.with_one(member, changed))

    def generation(self) -> GenerationStatus:
        assert self.state.generation is not None
        return self.state.generation

    def set_generation(self, **changes: Any) -> None:
        self.set(generation=_changed(self.generation(), changes))

    def start(self, role: Role) -> None:
        member = Member(id=self.state.next_member, role=role, asked=self.now, heard=self.now, moved=self.now)
        self.set(members=self.state.members.with_one(member.id, member), next_member=member.id + 1)
        self.do(Start(member.id, role))

    def remove(self, member: Member) -> None:
        self.set(members=self.state.members.without(member.id))

    def kill(self, member: Member, why: str) -> None:
        self.remove(member)
        self.do(Kill(member.id, why))

    def end(self, error: OrchestratorError | None, reason: str) -> None:
        self.set(phase="ended")
        self.do(End(error))
        self.say(reason)


def _changed(value: Value, changes: Mapping[str, Any]) -> Value:
    """As `dataclasses.replace`, which takes ten times as long for values of so many fields, and is half of a decision."""
    held = vars(value)
    assert changes.keys() <= held.keys(), f"{type(value).__name__} has no {sorted(changes.keys() - held.keys())}"
    made = object.__new__(type(value))
    vars(made).update(held)
    vars(made).update(changes)
    return made
