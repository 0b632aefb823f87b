"""The controller against a simulated world (rules C2, C5, D): at any moment and in any order members die, stall, lose
contact, join and lag.

    python -m tests.controller.test_elastic 0-100000       hunt for a run that does not end as it should

Held at every command: see `simulated.World`. Held at the end: once the faults stop, the run ends, with all steps done,
or soon after an interruption. A micro-batch that kills whoever computes it ends the run by its name, whatever dies with them.
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from orchestrator.controller.events import Interrupt, Timed
from orchestrator.errors import Interrupted, WorkerLost
from orchestrator.records.progress import advances_of, latest, steps_of
from tests.controller.asked import required
from tests.controller.simulated import AT_REST, Process, World
from tests.products import fewer, thinned

pytestmark = pytest.mark.slow

STEP_TIMEOUT_S = 60.0
ROUNDS = 600
LIVES = [25, 3000]
DICE = st.randoms(use_true_random=True)


class Run(RuleBasedStateMachine):
    """Faults stay below the bounds at which a run rightly ends (rule D3, joiners that fail)."""

    world: World

    @initialize(
        workers=st.integers(1, 4),
        least=st.integers(1, 4),
        more=st.integers(0, 2),
        spares=st.integers(0, 1),
        servers=st.integers(0, 2),
        resumed=st.booleans(),
        deaf=st.booleans(),
        near=st.booleans(),
        races=st.booleans(),
        shard_state=st.booleans(),
        inherits=st.booleans(),
        stages=st.sampled_from([1, 1, 2, 3]),
    )
    def launch(
        self,
        workers: int,
        least: int,
        more: int,
        spares: int,
        servers: int,
        resumed: bool,
        deaf: bool,
        near: bool,
        races: bool,
        shard_state: bool = False,
        inherits: bool = False,
        stages: int = 1,
        second_vote: bool = True,
    ) -> None:
        if stages > 1:  # which servers and what shards keep do not go with
            workers, servers, shard_state, inherits = max(workers, stages), 0, False, False
        requirements = required(
            shards=6,
            start=workers,
            least=max(stages, min(least, workers)),
            most=workers + more,
            spares=spares,
            servers=servers,
            stages=stages,
            start_s=10_000.0,
            step_s=STEP_TIMEOUT_S,
            checkpoint=2 if resumed else None,
            falls_back=inherits,
            reports_stragglers=True,
            by_speed=not inherits,
        )
        keeps = shard_state or inherits
        self.world = World(requirements, deaf=deaf, near=near, races=races, shard_state=keeps, second_vote=second_vote)
        self.early_losses = 0
        self.all_losses = 0
        self.near_losses = 0
        self.at_work: Counter[tuple[int | None, int | None]] = Counter()
        self.link_failures = 0
        self.drains = 0
        self.losses: dict[int, set[int]] = {}
        self.stalls: set[int] = set()
        self.interrupted: tuple[int, int] | None = None

    def launch_any(self, dice: random.Random, **settled: Any) -> None:
        """Launch a run of any size. settled: what is not drawn."""
        self.launch(
            workers=dice.randint(1, 4),
            least=dice.randint(1, 4),
            more=dice.randint(0, 2),
            spares=dice.randint(0, 1),
            servers=dice.randint(0, 2),
            resumed=dice.random() < 0.5,
            deaf=dice.random() < 0.5,
            near=dice.random() < 0.5,
            races=dice.random() < 0.5,
            **settled,
        )

    def pick(self, dice: random.Random, processes: list[Process]) -> Process | None:
        return dice.choice(processes) if processes and not self.world.end else None

    @rule(dice=DICE, times=st.integers(1, 30))
    def go_on(self, dice: random.Random, times: int) -> None:
        """Members act and their news arrive, in some order."""
        for _ in range(times):
            if not self.happens(dice):
                return

    def happens(self, dice: random.Random) -> bool:
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
        self.perform(*dice.choice(choices))
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

    @rule(dice=DICE, rounds=st.integers(1, 3))
    def report_times(self, dice: random.Random, rounds: int) -> None:
        """Everybody who takes part, twice mostly, so that shards are dealt anew where that pays."""
        seconds = {process.id: dice.choice([10.0, 10.0, 30.0, 70.0]) for process in self.world.living("worker")}
        for _ in range(rounds):
            for member in sorted(seconds):
                if not self.world.end:
                    self.world.tell(Timed(member, seconds[member]))

    @rule(dice=DICE, heard=st.booleans())
    def die(self, dice: random.Random, heard: bool) -> None:
        process = self.pick(dice, self.world.living())
        if process is not None and self.may_lose(process):
            self.world.kill(process, heard)

    def may_lose(self, process: Process) -> bool:
        self.all_losses += 1
        if (self.world.shard_state or self.world.staged) and self.all_losses > 9:
            return False  # each of them may throw the run back
        known = self.world.state.members.get(process.id)
        if not self.world.begins or known is None or known.ready is None:  # nobody has heard yet that it is ready
            self.early_losses += 1
            return self.early_losses <= 2
        if self.world.near:
            return self.may_lose_at_work(process)
        number = self.world.begins[-1].generation
        at = self.moment()
        if len(set().union(*(self.losses.get(step, set()) for step in at)) | {number}) > 2:
            return False
        for step in at:
            self.losses.setdefault(step, set()).add(number)
        return True

    def may_lose_at_work(self, process: Process) -> bool:
        """If it is certain what the dead did, any number may die within one step, but not three in one micro-batch. At each
        loss all state may be lost, which ends a run too when it happens again and again."""
        self.near_losses += 1
        heartbeat = self.world.heartbeat(process)
        if heartbeat.activity == "compute":
            self.at_work[heartbeat.step, heartbeat.shard] += 1
        return self.near_losses <= 9 and self.at_work[heartbeat.step, heartbeat.shard] <= 2

    def moment(self) -> list[int]:
        """The steps that somebody may be in now."""
        steps = [steps_of(process.progress) for process in self.world.processes.values() if process.progress]
        generation = self.world.state.generation
        known = [*steps, self.world.state.steps_seen, generation.steps if generation else 0]
        return list(range(max(0, min(known) - 1), max(known) + 2))

    @precondition(lambda self: self.world.begins)
    @rule(dice=DICE)
    def stall(self, dice: random.Random) -> None:
        process = self.pick(dice, [process for process in self.world.living() if process.acts])
        if process is not None and not self.stalls & set(self.moment()):
            self.stalls |= set(self.moment())
            process.stopped = True

    @rule()
    def stalls_are_found(self) -> None:
        for _ in range(int(STEP_TIMEOUT_S) + 2):
            if not self.world.end:
                self.world.tick(1.0)

    @rule(dice=DICE)
    def lose_contact(self, dice: random.Random) -> None:
        running = [process for process in self.world.living() if process.acts]
        accuser = self.pick(dice, running)
        if accuser is None or len(running) < 2 or self.link_failures >= 4 or self.world.races:
            return
        accused = dice.choice([process for process in running if process is not accuser])
        self.link_failures += 1
        self.world.link_failure(accuser, accused)

    @precondition(lambda self: self.world.begins)
    @rule(dice=DICE)
    def find_no_room(self, dice: random.Random) -> None:
        process = self.pick(dice, [process for process in self.world.living() if process.state == "starting"])
        if process is not None:
            self.world.no_room(process)

    @rule(dice=DICE, seconds=st.none() | st.floats(0, 60))
    def drain(self, dice: random.Random, seconds: float | None) -> None:
        process = self.pick(dice, self.world.living())
        if process is not None and self.drains < 4:
            self.drains += 1
            self.world.drain(process, seconds)

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
        assert world.end is not None, f"the run does not end:\n{world.story}"
        error = world.end.error
        assert error is None or (self.interrupted is not None and isinstance(error, Interrupted)), (
            f"{error!r}\n{world.story}"
        )
        if self.interrupted is not None:
            before, begins = self.interrupted
            assert self.furthest() <= before + 2 + len(world.begins) - begins, f"it did not stop:\n{world.story}"

    def furthest(self) -> int:
        """In advances of all replicas, of which one may be two steps."""
        advances = [advances_of(process.progress) for process in self.world.processes.values() if process.progress]
        saved = self.world.requirements.checkpoint or 0
        return max([AT_REST.index(saved) if self.world.free else saved, *advances])


TestRun = Run.TestCase
TestRun.settings = settings(
    max_examples=min(150, 5 * settings().max_examples),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("lives", thinned(LIVES, 2))
def test_many_lives(lives: int) -> None:
    """Mere chance finds in seconds what hypothesis, which prefers simple runs, seldom comes upon."""
    hunt(range(lives))


@pytest.mark.parametrize("lives", thinned(LIVES, 2))
def test_and_where_shards_keep_state(lives: int) -> None:
    hunt(range(lives), shard_state=True)


@pytest.mark.parametrize("lives", thinned(LIVES, 2))
def test_and_where_lost_shards_inherit(lives: int) -> None:
    hunt(range(lives), inherits=True)


@pytest.mark.parametrize("lives", thinned(LIVES, 2))
def test_and_where_the_model_is_cut_into_stages(lives: int) -> None:
    hunt(range(lives), stages=True)


@pytest.mark.parametrize("lives", thinned(LIVES, 2))
@pytest.mark.parametrize("what", ["", "shard_state", "inherits", "stages"])
def test_and_where_nodes_go_away(lives: int, what: str) -> None:
    hunt(range(lives // 2), drains=True, **({what: True} if what else {}))


def test_without_the_second_vote_stages_would_be_left_behind() -> None:
    """A member commits as soon as it has its stage's sum; then it dies, or another stage's sum does. The world finds it."""
    with pytest.raises(AssertionError) as caught:
        hunt(range(150), stages=True, second_vote=False)
    assert "all go back though every stage has a living host" in str(caught.value.__cause__)


def hunt(seeds: range, **what: bool) -> None:
    for seed in seeds:
        try:
            live(random.Random(seed), **what)
        except AssertionError as error:
            raise AssertionError(f"live(random.Random({seed}), **{what})") from error


def live(
    dice: random.Random,
    *,
    shard_state: bool = False,
    inherits: bool = False,
    stages: bool = False,
    second_vote: bool = True,
    drains: bool = False,
) -> None:
    """One run with faults of all kinds."""
    run = Run()
    cut = dice.randint(2, 3) if stages else 1
    run.launch_any(dice, stages=cut, second_vote=second_vote, shard_state=shard_state, inherits=inherits)
    anytime: list[Callable[[], None]] = [
        *[partial(run.die, dice, heard) for heard in (True, False)] * 2,
        run.stalls_are_found,
        run.save,
    ]
    later: list[Callable[[], None]] = [
        partial(run.stall, dice),
        partial(run.lose_contact, dice),
        partial(run.find_no_room, dice),
        lambda: run.interrupt(dice.random() < 0.05),
        *[lambda: run.drain(dice, dice.choice([None, dice.uniform(0, 60)]))] * 3 * drains,
    ]
    for _ in range(dice.randint(3, 30)):
        run.go_on(dice, dice.randint(1, 60))
        run.time_passes(dice.uniform(0.05, 1.5))
        dice.choice([*anytime, *later] if run.world.begins else anytime)()
    run.finish()


@given(
    workers=st.integers(1, 4),
    least=st.integers(1, 4),
    spares=st.integers(0, 1),
    deaf=st.booleans(),
    heard=st.booleans(),
    saves=st.booleans(),
    step=st.integers(0, 8),
    shard=st.integers(0, 5),
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 2),
)
@fewer(1, most=60)
def test_a_poisonous_micro_batch_ends_the_run_by_its_name(
    workers: int,
    least: int,
    spares: int,
    deaf: bool,
    heard: bool,
    saves: bool,
    step: int,
    shard: int,
    seed: int,
    stages: int,
) -> None:
    """On the driver's machine, where it is certain what the dead did. Each loss may be one of all state, and of all that
    the driver has not heard yet; without checkpoints the run begins anew each time."""
    requirements = required(
        shards=6,
        start=max(workers, stages),
        least=max(stages, min(least, workers)),
        most=max(workers, stages),
        spares=spares,
        stages=stages,
    )
    world = World(requirements, deaf=deaf, near=True, poison=(step, shard))
    walk(world, random.Random(seed), heard=heard, saves=saves)
    where = " of stage [01]" if stages > 1 else ""
    name = f"step {step}, shard {shard}{where}: 3 workers in a row were lost while they computed it"
    assert world.end is not None
    assert isinstance(world.end.error, WorkerLost), world.end
    assert re.search(name, str(world.end.error)), f"{world.end.error}\n{world.story}"
    assert steps_of(latest(process.progress for process in world.processes.values())) == step


@given(
    workers=st.integers(2, 4),
    cut=st.permutations(range(4)),
    saves=st.booleans(),
    resumed=st.booleans(),
    seed=st.integers(0, 2**32),
)
@fewer(1, most=60)
def test_of_two_that_cannot_reach_each_other_the_younger_goes(
    workers: int, cut: list[int], saves: bool, resumed: bool, seed: int
) -> None:
    """Only one of them notices; the other one leaves because it is called off, or hears a farewell."""
    accuser, accused, *_ = (member for member in cut if member < workers)
    requirements = required(
        shards=6,
        start=workers,
        least=1,
        most=workers,
        checkpoint=2 if resumed else None,
    )
    world = World(requirements, near=True, cut=(accuser, accused))
    walk(world, random.Random(seed), saves=saves)
    assert world.end is not None
    assert world.end.error is None, f"{world.end.error}\n{world.story}"
    assert [process.id for process in world.processes.values() if not process.alive] == [max(accuser, accused)]


def walk(world: World, dice: random.Random, *, heard: bool = True, saves: bool = False) -> None:
    """Until the end: somebody does something, or says it, or time passes."""
    while world.end is None:
        process = dice.choice([*world.living(), *(each for each in world.processes.values() if each.news)])
        if process.state == "starting":
            world.ready(process)
        elif process.news and dice.random() < 0.7:
            world.deliver(process)
        elif actions := list(world.actions(process)):
            world.act(process, dice.choice(actions), heard)
        elif saves and dice.random() < 0.2:
            world.save()
        else:
            world.tick(0.5)
        assert world.now < 5000.0, world.story


if __name__ == "__main__":
    hunt(range(*map(int, sys.argv[1].split("-"))))
