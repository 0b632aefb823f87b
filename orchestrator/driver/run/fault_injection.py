"""Disturbs a run as its user wants to see it disturbed (`chaos`): what is due, and whom it meets."""

from __future__ import annotations

from orchestrator.config.plan import Chaos
from orchestrator.controller.fault_injection import Fault, drawn_fault, victim
from orchestrator.controller.membership import ControllerState, Member


class FaultInjection:
    """The disturbances of a run, each at its time. now: on the clock of the driver."""

    def __init__(self, chaos: Chaos, step_timeout_s: float) -> None:
        self._chaos = chaos
        self._step_timeout_s = step_timeout_s
        self._since: float | None = None
        self._due = self._next(0)

    def due(self, state: ControllerState, now: float) -> tuple[Fault, Member] | None:
        """The disturbance that is due, and whom it meets; it counts as done. One that meets nobody waits."""
        if self._since is None:
            if state.steps_seen == 0 or state.phase != "running":
                return None
            self._since = now
        if now - self._since < self._due.at_s:
            return None
        member = victim(self._due, state)
        if member is None:
            return None
        done, self._due = self._due, self._next(self._due.number + 1)
        return done, member

    def _next(self, number: int) -> Fault:
        chaos = self._chaos
        return drawn_fault(chaos.seed, number, chaos.every_s, chaos.kinds, self._step_timeout_s)
