"""Disturbs a run as its user wants to see it disturbed (`chaos`): what is due, and whom it meets."""

from __future__ import annotations

from orchestrator.config.plan import Chaos
from orchestrator.controller.fault_injection import Fault, drawn_fault, victim
from orchestrator.controller.state import ControllerState, Member, present


class FaultInjection:
    """The disturbances of a run, each at its time. now: on the clock of the driver."""

    def __init__(self, chaos: Chaos, step_timeout_s: float) -> None:
        self._chaos = chaos
        self._step_timeout_s = step_timeout_s
        self._since: float | None = None
        self._killed: int | None = None  # the member of the last disturbance, until its death is known
        self._paused_until = 0.0
        self._due = self._next(0)

    def due(self, state: ControllerState, now: float) -> tuple[Fault, Member] | None:
        """The fault that is due and its member; it counts as done. A fault for which there is no member waits."""
        if self._since is None:
            if state.steps_seen == 0 or state.phase != "running":
                return None
            self._since = now
        if now - self._since < self._due.at_s or not self._is_over(state, now):
            return None
        member = victim(self._due, state)
        if member is None:
            return None
        done, self._due = self._due, self._next(self._due.number + 1)
        self._killed = member.id if done.kind == "kill" else None
        self._paused_until = now + done.pause_s if done.kind == "pause" else 0.0
        return done, member

    def _is_over(self, state: ControllerState, now: float) -> bool:
        """Whether the last disturbance has had its effect on the state. Several may be overdue after a long recovery, and
        without this all would come before the first death is known."""
        return now >= self._paused_until and self._killed not in {member.id for member in present(state)}

    def _next(self, number: int) -> Fault:
        chaos = self._chaos
        return drawn_fault(chaos.seed, number, chaos.every_s, chaos.kinds, self._step_timeout_s)
