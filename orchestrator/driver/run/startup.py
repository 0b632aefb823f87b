"""The point at which a run begins, and its first members, which are started before its record is open."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from orchestrator.cluster.actors.members import Members
from orchestrator.cluster.placement.actor_slots import ActorSlots
from orchestrator.config.plan import Plan
from orchestrator.controller import controller, events
from orchestrator.controller.state import ControllerState, Requirements
from orchestrator.driver.run.node_traits import NodeTraits, unnamed
from orchestrator.driver.supervision import TakenOver
from orchestrator.records.trace import Line

# Why a member on this node cannot take part; None when it can. The node is None for a member that could not prepare. The
# second argument: whether it works in a copy of the project.
NodeCheck = Callable[[str | None, bool], str | None]


@dataclass(frozen=True)
class RunStart:
    """The point at which a run begins. A run that is resumed has the values of its record; the defaults are those of a new
    one."""

    requirements: Requirements  # what it asks of the controller
    written: int = 0  # lines of its trace that stand
    loss: float | None = None  # the last one up to there; None where there is none
    metrics: Mapping[str, float] = field(default_factory=dict)  # the last ones up to there
    cut: Sequence[Line] = ()  # lines of the trace after them, with which what is computed again is compared
    redone: int = 0  # steps after them that the trace has told of, and that are done again
    barriers: int = 0  # number of its sync barriers that stand
    first: int = 0  # step that it begins with; above 0 in the state of another run
    # first step, and the one after the last, of each part that an audit repeats; empty where all are computed
    ranges: Sequence[tuple[int, int]] = ()
    # lines of the trace, evaluations and calls of `on_evaluation` that MLflow was not told of
    untold: Sequence[Mapping[str, Any]] = ()
    # what is known of a driver that died, by the process that watched it; None elsewhere
    taken_over: TakenOver | None = None
    # whether it was trained to its end by this driver, and the workers that had the result are gone
    weights_lost: bool = False

    @property
    def told_from(self) -> int:
        """The first step of which it tells MLflow."""
        return min((entry["step"] for entry in self.untold), default=self.written)


@dataclass(frozen=True)
class Startup:
    """The first members of a run, started already: they prepare while the driver opens the record."""

    run_start: RunStart  # where the run begins
    members: Members  # all members, to which commands are sent
    actor_slots: ActorSlots  # where members are started
    node_check: NodeCheck  # tells why a member on a node cannot take part
    state: ControllerState  # of the controller, after its first decision
    roles: Mapping[int, events.Role]  # of the members that were started, by number
    # nice level of this process: a higher one of members is worth a note; None on a private Ray
    niceness: int | None = None
    traits: Callable[[str], NodeTraits] = unnamed  # name and speed of a node, by its id

    @classmethod
    def begin(
        cls,
        run_start: RunStart,  # where the run begins
        members: Members,  # all members, which starts the first of them
        actor_slots: ActorSlots,  # where members are started
        node_check: NodeCheck = lambda _node, _in_copy: None,  # says why a member on a node cannot take part
        niceness: int | None = None,  # nice level of this process; None on a private Ray
        traits: Callable[[str], NodeTraits] = unnamed,  # name and speed of a node, by its id
    ) -> Self:
        state, commands = controller.initial(run_start.requirements, time.monotonic())
        roles = {command.member: command.role for command in commands if isinstance(command, events.Start)}
        for member, role in roles.items():
            place = actor_slots.take(member, role)
            assert place is not None, "no GPU is left out yet"
            members.start(member, role, place)
        return cls(run_start, members, actor_slots, node_check, state, roles, niceness, traits)


def beginning_of(plan: Plan) -> RunStart:
    """The start of a new run."""
    first = plan.run.first_step
    ranges = () if plan.segments is None else plan.segments.ranges
    return RunStart(requirements(plan, checkpoint=first or None), first, first=first, ranges=ranges)


def requirements(plan: Plan, *, checkpoint: int | None = None, generation: int = 0, member: int = 0) -> Requirements:
    """The requirements of the plan to the controller. checkpoint: to begin with; generation, member: the first numbers to
    give."""
    return Requirements(
        shards=plan.data.shards,
        members=plan.cluster.members,
        timeouts=plan.cluster.timeouts,
        whole=not plan.exchange.exact,
        falls_back=not plan.lockstep and not plan.replay,
        reports_stragglers=plan.update.local is None,
        by_speed=plan.assigns_by_speed,
        claims=plan.cluster.claims,
        leaps=plan.segments is not None,
        sites=plan.data.sites,
        sits_out=plan.data.sits_out,
        checkpoint=checkpoint,
        generation=generation,
        member=member,
    )
