"""What a run does next: events in, commands and a reason out, the time as an argument (law 6). No I/O, no Ray, no torch.

    preparing --all ready and alike--> running --all finished and alike--> ended
        any failure, death, interruption or time-out                   --> ended, with its error

Members are numbered: workers first, then servers. A member that withdraws is not the cause: it saw that another one failed or
was gone. So the run waits `GRACE_S` for the true cause before it ends for a withdrawal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from orchestrator.errors import ClusterUnavailable, Inconsistent, Interrupted, OrchestratorError, RunFailed, WorkerLost

GRACE_S = 10.0


@dataclass(frozen=True)
class Ready:
    """A member is prepared. facts: what it found out about the run; a server finds out nothing."""

    member: int
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Failed:
    member: int
    error: OrchestratorError


@dataclass(frozen=True)
class Withdrew:
    member: int
    why: str


@dataclass(frozen=True)
class Died:
    """why: for the message; details: all that is known, for the run's folder."""

    member: int
    why: str
    details: str = ""


@dataclass(frozen=True)
class Finished:
    """A member has done all steps. digest: of its parameters; None for a server."""

    member: int
    digest: str | None


@dataclass(frozen=True)
class Interrupt:
    signal: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Ready | Failed | Withdrew | Died | Finished | Interrupt | Tick


@dataclass(frozen=True)
class Begin:
    """Start the generation: every member is ready, and these are the facts they agree on."""

    facts: Mapping[str, Any]


@dataclass(frozen=True)
class End:
    """The run is over; error: None when it finished."""

    error: OrchestratorError | None


Command = Begin | End


@dataclass(frozen=True)
class State:
    """workers + servers members; `started`: when the members were asked to prepare; times in seconds of one clock."""

    workers: int
    servers: int
    started: float
    start_timeout_s: float
    phase: Literal["preparing", "running", "ended"] = "preparing"
    ready: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    finished: Mapping[int, str | None] = field(default_factory=dict)
    withdrawn: tuple[float, str] | None = None

    @property
    def members(self) -> int:
        return self.workers + self.servers

    def name(self, member: int) -> str:
        return f"worker {member}" if member < self.workers else f"server {member - self.workers}"


def decide(state: State, event: Event, now: float) -> tuple[State, tuple[Command, ...], str]:
    """The next state, what to do, and why (empty when nothing changes)."""
    if state.phase == "ended":
        return state, (), ""
    if isinstance(event, Ready):
        return _ready(state, event)
    if isinstance(event, Failed):
        return _end(state, event.error, f"{state.name(event.member)} failed")
    if isinstance(event, Died):
        return _died(state, event)
    if isinstance(event, Withdrew):
        withdrawn = state.withdrawn or (now, f"{state.name(event.member)}: {event.why}")
        return replace(state, withdrawn=withdrawn), (), f"{state.name(event.member)} withdrew: {event.why}"
    if isinstance(event, Finished):
        return _finished(state, event)
    if isinstance(event, Interrupt):
        return _end(state, Interrupted(f"interrupted by {event.signal}"), event.signal)
    return _tick(state, now)


def _ready(state: State, event: Ready) -> tuple[State, tuple[Command, ...], str]:
    state = replace(state, ready={**state.ready, event.member: event.facts})
    if len(state.ready) < state.members:
        return state, (), ""
    facts = state.ready[0]
    for member in range(1, state.workers):
        error = _disagreement(member, facts, state.ready[member])
        if error is not None:
            return _end(state, error, "the workers disagree")
    return replace(state, phase="running"), (Begin(facts),), f"all {state.members} members are ready and agree"


def _disagreement(member: int, facts: Mapping[str, Any], others: Mapping[str, Any]) -> Inconsistent | None:
    """Admission by proof (rule B4): every fact has to be equal but the machine, which explains why others are not."""
    different = sorted(key for key in facts if key != "machine" and facts[key] != others.get(key))
    if not different:
        return None
    if different == ["reference"]:
        here, there = facts.get("machine", {}), others.get("machine", {})
        why = [f"{key} {here[key]} and {there.get(key)}" for key in here if here[key] != there.get(key)]
        return Inconsistent(
            f"workers 0 and {member} compute different bits from the same micro-batch ({'; '.join(why) or 'like machines'})",
            "run on machines of one kind, or make them alike: ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and MKL_CBWR",
        )
    return Inconsistent(
        f"workers 0 and {member} prepared different runs: {', '.join(different)} differ",
        "model() and datasets() must depend on nothing but their arguments, their files and the seeded generators",
    )


def _died(state: State, event: Died) -> tuple[State, tuple[Command, ...], str]:
    if event.member in state.finished:
        return state, (), ""
    name = state.name(event.member)
    remedy = "unless somebody killed it, look for the kernel's out-of-memory killer (dmesg); then launch again"
    return _end(state, WorkerLost(f"{name} died: {event.why}", remedy, event.details), f"{name} died: {event.why}")


def _finished(state: State, event: Finished) -> tuple[State, tuple[Command, ...], str]:
    state = replace(state, finished={**state.finished, event.member: event.digest})
    if len(state.finished) < state.members:
        return state, (), ""
    digests = {digest for member, digest in state.finished.items() if member < state.workers}
    if len(digests) > 1:
        return _end(
            state, Inconsistent(f"the workers ended with different parameters: {sorted(map(str, digests))}"), ""
        )
    return _end(state, None, "all steps are done")


def _tick(state: State, now: float) -> tuple[State, tuple[Command, ...], str]:
    if state.phase == "preparing" and now - state.started > state.start_timeout_s:
        late = [state.name(member) for member in range(state.members) if member not in state.ready]
        error = ClusterUnavailable(
            f"{', '.join(late)} not ready after {state.start_timeout_s:g} s",
            "raise cluster.start_timeout_s, or ask for less",
        )
        return _end(state, error, "the start took too long")
    if state.withdrawn is not None and now - state.withdrawn[0] > GRACE_S:
        return _end(state, RunFailed(state.withdrawn[1]), "no member named the cause")
    return state, (), ""


def _end(state: State, error: OrchestratorError | None, reason: str) -> tuple[State, tuple[Command, ...], str]:
    return replace(state, phase="ended"), (End(error),), reason
