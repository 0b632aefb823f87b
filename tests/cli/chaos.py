"""Runs that are disturbed at seeded random moments, from the first step to the last, and end as if nobody had touched them.

    python -m tests.cli.chaos 1 2 3        these seeds
    python -m tests.cli.chaos 0-99         a hundred of them
    python -m tests.cli.chaos --show 7     what seed 7 does, without doing it

`plan` is a pure function from a seed to a layout and a list of blows. A blow has a time (in completed steps), a kind
(SIGKILL, SIGSTOP, or SIGKILL of the driver, followed by `resume=` on another layout) and a victim (workers, servers, spares,
members that still prepare, all workers at once). An echo strikes again at the next news of the journal: the loss itself, the
next generation (its state transfers are under way then), the arrival of the replacement. `disturb` carries a plan out on a
true command line, and `check` compares the run with an undisturbed one, byte for byte.

No plan kills three hosts of one micro-batch in a row, or stops two, for that is poison and ends a run (rule D3). Hence at
most two blows of a kind come without steps between them, and one if it stops its victim.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from orchestrator.records.lines import read
from tests.cli.watching import WatchedRun
from tests.projects import PATIENCE_S, Done, Project, make_digits

TOPOLOGIES = ("ring", "tree", "parameter_server", "peer_to_peer")
COMMON = ("evaluation.every=50", "trace.digest_every=50", "output=json")
RUNS = {
    "digits": ("conf=digits", "run.steps=300", *COMMON),
    "compressed": ("conf=digits", "run.steps=300", "compression={name: powersgd, rank: 2}", *COMMON),
    "characters": (
        "conf=characters",
        "run.steps=200",
        "pipeline.args={width: 32, layers: 1, window: 32}",
        "data.batch_size=16",
        *COMMON,
    ),
}
PLANNED = ("digits", "characters")  # the others by name: `dataclasses.replace(plan(seed), pipeline=...)`
STEPS = {"digits": 300, "characters": 200}
SHARDS = 8
STEP_TIMEOUT_S = (
    12  # more than the first step of a new process takes on a busy machine: it starts loaders, imports much
)
ECHO_S = 30.0  # for the news that an echo waits for, and that may never come

What = Literal["kill", "stop", "crash"]
Whom = Literal["worker", "server", "spare", "joiner", "newest", "driver"]
News = Literal["lost", "generation", "started"]


@dataclass(frozen=True)
class Blow:
    """When the trace has `step` lines, and `late_s` after that: do this to `count` of them, beginning with the `pick`th.

    echo: strike once more at this news of the journal, a worker, or who has just arrived. again: for a crash, the arguments to
    resume with."""

    step: int
    what: What
    whom: Whom
    count: int = 1
    pick: int = 0
    late_s: float = 0.0
    echo: News | None = None
    again: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    seed: int
    pipeline: str
    layout: tuple[str, ...]
    blows: tuple[Blow, ...]


def plan(seed: int) -> Plan:
    """Pipelines and topologies take turns, so that eight seeds in a row have them all."""
    random = Random(seed)
    pipeline = PLANNED[seed % 2]
    layout = _layout(random, TOPOLOGIES[seed // 2 % len(TOPOLOGIES)])
    options = (f"checkpoint.every={random.choice(['10', '25', '60', '0.5s'])}", *_extras(random))
    blows = []
    present, at = layout, random.randrange(0, 40)
    while at < STEPS[pipeline] * 0.9:
        blows.append(_blow(random, at, present))
        present = blows[-1].again or present
        at += random.randrange(30, 200)
    return Plan(seed, pipeline, (*layout, f"cluster.step_timeout_s={STEP_TIMEOUT_S}", *options), tuple(blows))


def _layout(random: Random, topology: str) -> tuple[str, ...]:
    workers, spare = random.choice([1, 2, 2, 3, 3, 4]), random.random() < 0.3
    size = f"{{min: {workers}, max: {workers + 1}}}" if random.random() < 0.2 else str(workers)
    arguments = [f"topology={topology}", f"cluster.workers={size}", f"cluster.spares={int(spare)}"]
    if topology == "parameter_server":
        arguments.append(f"topology.servers={random.choice([1, 1, 2])}")
    return tuple(arguments)


def _extras(random: Random) -> list[str]:
    return (["transport=tcp"] if random.random() < 0.2 else []) + (["data.loaders=1"] if random.random() < 0.2 else [])


def _blow(random: Random, step: int, layout: Sequence[str]) -> Blow:
    servers, spares = "topology=parameter_server" in layout, "cluster.spares=1" in layout
    late_s, pick = round(random.uniform(0.0, 0.15), 3), random.randrange(8)
    kind = random.random()
    if kind < 0.12:
        again = _layout(random, random.choice(TOPOLOGIES))
        return Blow(step, "crash", "driver", late_s=late_s, again=again)
    if kind < 0.3:
        whom: Whom = "server" if servers and random.random() < 0.5 else "worker"
        return Blow(step, "stop", whom, pick=pick, late_s=late_s)
    weights: dict[Whom, int] = {"worker": 5, "joiner": 2, "server": 3 * servers, "spare": 2 * spares}
    (target,) = random.choices([*weights], [*weights.values()])
    count = random.choice([1, 1, 1, 2, 2, 9])
    echoes: list[News | None] = [None, None, "lost", "generation", "generation", "started"]
    echo = random.choice(echoes)
    return Blow(step, "kill", target, count=count, pick=pick, late_s=late_s, echo=echo)


class Disturbed:
    """A run that takes blows. struck: the processes that were, by the life of the driver in which they were."""

    def __init__(self, project: Project, plan: Plan) -> None:
        self._project = project
        self._run = WatchedRun(project, *RUNS[plan.pipeline], *plan.layout)
        self._begun = 0  # events of the journal that are of earlier drivers
        self.struck: list[tuple[int, int]] = []
        self.lives = 0
        self.said: list[str] = []

    @property
    def folder(self) -> Path:
        return self._run.folder

    def take(self, blow: Blow) -> None:
        if not self._until(lambda: self._run.steps >= blow.step, PATIENCE_S):
            return
        threshold = time.monotonic() + blow.late_s
        self._until(lambda: time.monotonic() >= threshold, PATIENCE_S)
        if blow.what == "crash":
            self._crash(blow)
            return
        before = self._news(blow.echo)
        self._strike(self._victims(blow), blow)
        if blow.echo is not None and self._until(lambda: self._news(blow.echo) > before, ECHO_S):
            echo = dataclasses.replace(blow, whom="newest" if blow.echo == "started" else "worker", count=1)
            self._strike(self._victims(echo), echo)

    def end(self) -> Done:
        try:
            out, err = self._run.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._run.process.send_signal(signal.SIGTERM)
            self._run.process.send_signal(signal.SIGTERM)
            raise AssertionError(f"it does not end: {self._run.journal()[-8:]}") from None
        return Done(self._run.process.returncode, out, err)

    def _crash(self, blow: Blow) -> None:
        if self._run.process.poll() is not None:
            return
        self._run.process.kill()
        _, err = self._run.process.communicate()
        self.said.append(err)
        self._begun = len(self._run.journal())
        self.lives += 1
        again = (f"resume={self._run.run_id}", *blow.again, "output=json")
        self._run = WatchedRun(self._project, *again, run_id=self._run.run_id)

    def _strike(self, pids: Sequence[int], blow: Blow) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if blow.what == "stop" else signal.SIGKILL)
                self.struck.append((self.lives, pid))

    def _victims(self, blow: Blow) -> list[int]:
        events = self._run.journal()[self._begun :]
        generations = [event["members"] for event in events if event["event"] == "generation_started"]
        generation: list[int] = generations[-1] if generations else []
        lost = {member_of(event) for event in events if event["event"].endswith("_lost")}
        living = {
            member_of(event): event
            for event in events
            if event["event"] in ("worker_started", "server_started") and member_of(event) not in lost
        }
        match blow.whom:
            case "joiner":
                known = {event["pid"] for event in living.values()}
                found = sorted(pid for pid in members_of(self._project) if pid not in known)
            case "newest":
                found = [event["pid"] for event in living.values()][-1:]
            case "server":
                found = [event["pid"] for event in living.values() if event["event"] == "server_started"]
            case _:
                workers = {member: each for member, each in living.items() if each["event"] == "worker_started"}
                wanted = blow.whom == "worker"
                found = [event["pid"] for member, event in workers.items() if (member in generation) == wanted]
        start = blow.pick % len(found) if found else 0
        return (found[start:] + found[:start])[: blow.count]

    def _news(self, news: News | None) -> int:
        names = {"lost": "_lost", "generation": "generation_started", "started": "worker_started"}
        return sum(event["event"].endswith(names[news]) for event in self._run.journal()) if news else 0

    def _until(self, look: Callable[[], bool], patience_s: float) -> bool:
        """Whether it came to that, while the command ran."""
        deadline = time.monotonic() + patience_s
        while not look():
            if self._run.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return self._run.process.poll() is None


def member_of(event: dict[str, Any]) -> int:
    return int(event["worker"] if "worker" in event else event["server"])


def members_of(project: Project) -> list[int]:
    """Processes of members, also of those that still prepare."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_member = b"MemberActor" in (process / "cmdline").read_bytes()
            if is_member and project.mark.encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def disturb(project: Project, plan: Plan) -> tuple[Done, Disturbed]:
    run = Disturbed(project, plan)
    for blow in plan.blows:
        run.take(blow)
    return run.end(), run


def undisturbed(project: Project, pipeline: str) -> Done:
    done = project.run(*RUNS[pipeline], "cluster.workers=2", "checkpoint.every=null")
    assert done.code == 0, done.err
    return done


def check(project: Project, done: Done, run: Disturbed, reference: Done) -> None:
    """One digest, one trace, the same metrics; a journal without contradictions; nothing is left."""
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    for said in run.said:
        assert "Traceback" not in said, said
    for key in ("digest", "metrics", "loss", "steps"):
        assert done.report[key] == reference.report[key], key
    run_id = done.report["run_id"]
    expected = project.folder(reference.report["run_id"]) / "trace.jsonl"
    assert (run.folder / "trace.jsonl").read_bytes() == expected.read_bytes()
    assert project.runs()[run_id] == "FINISHED"
    # One, where only those who died had applied the last step.
    assert all(each["steps_lost"] <= 1 for each in done.report["recoveries"] if each["kind"] != "restarted")
    check_journal(list(read(run.folder / "journal.jsonl")))
    _check_struck(run)
    assert project.leftovers() == []


def check_journal(events: Sequence[dict[str, Any]], shards: int = SHARDS) -> None:
    """Generation numbers and member ids only grow; every shard has one host, of each stage; who is not there any more was
    lost."""
    number, present, lost, started = -1, set[int](), set[int](), set[int]()
    for event in events:
        kind = event["event"]
        if kind in ("worker_started", "server_started"):
            assert member_of(event) not in started, event
            started.add(member_of(event))
        elif kind in ("worker_lost", "server_lost"):
            assert member_of(event) not in lost, event
            lost.add(member_of(event))
        elif kind == "generation_started":
            assert event["number"] > number, event
            hosted: dict[int, list[int]] = {}
            for stage, own in zip(event.get("stages", [0] * len(event["shards"])), event["shards"], strict=True):
                hosted.setdefault(stage, []).extend(own)
            assert all(sorted(each) == list(range(shards)) for each in hosted.values()), event
            members = set(event["members"])
            assert len(members) == len(event["members"]), event
            assert not members & lost, event
            assert members <= started, event
            resumed = not present & members and min(members) > max(present, default=-1)
            assert resumed or present - members <= lost, event
            number, present = event["number"], members


def _check_struck(run: Disturbed) -> None:
    """Every process that was killed under the driver that brought the run to its end is told as lost."""
    events = list(read(run.folder / "journal.jsonl"))
    pids = {member_of(event): event["pid"] for event in events if "pid" in event}
    lost = {member_of(event): event["why"] for event in events if event["event"].endswith("_lost")}
    told = {pids[member] for member in lost if member in pids}
    for life, pid in run.struck:
        if life == run.lives:
            assert pid in told or any(f"(pid {pid})" in why for why in lost.values()), pid


def main(arguments: Sequence[str]) -> int:
    seeds = [seed for argument in arguments if argument != "--show" for seed in _seeds(argument)]
    if "--show" in arguments or not seeds:
        for seed in seeds:
            print(plan(seed))
        return 0 if seeds else 2
    failed = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        project = make_digits(Path(folder))
        references: dict[str, Done] = {}
        for seed in seeds:
            pipeline = plan(seed).pipeline
            references.setdefault(pipeline, undisturbed(project, pipeline))
            if not _one(project, plan(seed), references[pipeline]):
                failed.append(seed)
    print(f"{len(seeds) - len(failed)} of {len(seeds)} seeds are fine; failed: {failed}")
    return 1 if failed else 0


def _seeds(argument: str) -> range:
    first, _, last = argument.partition("-")
    return range(int(first), int(last or first) + 1)


def _one(project: Project, plan: Plan, reference: Done) -> bool:
    begun = time.monotonic()
    run = None
    try:
        done, run = disturb(project, plan)
        check(project, done, run, reference)
    except AssertionError as error:
        print(f"seed {plan.seed} FAILED: {plan}\n{error}", flush=True)
        if run is not None:
            kept = Path(tempfile.mkdtemp(prefix=f"chaos-seed-{plan.seed}-"))
            shutil.copytree(run.folder, kept, dirs_exist_ok=True)
            print(f"the run's folder is kept in {kept}", flush=True)
        return False
    kinds = [recovery["kind"] for recovery in done.report["recoveries"]]
    print(
        f"seed {plan.seed} {plan.pipeline} {' '.join(plan.layout[:3])}: {len(run.struck)} struck, {run.lives} crashes of "
        f"the driver, {done.report['generations']} generations, {kinds}, {time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
