"""Whole runs under a driver, its controller and real members, to which everything happens that can happen, as a seed draws it.

    python -m tests.virtual_cluster.runs 0-999         these seeds
    python -m tests.virtual_cluster.runs --story 7     seed 7, with all that happened
    python -m tests.virtual_cluster.runs --shard-state 0-99     of runs whose shards keep state
    python -m tests.virtual_cluster.runs --staged 0-99          of models in stages
    python -m tests.virtual_cluster.runs --uneven 0-99          of workers whose speeds change all the time, also with the above
    python -m tests.virtual_cluster.runs --asynchronous 0-99    of runs whose replicas run free, and their replays

A run has several lives: a driver that is killed or interrupted, or a run that rightly failed, is resumed on another layout.
Its result has to be that of a run to which nothing happens: `check` compares the trace byte for byte, digest and metrics. If
replicas run free, the result is compared with that of a replay, to which everything happens as well.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from safetensors.torch import load_file

from orchestrator.checkpoint.catalog import Catalog
from orchestrator.cluster.actors.members import ActorPlacement
from orchestrator.cluster.placement.actor_slots import ActorSlots
from orchestrator.config.plan import Plan as ResolvedPlan
from orchestrator.config.settings import Settings
from orchestrator.controller.events import Timed
from orchestrator.controller.rendezvous import balancing
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.launch import resume
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.run.checkpointing import Saving
from orchestrator.driver.run.event_sink import Audience, EventSink
from orchestrator.driver.run.member_directory import MemberDirectory
from orchestrator.driver.run.session import Session
from orchestrator.driver.run.startup import RunStart, Startup, requirements
from orchestrator.errors import CheckpointDamaged, ClusterUnavailable, Interrupted, Stalled, WorkerLost
from orchestrator.numerics.digests import state_digest
from orchestrator.records.lines import LineFile, read
from tests.cli.chaos import check_journal
from tests.virtual_cluster.cluster import HERE, THERE, Cluster, Member, Members, Store, simulated
from tests.virtual_cluster.plans import ASYNCHRONOUS, MOST_LIVES, Chance, Crash, Plan, calm, plan
from tests.virtual_cluster.scheduling import Schedule
from tests.worker.runs import Layout
from tests.worker.toys import ERROR_FEEDBACK

_RIGHTLY = (WorkerLost, Stalled, ClusterUnavailable)  # how a wild run may end
_TORN = b'{"step": 3, "lo'


@dataclass
class Told:
    """The records that a run has told in all its lives. outcomes: None for a life whose driver was killed."""

    plan: Plan
    story: list[str]
    outcomes: list[RunOutcome | None] = field(default_factory=list)
    trace: bytes = b""
    journal: list[dict[str, Any]] = field(default_factory=list)
    rests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def metrics(self) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for event in self.journal:
            if event["event"] == "evaluated":
                assert self.is_live or found.setdefault(event["step"], event["metrics"]) == event["metrics"], event
                found[event["step"]] = event["metrics"]
        return found

    @property
    def applied(self) -> int:
        """How many sums were applied by workers that had missed the end of the second vote."""
        return sum(len(event.get("applies", ())) for event in self.journal if event["event"] == "generation_started")

    @property
    def redealt(self) -> int:
        """How often shards were dealt anew because of reported times."""
        return sum(event["event"] == "shards_redealt" for event in self.journal)

    is_live: bool = False  # replicas run free, so what is done again comes out otherwise


class Meeting(LineFile):
    """A file of the driver's, before each of whose lines it may die."""

    def __init__(self, path: Path, cluster: Cluster) -> None:
        super().__init__(path)
        self._cluster = cluster

    def append(self, lines: Any) -> None:
        self._cluster.meet()
        super().append(lines)

    def sync(self) -> None:
        pass


class Uneven(Session):
    """Workers report times that change all the time, so that shards are dealt anew again and again."""

    dice: Random

    def _entries(self, member: int, entries: list[dict[str, Any]]) -> None:
        super()._entries(member, entries)
        if self._roles[member] == "worker":
            self._decide(Timed(member, self.dice.choice([0.1, 0.1, 0.3, 1.0])))


class _Looked(ActorSlots):
    """Slots whose nodes are looked at, though no member has a folder of its own."""

    def has_copy(self, member: int) -> bool:  # noqa: ARG002
        return False


class Run:
    def __init__(
        self, drawn: Plan, folder: Path, replay: Sequence[dict[str, Any]] = (), *, uneven: bool = False
    ) -> None:
        self._uneven = uneven
        self._plan = drawn
        self._folder = folder
        self._chance = Chance(drawn)
        self._schedule = Schedule(Random(drawn.seed + 2), drawn.haste)
        self._cluster = Cluster(self._schedule, drawn.layouts[0], self._chance, drawn.lateness_s)
        self._cluster.misses_farewells = drawn.misses_farewells
        self._cluster.contribution = ERROR_FEEDBACK if drawn.shard_state else None
        self._cluster.replay = replay
        self._chance.cluster = self._cluster
        self._files = RunFolder(folder.parent, folder.name)
        self.told = Told(drawn, self._cluster.story, is_live=drawn.identity in ASYNCHRONOUS and not replay)

    def live(self) -> Told:
        try:
            with simulated(self._cluster), patch.object(resume, "open_storage", lambda _: Store(self._cluster, None)):
                for settings in self._plan.layouts:
                    if self._is_over(self._one(settings)):
                        break
        finally:
            self._schedule.close()
        self.told.trace = self._files.trace.read_bytes()
        self.told.journal = list(read(self._files.journal))
        self.told.rests = list(read(self._files.barriers)) if self._files.barriers.exists() else []
        return self.told

    def _one(self, settings: Settings) -> RunOutcome | None:
        """A life. The last one is a quiet one, and so is one after a failure."""
        before = self.told.outcomes
        failed = any(each is not None and not isinstance(each.error, Interrupted) for each in before)
        self._chance.new_life(quiet=failed or len(before) == MOST_LIVES - 1)
        self._cluster.settings, self._cluster.lives_on = settings, False
        self._cluster.tell(f"life {len(before)}: {_words(settings)}")
        outcome: RunOutcome | None = None
        try:
            outcome = self._drive(settings)
        except Crash:
            self._leave_traces()
        else:
            for member in self._cluster.living():
                member.alive = False
        before.append(outcome)
        self._cluster.tell(f"this life ends: {outcome}")
        return outcome

    def _drive(self, settings: Settings) -> RunOutcome:
        """Drive one life, as `driver.job` does."""
        cluster = self._cluster
        plan = cluster.plan
        run_start = self._resumed(plan) if self._files.journal.exists() else RunStart(requirements(plan))
        startup = Startup.begin(run_start, Members(cluster), self._actor_slots(settings), self._chance.vet)
        with contextlib.ExitStack() as stack:
            journal, trace, rests = (
                stack.enter_context(contextlib.closing(Meeting(path, cluster)))
                for path in (self._files.journal, self._files.trace, self._files.barriers)
            )
            tracker = SimpleNamespace(
                tick=_nothing,
                flush=_nothing,
                sync=_nothing,
                metrics=_nothing,
                artifact=_nothing,
                notes=list,
                trouble=None,
                upload_s=0.0,
            )
            record: Any = SimpleNamespace(
                tracker=tracker,
                journal=journal,
                trace=trace,
                origin=None,
                memory=None,
                logger_feed=SimpleNamespace(troubles=list),
            )
            record.barriers, record.history = (None, [trace]) if plan.lockstep else (rests, [trace, rests])
            record.seals, record.has_failover, record.upload = lambda _: {}, False, _nothing
            record.describe = lambda *_: ([], [])
            record.files = SimpleNamespace(artifacts=list, sync=_nothing, untold=self._files.untold)
            record.restored, record.was_read = lambda: False, lambda _: ([], [])
            record.other_data = record.other_bits = lambda _: None
            progress: Any = SimpleNamespace(start=_nothing, step=_nothing, say=self._say)
            event_sink = EventSink(record, Audience(progress))
            saving = Saving(Catalog(Store(cluster, None), plan.checkpoints.keep), repeats=plan.repeats)
            directory = MemberDirectory(plan.exchange, HERE, "storage", everywhere=self._plan.everywhere)
            session = (Uneven if self._uneven else Session)(startup, directory, saving, event_sink)
            if isinstance(session, Uneven):
                session.dice = Random(self._plan.seed + 3)
                for name, value in {"WORTH_S": 0.0, "ROUNDS": 1, "CLEAR": balancing.MUCH}.items():
                    stack.enter_context(patch.object(balancing, name, value))
            session.run(self._chance.pending_signal, self._look_for_trouble)
            outcome = event_sink.outcome
            if outcome.error is None:
                outcome = self._with_weights(session, outcome)
            self._check_life(outcome)
            return outcome

    def _resumed(self, plan: ResolvedPlan) -> RunStart:
        while True:
            try:
                return resume.beginning_of(plan, self._files, self._say)
            except CheckpointDamaged as error:
                if not self._chance.storage_failed:
                    raise
                self._say(error.message)  # and the user tries again

    def _with_weights(self, session: Session, outcome: RunOutcome) -> RunOutcome:
        """They are what the digest is of; lost only where a stage has no worker any more that is well."""
        path = self._folder / "weights"
        try:
            session.save_weights(str(path))
        except WorkerLost as error:
            generation = session._state.generation
            assert generation is not None
            begin = generation.begin
            stages = begin.stages or (0,) * begin.workers
            well = {stage for stage, member in zip(stages, self._present(), strict=False) if member.is_well}
            assert well < set(stages)
            return replace(outcome, error=error)
        assert state_digest(load_file(path)) == outcome.digest, "the weights are not those of the digest"
        assert [file.name for file in self._folder.glob("weights*")] == ["weights"]
        return outcome

    def _look_for_trouble(self) -> str | None:
        self._cluster.meet()
        return self._chance.trouble

    def _actor_slots(self, settings: Settings) -> ActorSlots:
        """One worker at least reaches the checkpoints."""

        def place() -> ActorPlacement:
            node = THERE if self._plan.apart and self._cluster.dice.random() < 0.5 else HERE
            return ActorPlacement(None, {"node": node})

        first = ActorPlacement(None, {"node": HERE})
        return _Looked(
            [first, *(place() for _ in range(1, settings.cluster.workers.most))], place(), has_room=lambda _gpus: True
        )

    def _leave_traces(self) -> None:
        """Members outlive their driver until their lease ends; and it may have died in the midst of a line."""
        for member in self._cluster.living():
            moment = self._schedule.now + self._schedule.dice.choice([0.0, 1.0, 10.0])
            self._schedule.at(moment, functools.partial(setattr, member, "alive", False))
        for path in (self._files.journal, self._files.trace, self._files.barriers):
            if path.exists() and self._schedule.dice.random() < 0.3:
                path.write_bytes(path.read_bytes() + _TORN)

    def _check_life(self, outcome: RunOutcome) -> None:
        """The outcome of a life agrees with the trace and the checkpoints."""
        steps = len(list(read(self._files.trace)))
        assert outcome.steps == steps, "the outcome tells of other steps than the trace"
        if self._chance.spoils_checkpoints:
            return
        found = Catalog(self._cluster.files, 1).latest().manifest
        assert outcome.checkpoint == (None if found is None else found.step), "another checkpoint than it tells of"
        if self._plan.everywhere and outcome.error is None and all(member.is_well for member in self._present()):
            assert outcome.checkpoint == steps, "the last checkpoint is not there"

    def _present(self) -> list[Member]:
        """The members of the last generation."""
        generations = list(self._cluster.generations.values())
        return list(generations[-1][1].values()) if generations else []

    def _is_over(self, outcome: RunOutcome | None) -> bool:
        """Whether it has finished; an error has to be right."""
        if outcome is not None and outcome.error is not None:
            assert self._is_right(outcome.error), outcome.error
        return outcome is not None and outcome.error is None

    def _is_right(self, error: Exception) -> bool:
        text, chance = str(error), self._chance
        if isinstance(error, Interrupted):
            return chance.pending_signal.signal is not None
        if isinstance(error, CheckpointDamaged):
            return chance.spoils_checkpoints and ("could not be restored" in text or "cannot be listed" in text)
        if chance.trouble is not None and chance.trouble in text:
            return True
        if "reaches the checkpoint" in text:
            return not self._plan.everywhere
        if "trained weights were lost" in text:
            return True  # see _save_weights
        return self._plan.wild and not chance.is_quiet and isinstance(error, _RIGHTLY)

    def _say(self, text: str) -> None:
        self._cluster.tell(f"    says: {text}")


def _nothing(*_: Any) -> None:
    pass


def _words(settings: Settings) -> str:
    cluster, topology, checkpoint = settings.cluster, settings.topology, settings.checkpoint
    width = (
        f"{cluster.workers.least} to {cluster.workers.most} workers, {cluster.spares} spares, {cluster.stages} stages"
    )
    return f"{width}, {topology.name} {topology.options}, checkpoints {checkpoint.every}, {checkpoint.keep} kept"


def _determining(settings: Settings) -> Layout:
    topology = settings.topology
    if settings.reduction == "exact":
        return Layout(1)
    return Layout(settings.cluster.workers.start, topology.name, **topology.options)


@functools.cache
def undisturbed(identity: str, layout: Layout, shard_state: bool) -> Told:
    with tempfile.TemporaryDirectory() as folder:
        return Run(replace(calm(identity, layout), shard_state=shard_state), Path(folder)).live()


def live_and_repeated(seed: int) -> tuple[Told, Told]:
    """An asynchronous run of this seed and its replay, to both of which everything happens; raises as `live` does."""
    drawn = plan(seed, identities=tuple(ASYNCHRONOUS))
    told = _lived(drawn)
    again = _lived(plan(seed + 500_000, identities=(drawn.identity,)), told)
    return told, again


def _lived(drawn: Plan, before: Told | None = None) -> Told:
    """before: the run that is repeated."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(drawn, Path(folder), () if before is None else before.rests)
        try:
            told = run.live()
            if before is None:
                assert told.outcomes[-1] is not None
                assert told.outcomes[-1].error is None
            else:
                check_repeated(told, before)
        except Exception as error:
            story = "\n".join(run.told.story[-150:])
            what = "live" if before is None else "replay"
            raise AssertionError(
                f"seed {drawn.seed}, {what}: {type(error).__name__}: {error}\n{drawn}\n{story}"
            ) from error
    return told


def check_repeated(told: Told, before: Told) -> None:
    outcome, expected = told.outcomes[-1], before.outcomes[-1]
    assert outcome is not None
    assert expected is not None
    assert outcome.error is None
    assert told.rests == before.rests, "other rests"
    assert told.trace == before.trace, "another trace"
    metrics = before.metrics  # of steps too that were done again, and not evaluated then
    assert told.metrics == {step: metrics.get(step) for step in told.metrics}, "other metrics"
    for what in ("digest", "loss", "steps", "metrics"):
        assert getattr(outcome, what) == getattr(expected, what), (what, getattr(outcome, what))


def live(seed: int, *, shard_state: bool = False, staged: bool = False, uneven: bool = False) -> Told:
    """The run of this seed; raises AssertionError, with its story, when it is not what it has to be. uneven: as `Uneven`."""
    drawn = plan(seed, shard_state=shard_state, staged=staged)
    whole = undisturbed(drawn.identity, _determining(drawn.layouts[0]), shard_state)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(drawn, Path(folder), uneven=uneven)
        try:
            told = run.live()
            check(told, whole)
        except Exception as error:
            story = "\n".join(run.told.story[-150:])
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{drawn}\n{story}") from error
    return told


def check(told: Told, whole: Told) -> None:
    """As if nothing had happened."""
    outcome, expected = told.outcomes[-1], whole.outcomes[-1]
    assert outcome is not None
    assert expected is not None
    assert outcome.error is None
    assert told.trace == whole.trace, "another trace"
    assert told.metrics == whole.metrics, "other metrics"
    for what in ("digest", "loss", "steps", "metrics"):
        assert getattr(outcome, what) == getattr(expected, what), (what, getattr(outcome, what))
    for life in told.outcomes:
        for recovery in life.recoveries if life is not None else ():
            assert recovery["seconds"] >= 0, recovery
            assert recovery["steps_lost"] <= 1 or recovery["kind"] == "restarted", recovery
    check_journal(told.journal, told.plan.layouts[0].data.shards)


def main(arguments: Sequence[str]) -> int:
    seeds = [seed for argument in arguments if not argument.startswith("--") for seed in _seeds(argument)]
    failed, begun, lives, applied, redealt = [], time.monotonic(), 0, 0, 0
    for seed in seeds:
        try:
            if "--asynchronous" in arguments:
                told, again = live_and_repeated(seed)
                lives += len(again.outcomes)
            else:
                asked = {
                    name: f"--{name.replace('_', '-')}" in arguments for name in ("shard_state", "staged", "uneven")
                }
                told = live(seed, **asked)
                redealt += told.redealt
        except AssertionError as error:
            failed.append(seed)
            if "--story" in arguments:
                traceback.print_exc()
            else:
                print(str(error).splitlines()[0], flush=True)
            continue
        lives += len(told.outcomes)
        applied += told.applied
        if "--story" in arguments:
            print("\n".join(told.story))
    seconds = time.monotonic() - begun
    held = f"; {applied} held sums were applied" if "--staged" in arguments else ""
    held += f"; shards were dealt anew {redealt} times" if "--uneven" in arguments else ""
    print(
        f"{len(seeds) - len(failed)} of {len(seeds)} are fine, {seconds:.1f} s; {lives} lives{held}; failed: {failed}"
    )
    return 1 if failed else 0


def _seeds(argument: str) -> range:
    first, _, last = argument.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
