"""The controller against a simulated world (rules C2, C5, D): at any moment and in any order members die, stall, lose
contact, join and lag.

Held at every command: see `simulated.World`. Held at the end: once the faults stop, the run ends, with all steps done,
or soon after an interruption.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from orchestrator.control.events import Interrupt
from orchestrator.control.membership import Terms
from orchestrator.errors import Interrupted
from tests.control.simulated import Process, World

pytestmark = pytest.mark.slow

STEP_TIMEOUT_S = 60.0
ROUNDS = 600


class Run(RuleBasedStateMachine):
    """Faults stay below the bounds at which a run rightly ends (rule D3, joiners that come to nothing)."""

    world: World

    @initialize(
        workers=st.integers(1, 4),
        least=st.integers(1, 4),
        more=st.integers(0, 2),
        spares=st.integers(0, 1),
        servers=st.integers(0, 2),
        resumed=st.booleans(),
        deaf=st.booleans(),
    )
    def launch(self, workers: int, least: int, more: int, spares: int, servers: int, resumed: bool, deaf: bool) -> None:
        terms = Terms(
            shards=6,
            start=workers,
            least=min(least, workers),
            most=workers + more,
            spares=spares,
            servers=servers,
            start_timeout_s=10_000.0,
            step_timeout_s=STEP_TIMEOUT_S,
            checkpoint=2 if resumed else None,
        )
        self.world = World(terms, deaf=deaf)
        self.early_losses = 0
        self.quarrels = 0
        self.losses: dict[int, set[int]] = {}
        self.stalls: set[int] = set()
        self.interrupted: tuple[int, int] | None = None

    def pick(self, data: Any, processes: list[Process]) -> Process | None:
        return data.draw(st.sampled_from(processes), label="process") if processes and not self.world.end else None

    @rule(data=st.data(), times=st.integers(1, 30))
    def go_on(self, data: Any, times: int) -> None:
        """Members act and their news arrive, in some order."""
        for _ in range(times):
            if not self.happens(data):
                return

    def happens(self, data: Any) -> bool:
        world = self.world
        choices: list[tuple[Process, str]] = []
        for process in world.processes.values():
            if process.state == "starting":
                choices.append((process, "ready"))
            if process.news:
                choices.append((process, "deliver"))
            choices += [(process, action) for action in world.actions(process)]
        if not choices or world.end:
            return False
        process, action = choices[data.draw(st.integers(0, len(choices) - 1), label="choice")]
        self.perform(process, action)
        return True

    def perform(self, process: Process, action: str) -> None:
        if action == "ready":
            self.world.ready(process)
        elif action == "deliver":
            self.world.deliver(process)
        else:
            self.world.act(process, action)

    @rule(seconds=st.floats(0.05, 1.5))
    def time_passes(self, seconds: float) -> None:
        if not self.world.end:
            self.world.tick(seconds)

    @rule(data=st.data(), heard=st.booleans())
    def die(self, data: Any, heard: bool) -> None:
        process = self.pick(data, self.world.living())
        if process is not None and self.may_lose(process):
            self.world.kill(process, heard)

    def may_lose(self, process: Process) -> bool:
        if not self.world.begins or process.state == "starting":
            self.early_losses += 1
            return self.early_losses <= 2
        number = self.world.begins[-1].generation
        at = self.moment()
        if len(set().union(*(self.losses.get(step, set()) for step in at)) | {number}) > 2:
            return False
        for step in at:
            self.losses.setdefault(step, set()).add(number)
        return True

    def moment(self) -> list[int]:
        """The steps that somebody may be in now."""
        positions = [process.position[0] for process in self.world.processes.values() if process.position]
        generation = self.world.state.generation
        known = [*positions, self.world.state.seen, generation.steps if generation else 0]
        return list(range(max(0, min(known) - 1), max(known) + 2))

    @precondition(lambda self: self.world.begins)
    @rule(data=st.data())
    def stall(self, data: Any) -> None:
        process = self.pick(data, [process for process in self.world.living() if process.acts])
        if process is not None and not self.stalls & set(self.moment()):
            self.stalls |= set(self.moment())
            process.stopped = True

    @rule()
    def stalls_are_found(self) -> None:
        for _ in range(int(STEP_TIMEOUT_S) + 2):
            if not self.world.end:
                self.world.tick(1.0)

    @rule(data=st.data())
    def lose_contact(self, data: Any) -> None:
        running = [process for process in self.world.living() if process.acts]
        accuser = self.pick(data, running)
        if accuser is None or len(running) < 2 or self.quarrels >= 4:
            return
        accused = data.draw(st.sampled_from([process for process in running if process is not accuser]))
        self.quarrels += 1
        self.world.quarrel(accuser, accused)

    @precondition(lambda self: self.world.begins)
    @rule(data=st.data())
    def find_no_room(self, data: Any) -> None:
        process = self.pick(data, [process for process in self.world.living() if process.state == "starting"])
        if process is not None:
            self.world.no_room(process)

    @rule()
    def save(self) -> None:
        self.world.save()

    @precondition(lambda self: self.world.begins)
    @rule(really=st.sampled_from([False, False, True]))
    def interrupt(self, really: bool) -> None:
        if really and not self.world.end:
            self.interrupted = self.interrupted or (self.furthest(), len(self.world.begins))
            self.world.tell(Interrupt("SIGTERM"))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.finish()

    def finish(self) -> None:
        world = self.world
        for _ in range(ROUNDS):
            if world.end:
                break
            for process in list(world.processes.values()):
                if process.state == "starting":
                    world.ready(process)
                while process.news and not world.end:
                    world.deliver(process)
                for action in list(world.actions(process))[:1]:
                    world.act(process, action)
            if self.interrupted is not None:
                world.save()
            if not world.end:
                world.tick(0.5)
        story = "\n".join(world.log[-60:])
        assert world.end is not None, f"the run does not end:\n{story}"
        error = world.end.error
        assert error is None or (self.interrupted is not None and isinstance(error, Interrupted)), f"{error!r}\n{story}"
        if self.interrupted is not None:
            steps, begins = self.interrupted
            assert self.furthest() <= steps + 2 + len(world.begins) - begins, f"it did not stop:\n{story}"

    def furthest(self) -> int:
        return max((process.position[0] for process in self.world.processes.values() if process.position), default=0)


TestRun = Run.TestCase
TestRun.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
