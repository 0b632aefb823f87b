"""The driver's loop with members that are scripts: what is heard goes to the right place, in whatever order it comes."""

from __future__ import annotations

import errno
import gc
import itertools
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from orchestrator.checkpoint.weights import Weights
from orchestrator.cluster.actors.members import ActorPlacement, MemberMessage
from orchestrator.cluster.actors.post_mortem import PostMortem
from orchestrator.cluster.placement.actor_slots import ActorSlots
from orchestrator.cluster.placement.reservation import Node
from orchestrator.cluster.sessions.diagnosis import Diagnosis
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.controller.checking import Verdict
from orchestrator.controller.events import Ended
from orchestrator.controller.rendezvous import balancing
from orchestrator.driver.report import summary
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.run import session as sessions
from orchestrator.driver.run import trained_weights
from orchestrator.driver.run.checkpointing import Saving
from orchestrator.driver.run.event_sink import Audience, EventSink
from orchestrator.driver.run.member_directory import MemberDirectory
from orchestrator.driver.run.node_traits import refuse_unknown
from orchestrator.driver.run.session import Session
from orchestrator.driver.run.startup import NodeCheck, RunStart, Startup, requirements
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.errors import (
    CheckpointDamaged,
    ClusterUnavailable,
    ConfigurationError,
    Inconsistent,
    Interrupted,
    NonFinite,
    NotRerunnable,
    RunFailed,
    WorkerLost,
)
from orchestrator.records import input_audit
from orchestrator.records.input_audit import InputAudit
from orchestrator.records.lines import LineFile, read
from orchestrator.records.progress import Progress
from orchestrator.records.stacks import Home
from orchestrator.worker.member.stack_dump import ProcessStacks
from tests.refusals import refused

FACTS = {"steps": 2, "shard_state": False}
LINES = [{"step": step, "loss": "0x1.8p+0", "gradient": "00"} for step in range(2)]
PULSE = {"activity": "compute", "step": 0, "shard": 0, "beats": 1}


@dataclass
class Script:
    """Members that say what they were told to, one thing a time, and have last words; and what was done with them."""

    said: Iterator[MemberMessage]
    last_words: dict[int, list[dict[str, Any]]]
    done: list[tuple[Any, ...]] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    last_activities: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    seen: Mapping[int, ProcessStacks] = field(default_factory=dict)
    standard_errors: Mapping[int, str] = field(default_factory=dict)
    not_set_up: Mapping[int, str] = field(default_factory=dict)

    def hear(self, timeout_s: float) -> Iterator[MemberMessage]:  # noqa: ARG002
        yield next(self.said)

    def start(self, member: int, role: str, place: ActorPlacement) -> None:  # noqa: ARG002
        self.done.append(("start", member, role))

    def run(self, member: int, generation: Any, rank: int, peers: Any) -> None:
        self.done.append(("run", member, generation.number, rank, sorted(peers)))

    def ask(self, member: int, what: str, generation: int) -> None:  # noqa: ARG002
        self.done.append(("ask", member, what))

    def call_off(self, member: int, generation: int) -> None:
        self.done.append(("call off", member, generation))

    def describe(self, member: int, origin: str | None) -> None:  # noqa: ARG002
        self.done.append(("describe", member))

    def kill(self, member: int) -> None:
        self.done.append(("kill", member))

    def forget(self, member: int) -> None:
        self.done.append(("forget", member))

    def stacks(self, members: Sequence[int]) -> dict[int, ProcessStacks]:
        self.done.append(("stacks", *members))
        return {member: self.seen[member] for member in members if member in self.seen}

    def home(self, member: int) -> Home | None:
        return Home("/p", "/o", "/l") if member in self.seen else None

    def is_gone(self, member: int) -> bool:
        return member in self.gone

    def pid(self, member: int) -> int | None:
        return 100 + member

    def post_mortem(self, member: int) -> PostMortem:
        said, why = self.standard_errors.get(member, ""), self.not_set_up.get(member, "")
        return PostMortem(self.last_activities.get(member), f"GPU-{member}", said, why)

    def save_weights(self, member: int, path: str) -> None:
        self.done.append(("save weights", member, Path(path).name))
        if member in self.gone:
            raise WorkerLost("the trained weights were lost")
        Weights({f"of {member}": torch.ones(member + 1)}).write(Path(path))

    def drain(self, members: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
        return {member: self.last_words.get(member, []) for member in members}


def prepared(member: int, *, shard_state: bool = False, node: str = "n") -> MemberMessage:
    addresses = {"unix": ["unix", f"m{member}"], "tcp": ["tcp", f"m{member}"]}
    known = {"pid": 100 + member, "node": node, "niceness": 15}
    return MemberMessage(
        member, "prepared", {"run_manifest": {**FACTS, "shard_state": shard_state}, "addresses": addresses, **known}
    )


def finished(member: int, generation: int = 0) -> MemberMessage:
    return MemberMessage(member, "ran", {"ended": Ended("finished", Progress(2), digest="d"), "generation": generation})


def left(member: int, why: Any, steps: int, generation: int = 0, accuses: int | None = None) -> MemberMessage:
    ended = Ended(why, Progress(steps), accuses, "text")
    return MemberMessage(member, "ran", {"ended": ended, "generation": generation})


def entries(member: int, *said: dict[str, Any]) -> MemberMessage:
    return MemberMessage(member, "entries", entries=list(said), heartbeat=PULSE)


@dataclass
class Played:
    outcome: RunOutcome
    journal: list[dict[str, Any]]
    trace: list[dict[str, Any]]
    shown: list[str]
    done: list[tuple[Any, ...]]
    session: Session


def without_checkpoints() -> Mock:
    catalog = Mock()
    catalog.latest.return_value = SimpleNamespace(manifest=None, reasons=[])
    return catalog


def play(
    tmp_path: Path,
    said: Iterable[MemberMessage],
    last_words: dict[int, list[dict[str, Any]]] | None = None,
    signal: str | None = None,
    gone: set[int] | None = None,
    trouble: str | None = None,
    last_activities: Mapping[int, dict[str, Any]] | None = None,
    checkpoint: int | None = None,
    catalog: Any = None,
    niceness: int | None = None,
    sync: str = "bsp",
    more: Sequence[str] = (),
    seen: Mapping[int, ProcessStacks] | None = None,
    standard_errors: Mapping[int, str] | None = None,
    not_set_up: Mapping[int, str] | None = None,
    needed: Sequence[int] = (),
    spare: int = 0,
    draining: Callable[[], Mapping[str, float | None]] = dict,
    tick: Callable[[], None] = lambda: None,
    node_check: NodeCheck = lambda _node, _in_copy: None,
    oom_kills: int | None = None,
    **before: Any,
) -> Played:
    """A run of two workers. gone: whose process has ended, whether or not Ray has said so; last_activities: what the dead were
    doing; niceness: the driver's; checkpoint, before: of a run that is resumed."""
    given = ["cluster.workers=2", f"sync={sync}", *more]
    settings = load([{"run": {"steps": 2}, "pipeline": {"target": "a:B"}}], given)
    shown: list[str] = []
    nothing = lambda *_: None  # noqa: E731
    progress: Any = SimpleNamespace(start=nothing, step=nothing, say=shown.append)
    tracker = SimpleNamespace(tick=tick, metrics=nothing, notes=list, trouble=None)
    journal, trace = LineFile(tmp_path / "journal"), LineFile(tmp_path / "trace")
    record: Any = SimpleNamespace(
        logger_feed=SimpleNamespace(troubles=list),
        memory=None,
        tracker=tracker,
        journal=journal,
        trace=trace,
        origin=None,
        needed_at_once=lambda _: list(needed),
        other_data=lambda _: None,
        other_bits=lambda _: None,
        needed_by_a_spare=lambda _: spare,
        describe=lambda *_: (["of a node"], ["of new code"]),
    )
    read_by: list[InputAudit] = []

    def was_read(found: InputAudit) -> tuple[list[str], list[str]]:
        read_by.append(found)
        return input_audit.obstacles(found), input_audit.notes(found)

    def restored() -> bool:
        removed = [file for file in (*record.history, journal) if file.is_removed]
        for file in removed:
            file.restore()
        return bool(removed)

    record.was_read, record.restored = was_read, restored
    record.files = SimpleNamespace(
        path=tmp_path,
        checkpoints=tmp_path / "checkpoints",
        settings=tmp_path / "settings",
        untold=tmp_path / "untold",
        sync=nothing,
    )
    record.refusal_of_inputs = lambda: input_audit.refusal(read_by[-1]) if settings.strict else None
    rests = None if sync == "bsp" else LineFile(tmp_path / "rests")
    record.seals = lambda _: {}
    record.barriers, record.history = rests, [trace] if rests is None else [trace, rests]
    script = Script(
        *(iter(said), last_words or {}),
        gone=gone or set(),
        last_activities=last_activities or {},
        seen=seen or {},
        standard_errors=standard_errors or {},
        not_set_up=not_set_up or {},
    )
    members: Any = script
    pending_signal = PendingSignal()
    pending_signal.signal = signal
    place = ActorPlacement("p", {})
    plan = resolve(settings)
    run_start = RunStart(requirements(plan, checkpoint=checkpoint), **before)
    startup = Startup.begin(run_start, members, ActorSlots([place, place], place), node_check, niceness=niceness)
    event_sink = EventSink(record, Audience(progress))
    directory = MemberDirectory(plan.exchange, "n", "a folder", everywhere=False)
    session = Session(startup, directory, Saving(catalog or without_checkpoints()), event_sink)
    session.run(pending_signal, lambda: trouble, draining, lambda: Diagnosis(oom_kills=oom_kills))
    for file in (journal, *record.history):
        file.close()
    files = [list(read(tmp_path / name)) for name in ("journal", "trace")]
    return Played(event_sink.outcome, files[0], files[1], shown, script.done, session)


BEGIN = [prepared(0), prepared(1)]
DESCRIBED = MemberMessage(0, "described", {"environment": {}, "modules": []})


def test_a_run_whose_folder_is_removed_ends_with_one_message(tmp_path: Path) -> None:
    """All that it wrote is there again, for the end of its record."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings").touch()

    def said() -> Iterator[MemberMessage]:
        yield from BEGIN
        yield DESCRIBED
        (folder / "trace").unlink()
        yield entries(0, {"trace": LINES[0]})
        (folder / "settings").unlink()
        shutil.rmtree(folder)
        yield entries(0, {"trace": LINES[1]})

    played = play(folder, said())
    error = played.outcome.error
    assert type(error) is RunFailed
    assert error.message.startswith(f"the folder of the run, {folder}, was removed while it ran, after step ")
    assert played.outcome.checkpoint is None
    assert f"warning: files in {folder} were removed while the run writes them; they are there again" in played.shown
    assert played.trace[0] == LINES[0]
    assert "generation_started" in [event["event"] for event in played.journal]
    assert "the run failed: RunFailed" in [event.get("reason") for event in played.journal]


def test_what_the_operating_system_refuses_the_driver_ends_a_run_with_one_message(tmp_path: Path) -> None:
    def tick() -> None:
        raise OSError(errno.EMFILE, "Too many open files", "/there")

    played = play(tmp_path, BEGIN, tick=tick)
    error = played.outcome.error
    assert type(error) is RunFailed
    assert error.message == "the driver could not go on: Too many open files (/there)"
    assert "ulimit -n" in error.remedy
    assert "Traceback" in error.details


def test_a_run_from_its_first_word_to_its_last(tmp_path: Path) -> None:
    first, second = ({"trace": line} for line in LINES)
    said = [
        *BEGIN,
        entries(0, first, {"printed": "hello"}),
        entries(1, first, {"printed": "hello"}, {"event": "loader_lost", "why": "a loader ended"}),
        DESCRIBED,
        finished(0),
        finished(1),
    ]
    played = play(tmp_path, said, {0: [second], 1: [second]})
    outcome = played.outcome
    assert (outcome.status, outcome.steps, outcome.loss, outcome.digest) == ("finished", 2, 1.5, "d")
    assert (outcome.workers, outcome.generations, outcome.recoveries) == (2, 1, ())
    assert played.trace == LINES
    assert played.shown == [
        "[worker 0] hello",
        "worker 1: a loader ended",
        "note: this run cannot be repeated exactly: of a node",
        "note: of new code",
    ]
    assert {"event": "loader_lost", "worker": 1, "why": "a loader ended"}.items() <= played.journal[-3].items()
    started = [event for event in played.journal if event["event"] == "worker_started"]
    assert [(event["worker"], event["pid"], event["node"]) for event in started] == [(0, 100, "n"), (1, 101, "n")]
    assert played.done == [
        ("start", 0, "worker"),
        ("start", 1, "worker"),
        ("run", 0, 0, 0, [1]),
        ("run", 1, 0, 1, [0]),
        ("describe", 0),
    ]


def test_after_a_loss_the_survivor_goes_on_and_another_is_started(tmp_path: Path) -> None:
    """Lines that only the dead one had told are not lost, and what is computed again is compared with them.

    The terminal says who was lost and how the run went on; the rest is the journal's."""
    first, second = ({"trace": line} for line in LINES)
    running = {"event": "generation_running", "generation": 1, "step": 1}
    said = [
        *BEGIN,
        DESCRIBED,
        entries(1, first, second),
        MemberMessage(1, "died", why="in Ray's words"),
        MemberMessage(1, "died", why="in Ray's words"),
        left(0, "peer", 1, accuses=1),
        entries(0, first, running, second),
        finished(0, 1),
    ]
    played = play(tmp_path, said)
    assert (played.outcome.status, played.outcome.workers, played.outcome.generations) == ("finished", 1, 2)
    assert [(each["kind"], each["steps_lost"]) for each in played.outcome.recoveries] == [("lost", 0)]
    assert played.trace == LINES
    lost = [event for event in played.journal if event["event"] == "worker_lost"]
    assert [(event["worker"], event["step"], event["why"]) for event in lost] == [(1, 2, "its process (pid 101) ended")]
    told = [line for line in played.shown if "worker" in line and not line.startswith("note:")]
    assert told[0].startswith("worker 1 on node "), played.shown
    assert told[0].endswith(" was lost after step 2: its process (pid 101) ended")
    assert re.fullmatch(r"went on after \d+\.\d\d s, no step lost; 1 worker now", told[1]), told
    assert told[2:] == []
    assert ("start", 2, "worker") in played.done
    assert ("call off", 0, 0) in played.done
    assert played.done[-1] == ("run", 0, 1, 0, [])


def test_whoever_comes_and_cannot_prepare_is_ended_and_told_as_lost(tmp_path: Path) -> None:
    """Campaign, seed 310: one that had no descriptor left stayed, and kept the place of those that came after it."""
    why = "[Errno 24] Too many open files"
    running = {"event": "generation_running", "generation": 1, "step": 0}
    said = [
        *BEGIN,
        DESCRIBED,
        MemberMessage(1, "died"),
        left(0, "peer", 0, accuses=1),
        MemberMessage(2, "prepared", {"failed": RunFailed(why).as_dict()}),
        entries(0, running),
        finished(0, 1),
    ]
    played = play(tmp_path, said)
    assert played.outcome.status == "finished"
    assert ("kill", 2) in played.done
    assert [event["worker"] for event in played.journal if event["event"] == "worker_lost"] == [1, 2]
    assert ("start", 3, "worker") in played.done


def test_whoever_cannot_prepare_as_files_were_changed_is_told_so(tmp_path: Path) -> None:
    """The next ones work in a checkout, which is made when it is found."""
    asked: list[tuple[str | None, bool]] = []

    def node_check(node: str | None, in_copy: bool) -> str | None:
        asked.append((node, in_copy))
        return "nets.py changed since the run began" if node is None else None

    said = [
        *BEGIN,
        DESCRIBED,
        MemberMessage(1, "died"),
        left(0, "peer", 0, accuses=1),
        MemberMessage(2, "prepared", {"failed": RunFailed("nets.py: invalid syntax").as_dict()}),
        entries(0, {"event": "generation_running", "generation": 1, "step": 0}),
        finished(0, 1),
    ]
    played = play(tmp_path, said, node_check=node_check)
    assert asked[2:] == [(None, False)]
    lost = [event["why"] for event in played.journal if event["event"] == "worker_lost"]
    assert lost[1:] == ["nets.py changed since the run began"]


def test_steps_of_which_the_driver_hears_at_once_are_lost_with_all_state(tmp_path: Path) -> None:
    """Also when its first news of the generation holds several, and when they come after the next one has begun."""
    first, second = ({"trace": line} for line in LINES)
    begun = {"event": "generation_running", "generation": 0, "step": 0}
    left_behind = [left(0, "peer", 2, accuses=1), MemberMessage(1, "died"), entries(0, begun, first, second)]
    for number, said in enumerate(([entries(0, begun, first, second)], left_behind)):
        running = {"event": "generation_running", "generation": number + 1, "step": 0}
        (tmp_path / str(number)).mkdir()
        ends = [
            MemberMessage(0, "died"),
            MemberMessage(1, "died"),
            prepared(2),
            entries(2, running),
            finished(2, number + 1),
        ]
        outcome = play(tmp_path / str(number), [*BEGIN, DESCRIBED, *said, *ends]).outcome
        assert outcome.status == "finished"
        assert [(each["kind"], each["steps_lost"]) for each in outcome.recoveries] == [("restarted", 2)]


def test_an_accused_member_whose_process_has_ended_is_lost_before_ray_says_so(tmp_path: Path) -> None:
    running = {"event": "generation_running", "generation": 1, "step": 1}
    first, second = ({"trace": line} for line in LINES)
    said = [
        *BEGIN,
        DESCRIBED,
        left(0, "peer", 1, accuses=1),
        entries(0, first, running, second),
        MemberMessage(1, "died", why="in Ray's words"),
        finished(0, 1),
    ]
    played = play(tmp_path, said, gone={1})
    assert (played.outcome.status, played.outcome.generations) == ("finished", 2)
    assert [event["worker"] for event in played.journal if event["event"] == "worker_lost"] == [1]
    assert played.done.index(("run", 0, 1, 0, [])) > 0


def test_what_the_dead_were_doing_is_told_though_nothing_of_theirs_was_heard(tmp_path: Path) -> None:
    """Two of two are lost, one by one and with all state, and then whoever begins anew: the driver has seen no step."""
    activity = {"activity": "compute", "step": 1, "shard": 5, "beats": 40}
    said = [
        *BEGIN,
        DESCRIBED,
        MemberMessage(1, "died"),
        left(0, "peer", 1, accuses=1),
        MemberMessage(0, "died"),
        prepared(2),
    ]
    played = play(tmp_path, [*said, MemberMessage(2, "died")], last_activities={0: activity, 1: activity, 2: activity})
    assert isinstance(played.outcome.error, WorkerLost)
    assert "step 1, shard 5: 3 workers in a row were lost while they computed it" in str(played.outcome.error)
    why = [event["why"] for event in played.journal if event["event"] == "worker_lost"]
    assert why[0] == "its process (pid 101) ended in the compute phase of step 1, shard 5"


def on_card(member: int, free: int) -> MemberMessage:
    there = {"card": "GPU-a", "card_memory": {"name": "X", "free_bytes": free, "total_bytes": 10**9}}
    told = prepared(member)
    return MemberMessage(member, "prepared", {**told.answer, **there})


def test_workers_that_do_not_fit_on_their_card_begin_no_step(tmp_path: Path) -> None:
    """The memory counts that the first of them found free. The run begins if they fit."""
    said = [on_card(0, 7 * 10**8), on_card(1, 5 * 10**8), DESCRIBED, finished(0), finished(1)]
    for name in ("full", "fits"):
        (tmp_path / name).mkdir()
    played = play(tmp_path / "full", said, needed=[4 * 10**8, 4 * 10**8])
    assert played.outcome.error is not None
    assert played.outcome.error.code == "gpu.crowded"
    assert "2 workers share GPU GPU-a (X, 1 GB), of which 700 MB were free before" in played.outcome.error.message
    assert not [each for each in played.done if each[0] == "run"]
    played = play(tmp_path / "fits", said, needed=[3 * 10**8, 4 * 10**8])
    assert played.outcome.error is None
    assert [line for line in played.shown if "memory may run out" in line]


def test_a_spare_beside_them_is_counted_and_named_with_its_setting(tmp_path: Path) -> None:
    """It still prepares, and has told its card."""
    prepares = MemberMessage(2, "entries", heartbeat={**PULSE, "activity": "prepare", "card": "GPU-a"})
    said = [on_card(0, 9 * 10**8), prepares, on_card(1, 5 * 10**8), DESCRIBED, finished(0), finished(1)]
    needed, more = [4 * 10**8, 4 * 10**8], ["cluster.spares=1"]
    for name, spare in (("fits", 10**8), ("full", 2 * 10**8)):
        (tmp_path / name).mkdir()
        played = play(tmp_path / name, said, needed=needed, spare=spare, more=more)
        error = played.outcome.error
        assert (error is not None) is (name == "full")
    assert error is not None
    assert "2 workers and 1 spare share GPU GPU-a" in error.message
    assert "lower cluster.spares, cluster.workers" in error.remedy


ABORTED = (
    "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  CUDA error: unknown error\n"
)


def test_a_process_that_its_card_has_aborted_is_lost_once_with_the_code(tmp_path: Path) -> None:
    """Before it was ready, or in a step. One that had nothing to do has only died."""
    first, second = ({"trace": line} for line in LINES)
    running = {"event": "generation_running", "generation": 1, "step": 1}
    said = [
        MemberMessage(1, "died", why="in Ray's words"),
        MemberMessage(1, "died", why="in Ray's words"),
        prepared(0),
        prepared(2),
        DESCRIBED,
        entries(0, first),
        MemberMessage(2, "died"),
        left(0, "peer", 1, accuses=1),
        entries(0, running, second),
        prepared(3),
        MemberMessage(3, "died"),
        finished(0, 1),
    ]
    played = play(tmp_path, said, standard_errors=dict.fromkeys((1, 2, 3), ABORTED))
    assert (played.outcome.status, played.outcome.generations) == ("finished", 2)
    why = [(event["worker"], event["why"]) for event in played.journal if event["event"] == "worker_lost"]
    words = "(gpu.failed): a card failed and does not say of what: CUDA error: unknown error; it ended the process"
    assert why == [
        (1, f"failed on its GPU GPU-1 as it prepared {words}"),
        (2, f"failed on its GPU GPU-2 {words}"),
        (3, "its process (pid 103) ended"),
    ]


def test_why_a_process_was_not_set_up_is_told_with_its_loss(tmp_path: Path) -> None:
    full = "Ray could not set up its process there: OSError: [Errno 28] No space left on device"
    said = [MemberMessage(1, "died"), prepared(0), prepared(2), DESCRIBED, finished(0, 0), finished(2, 0)]
    played = play(tmp_path, said, not_set_up={1: full})
    assert [event["why"] for event in played.journal if event["event"] == "worker_lost"] == [full]


@pytest.mark.long
def test_two_thousand_losses_leave_next_to_nothing_behind(tmp_path: Path) -> None:
    """Worker 0 lives; whoever is started beside it dies, and before every tenth death a step is done."""
    waits = {member: {**PULSE, "activity": "exchange", "shard": None} for member in range(2001)}
    held: dict[int, int] = {}

    def life() -> Iterator[MemberMessage]:
        yield from [*BEGIN, DESCRIBED]
        for loss in range(2000):
            if loss % 10 == 0:
                step = loss // 10
                running = {"event": "generation_running", "generation": loss, "step": step}
                yield entries(0, running, {"trace": {**LINES[0], "step": step}})
            yield MemberMessage(loss + 1, "died")
            yield prepared(loss + 2)
            yield left(0, "called off", loss // 10 + 1, loss)
            if loss in (399, 1999):
                held[loss] = held_here()
        yield from [finished(0, 2000), finished(2001, 2000)]

    outcome = play(tmp_path, life(), last_activities=waits).outcome
    assert (outcome.status, outcome.generations) == ("finished", 2001)
    assert (held[1999] - held[399]) / 1600 < 19  # of which about 12 are what the test itself keeps


def held_here() -> int:
    """Blocks of memory in use: about as many as objects."""
    gc.collect()
    return sys.getallocatedblocks()


def test_workers_of_a_joined_ray_that_give_way_to_others_are_noted_once(tmp_path: Path) -> None:
    ends = [*BEGIN, DESCRIBED, finished(0), finished(1)]
    (note,) = [line for line in play(tmp_path, ends, niceness=0).shown if "nice level" in line]
    assert note.startswith("note: workers on node n run at nice level 15, this driver at 0")
    assert "RAY_worker_niceness=0 ray start" in note
    for niceness in (15, None):
        assert not [line for line in play(tmp_path, ends, niceness=niceness).shown if "nice level" in line]


def test_a_run_whose_ray_is_gone_ends(tmp_path: Path) -> None:
    outcome = play(tmp_path, [*BEGIN, DESCRIBED], trouble="the raylet has ended").outcome
    assert isinstance(outcome.error, ClusterUnavailable)
    assert "the raylet has ended" in str(outcome.error)
    assert "out-of-memory" not in str(outcome.error)


@pytest.mark.parametrize(("kills", "said"), [(2, "the kernel's out-of-memory killer has ended 2 processes"), (0, "if")])
def test_a_start_that_stalls_tells_of_the_out_of_memory_killer_where_it_was_at_work(
    tmp_path: Path, kills: int, said: str
) -> None:
    """It said to look whether the machine is busy."""
    nothing_new = itertools.repeat(entries(0))
    outcome = play(tmp_path, nothing_new, more=["cluster.start_timeout_s=0.1"], oom_kills=kills).outcome
    assert isinstance(outcome.error, ClusterUnavailable)
    assert outcome.error.code == "worker.no-progress"
    assert outcome.error.remedy.startswith(said)
    assert "if the machine is busy" in outcome.error.remedy


def test_a_run_that_is_being_stopped_when_its_ray_goes_ends_as_stopped(tmp_path: Path) -> None:
    played = play(tmp_path, [*BEGIN, DESCRIBED], signal="SIGTERM", trouble="the raylet has ended, with exit status 0")
    assert isinstance(played.outcome.error, Interrupted)
    assert "interrupted by SIGTERM" in str(played.outcome.error)
    told = "note: the raylet has ended, with exit status 0, while the run is stopped (SIGTERM)"
    assert [line for line in played.shown if "raylet" in line] == [told]


def test_replicas_that_disagree_in_their_last_words_are_an_error(tmp_path: Path) -> None:
    """They have no digest, with which later runs that are right would be compared."""
    first, other = {"trace": LINES[0]}, {"trace": {**LINES[0], "gradient": "01"}}
    outcome = play(tmp_path, [*BEGIN, DESCRIBED, finished(0), finished(1)], {0: [first], 1: [other]}).outcome
    assert isinstance(outcome.error, Inconsistent)
    assert "the gradient of step 0" in str(outcome.error)
    assert "check.every=1" in (outcome.error.remedy or "")
    assert outcome.digest is None


def test_a_layout_that_determines_the_result_has_to_be_whole() -> None:
    for reduction, whole in (("exact", False), ("fast", True)):
        assert (
            requirements(
                resolve(load([{"run": {"steps": 2}, "pipeline": {"target": "a:B"}}], [f"reduction={reduction}"]))
            ).whole
            is whole
        )


@pytest.mark.parametrize("before", [[], BEGIN])
def test_a_failure_ends_the_run(tmp_path: Path, before: list[MemberMessage]) -> None:
    kind: Any = "ran" if before else "prepared"
    failed = MemberMessage(0, kind, {"failed": NonFinite("the loss is nan").as_dict(), "generation": 0})
    assert isinstance(play(tmp_path, [*before, failed, DESCRIBED]).outcome.error, NonFinite)


def test_a_worker_whose_loader_has_other_code_is_lost_and_the_run_goes_on(tmp_path: Path) -> None:
    error = Inconsistent("nets changed while the run trained", code="data.loader-other-code")
    said = [
        *BEGIN,
        DESCRIBED,
        MemberMessage(1, "ran", {"failed": error.as_dict(), "generation": 0}),
        MemberMessage(1, "died"),
        left(0, "peer", 0, accuses=1),
        entries(0, {"event": "generation_running", "generation": 1, "step": 0}),
        finished(0, 1),
    ]
    played = play(tmp_path, said)
    assert played.outcome.status == "finished"
    assert ("kill", 1) in played.done
    lost = [(event["worker"], event["why"]) for event in played.journal if event["event"] == "worker_lost"]
    assert lost == [(1, "nets changed while the run trained")]


def test_a_signal_before_the_first_step_ends_the_run(tmp_path: Path) -> None:
    assert isinstance(play(tmp_path, list(BEGIN), signal="SIGINT").outcome.error, Interrupted)


def test_a_resumed_run_that_comes_to_nothing_can_be_resumed_from_where_it_was(tmp_path: Path) -> None:
    assert play(tmp_path, list(BEGIN), signal="SIGINT", checkpoint=1).outcome.checkpoint == 1
    assert play(tmp_path, list(BEGIN), signal="SIGINT").outcome.checkpoint is None


def test_a_resumed_run_that_had_no_step_left_tells_of_all_its_steps(tmp_path: Path) -> None:
    before: dict[str, Any] = {"written": 2, "loss": 1.5, "metrics": {"validation/loss": 1.25}}
    outcome = play(tmp_path, [*BEGIN, DESCRIBED, finished(0), finished(1)], **before).outcome
    assert (outcome.status, outcome.steps, outcome.loss) == ("finished", 2, 1.5)
    assert outcome.metrics == {"validation/loss": 1.25}


def test_checkpoints_that_cannot_be_listed_end_the_run_which_still_tells_what_it_came_to(tmp_path: Path) -> None:
    catalog = Mock()
    catalog.latest.side_effect = CheckpointDamaged("the checkpoints cannot be listed")
    outcome = play(tmp_path, [*BEGIN, DESCRIBED], checkpoint=2, catalog=catalog, written=2, loss=1.5).outcome
    assert isinstance(outcome.error, CheckpointDamaged)
    assert (outcome.steps, outcome.loss, outcome.checkpoint) == (2, 1.5, 2)


def test_no_checkpoint_stands_behind_a_trace_that_is_not_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: LineFile) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LineFile, "sync", full)
    catalog = without_checkpoints()
    part = {"event": "part_written", "generation": 0, "step": 1, "part": 0, "parts": 1, "blob": {"name": "b"}}
    said = [*BEGIN, entries(0, {"trace": LINES[0]}, part), DESCRIBED, finished(0), finished(1)]
    played = play(tmp_path, said, catalog=catalog)
    catalog.commit.assert_not_called()
    assert played.outcome.checkpoint is None
    assert played.shown[0] == (
        "warning: the checkpoint of step 1 could not be written, the run goes on without it: the record is not on the disk: "
        "No space left on device"
    )


def test_the_weights_come_from_any_worker_that_still_has_them(tmp_path: Path) -> None:
    ends = [*BEGIN, DESCRIBED, finished(0), finished(1)]
    played, here = play(tmp_path, ends, gone={0}), str(tmp_path / "here")
    assert played.session.save_weights(here) == 1
    assert played.done[-2:] == [("save weights", 0, "here"), ("save weights", 1, "here")]
    with pytest.raises(WorkerLost):
        play(tmp_path, ends, gone={0, 1}).session.save_weights(here)


def test_the_weights_of_a_model_in_stages_come_from_a_worker_of_each(tmp_path: Path) -> None:
    """Not from one alone, and nothing is left where a stage has no worker any more."""
    members: Any = Script(iter(()), {}, gone={3})
    assert trained_weights.save(members, [[0, 2], [3, 1]], tmp_path / "here") == 0
    assert [member for _, member, _ in members.done] == [0, 3, 1]
    assert load_file(tmp_path / "here").keys() == {"of 0", "of 1"}
    with pytest.raises(WorkerLost):
        trained_weights.save(members, [[0, 2], [3]], tmp_path / "there")
    assert [file.name for file in tmp_path.iterdir()] == ["here"]


def test_parts_of_a_driver_that_was_killed_are_removed(tmp_path: Path) -> None:
    (tmp_path / "here.stage-2").touch()
    members: Any = Script(iter(()), {})
    assert trained_weights.save(members, [[0, 1]], tmp_path / "here") == 0
    assert [file.name for file in tmp_path.iterdir()] == ["here"]


def test_weights_that_cannot_be_made_one_file_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_weights, "merge", Mock(side_effect=OSError(28, "No space left on device")))
    members: Any = Script(iter(()), {})
    with refused("worker.weights-unwritten"):
        trained_weights.save(members, [[0], [1]], tmp_path / "here")
    assert not list(tmp_path.iterdir())


def elsewhere(member: int, *, shard_state: bool) -> MemberMessage:
    answer = prepared(member, shard_state=shard_state)
    return MemberMessage(member, "prepared", {**answer.answer, "node": "m"})


def test_where_shards_keep_state_every_worker_has_to_reach_the_checkpoints(tmp_path: Path) -> None:
    said = [prepared(0, shard_state=True), elsewhere(1, shard_state=True)]
    played = play(tmp_path, said)
    error = played.outcome.error
    assert isinstance(error, ConfigurationError)
    assert "worker 1 on node m does not reach the checkpoints" in error.message
    assert error.remedy == "set checkpoint.uri to a place that all nodes reach"
    assert not [each for each in played.done if each[0] == "run"]


def test_a_worker_whose_shards_lose_what_they_keep_is_told_once(tmp_path: Path) -> None:
    """Memory of the driver that it cannot reach is as far away as another machine."""
    unreached = {"event": "slots_out_of_reach", "why": "No such process"}
    said = [
        *(prepared(member, shard_state=True) for member in (0, 1)),
        entries(1, unreached),
        entries(1, unreached),
        DESCRIBED,
        finished(0),
        finished(1),
    ]
    played = play(tmp_path, said)
    told = [event for event in played.journal if event["event"] == "shard_state_unprotected"]
    assert [(event["worker"], event["why"]) for event in told] == [(1, "No such process")]
    assert [line for line in played.shown if "what the shards of worker 1 keep is lost with its process" in line]


def test_a_caller_that_a_member_refused_is_told_in_one_line(tmp_path: Path) -> None:
    why = "refused a connection from 10.0.0.9: who called has no certificate"
    said = [prepared(0), prepared(1), entries(1, {"event": "caller_refused", "why": why}), DESCRIBED]
    played = play(tmp_path, [*said, finished(0), finished(1)])
    assert played.shown[0] == f"member 1 {why}"
    assert not any(why in line for line in played.shown[1:])
    told = [event for event in played.journal if event["event"] == "caller_refused"]
    assert [(event["member"], event["why"]) for event in told] == [(1, why)]


def resting(generation: int, steps: int, loss: str, first: int = 0) -> list[dict[str, Any]]:
    """The reports of a worker about a sprint from step `first` up to `steps`, and its rest."""
    lines = [
        {"trace": {"step": step, "loss": loss, "gradient": "00"}, "generation": generation}
        for step in range(first, steps)
    ]
    evaluated = {"event": "evaluated", "step": steps - 1, "metrics": {"m": float(generation)}, "generation": generation}
    rest = {"rest": 0, "steps": steps, "clocks": [steps, steps], "updates": loss}
    return [*lines, {"rest": rest, "generation": generation}, evaluated]


@pytest.mark.parametrize("first", [0, 100])
def test_a_sprint_that_is_done_again_replaces_the_one_that_was_lost(tmp_path: Path, first: int) -> None:
    """Only who was lost had rested. Its late reports count no more. Also of a run that begins with the state of another one
    after so many steps, whose trace has no lines of them."""
    before, after = resting(0, first + 2, "0x1p+0", first), resting(1, first + 1, "0x1p+1", first)
    said = [
        *BEGIN,
        entries(0, *before),
        MemberMessage(0, "died", why=""),
        left(1, "peer", 0),
        entries(1, {"event": "generation_running", "generation": 1, "step": first}, *after),
        entries(0, *before),
        replace(DESCRIBED, member=1),
        finished(1, 1),
    ]
    played = play(tmp_path, said, sync="bap", gone={0}, first=first, written=first)
    assert played.trace == [after[0]["trace"]]
    assert list(read(tmp_path / "rests")) == [after[1]["rest"]]
    assert (played.outcome.steps, played.outcome.loss, played.outcome.metrics) == (first + 1, 2.0, {"m": 1.0})


def test_what_workers_tell_of_their_speed_moves_shards_and_names_who_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORTH_S": 0.0, "SLOW_ROUNDS": 2, "SLOW_S": 0.0}.items():
        monkeypatch.setattr(balancing, name, value)
    times = [entries(member, {"event": "times", "micro_batch_s": each}) for member, each in ((0, 0.02), (1, 0.06))]
    first, second = ({"trace": line} for line in LINES)
    said = [
        *BEGIN,
        DESCRIBED,
        *times,
        *times,
        entries(0, first),
        left(0, "regroup", 1),
        left(1, "regroup", 1),
        entries(0, second),
        finished(0, 1),
        finished(1, 1),
    ]
    played = play(tmp_path, said, more=["cluster.claims=false"])
    told = "worker 1 on node n: 60 ms for a micro-batch, others 20 ms in the median"
    assert (played.outcome.rebalanced, played.outcome.hosted, played.outcome.slow) == (1, (6, 2), (told,))
    (redealt,) = [event for event in played.journal if event["event"] == "shards_redealt"]
    assert redealt.items() >= {"micro_batch_s": [[0, 0.02], [1, 0.06]], "step_s": 0.24, "moving": 2}.items()
    (slow,) = [event for event in played.journal if event["event"] == "worker_slow"]
    assert slow.items() >= {"worker": 1, "where": "node n", "micro_batch_s": 0.06, "others_s": 0.02}.items()
    assert any(told in each for each in played.shown)
    summed = summary.text(played.outcome, "digits", "2 workers", "r", "here")
    assert "  dealt    6, 2, after 1 new deal by speed\n" in summed
    assert f"  slow     {told}\n" in summed


def test_speeds_of_nodes_that_are_not_there_are_refused() -> None:
    nodes = [Node("1a", "10.0.0.1", {}), Node("2b", "10.0.0.2", {})]
    refuse_unknown({"10.0.0.2": 0.5}, nodes)
    with refused("ray.speeds"):
        refuse_unknown({"10.0.0.3": 0.5}, nodes)


READ = {"hosts": ["api:80"], "variables": {"SCALE": ["2"]}}


def having_read(heard: MemberMessage) -> MemberMessage:
    return replace(heard, answer={**heard.answer, "reads": READ})


def test_what_workers_and_their_loaders_have_read_is_told(tmp_path: Path) -> None:
    second = prepared(1)
    told = [
        having_read(prepared(0)),
        replace(second, answer={**second.answer, "reads": {"variables": {"MODE": ["a"]}}}),
    ]
    played = play(tmp_path, [*told, DESCRIBED, finished(0), finished(1)])
    said = "\n".join(played.shown)
    assert "this run cannot be repeated exactly: api:80: the pipeline connected there" in said
    assert "note: SCALE=2: read from the environment by the pipeline, and set again by a rerun" in said
    assert "note: MODE=a: read from the environment" in said
    assert played.outcome.error is None


def test_under_strict_a_run_that_reads_what_is_not_declared_ends_before_its_first_step(tmp_path: Path) -> None:
    played = play(tmp_path, [having_read(prepared(0))], more=["strict=true"])
    error = played.outcome.error
    assert isinstance(error, NotRerunnable)
    assert error.exit_code == 4
    assert "api:80" in error.message
    assert "SCALE=2" in error.message
    assert not [each for each in played.done if each[0] == "run"]


def test_who_computed_wrongly_is_named_with_its_machine_and_the_step_is_repeated(tmp_path: Path) -> None:
    verdict = Verdict(1, 3, 0, wrong=(1,), between=(0, 1))
    judged = {"ended": Ended("distrust", Progress(1), verdict=verdict), "generation": 0}
    first, second = ({"trace": line} for line in LINES)
    said = [
        *BEGIN,
        DESCRIBED,
        entries(0, first),
        MemberMessage(0, "ran", judged),
        entries(0, {"event": "generation_running", "generation": 1, "step": 1}, second),
        finished(0, 1),
    ]
    played = play(tmp_path, said)
    told = "worker 1 on node n computed shard 3 of step 1 wrongly; it may have done so since step 0"
    assert (played.outcome.status, played.outcome.wrong, played.outcome.workers) == ("finished", (told,), 1)
    assert any(line.startswith(f"warning: {told}; the step is repeated in another process") for line in played.shown)
    (event,) = [event for event in played.journal if event["event"] == "answers_differ"]
    assert event.items() >= {"step": 1, "shard": 3, "workers": [1], "names": ["worker 1 on node n"]}.items()
    (lost,) = [event for event in played.journal if event["event"] == "worker_lost"]
    assert (lost["worker"], lost["why"]) == (1, "computed wrongly in step 1")
    assert f"  wrong    {told}\n" in summary.text(played.outcome, "digits", "2 workers", "r", "here")


def test_who_is_on_a_node_that_goes_away_leaves_when_another_has_come(tmp_path: Path) -> None:
    looks: Iterator[dict[str, float | None]] = iter([{}] * 3)
    first, second = ({"trace": line} for line in LINES)
    running = {"event": "generation_running", "generation": 1, "step": 1}
    said = [
        prepared(0),
        prepared(1, node="far"),
        DESCRIBED,
        MemberMessage(1, "described", {"environment": {}, "modules": []}),
        entries(0, first),
        prepared(2),
        left(0, "regroup", 1),
        left(1, "regroup", 1),
        entries(0, running, second),
        finished(0, 1),
        finished(2, 1),
    ]
    at = time.time() + 60
    played = play(tmp_path, said, draining=lambda: next(looks, {"far": at}))
    assert (played.outcome.status, played.outcome.workers) == ("finished", 2)
    (drained,) = [event for event in played.journal if event["event"] == "node_drained"]
    assert drained["members"] == ["worker 1"]
    assert 0 < drained["seconds"] <= 60
    (gone,) = [event for event in played.journal if event["event"] == "worker_left"]
    assert gone["worker"] == 1
    assert [event for event in played.journal if event["event"] == "worker_lost"] == []
    assert [each for each in played.done if each[0] in ("ask", "kill")] == [("ask", 0, "regroup"), ("kill", 1)]
    assert any("(Ray drains it); worker 1 leaves when others have come" in line for line in played.shown)
    assert "worker 1 left after step 1, since its node goes away" in played.shown
    assert [each["steps_lost"] for each in played.outcome.recoveries] == [0]


def test_a_launch_whose_own_node_goes_away_says_so(tmp_path: Path) -> None:
    first, second = ({"trace": line} for line in LINES)
    said = [*BEGIN, DESCRIBED, entries(0, first, second), finished(0), finished(1)]
    played = play(tmp_path, said, draining=lambda: {"n": None})
    assert any(line.startswith("warning: this launch runs there and ends with it") for line in played.shown)


def test_where_members_of_a_step_that_stalls_stand_is_written_down_before_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10**6, 2))
    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    users = (
        'File "/p/net.py", line 7 in forward\n  File "/o/orchestrator/worker/model/pipeline_adapter.py", line 3 in loss'
    )
    seen = {0: ProcessStacks("", "T"), 1: ProcessStacks(f"Thread 0x1 (most recent call first):\n  {users}\n", "S")}
    waits = MemberMessage(1, "entries", heartbeat={**PULSE, "activity": "exchange"})
    said = [*BEGIN, DESCRIBED, *[entries(0), waits] * 6, left(1, "peer", 0), finished(1, 1)]
    played = play(tmp_path, said, more=["cluster.step_timeout_s=20"], seen=seen)
    order = [each[:2] for each in played.done if each[0] in ("stacks", "kill")]
    assert order[:2] == [("stacks", 0), ("kill", 0)]
    events = [event for event in played.journal if event["event"] in ("stacks", "worker_lost")]
    assert [event["event"] for event in events[:3]] == ["stacks", "stacks", "worker_lost"]
    assert events[0]["at"] is None
    assert "its process is stopped (SIGSTOP) and answers nothing" in events[2]["why"]
    assert "kill -CONT" not in events[2]["why"], "it is killed"
    assert events[1]["at"] == "net.py:7 in forward"
    assert events[1]["stacks"] == [
        ["/p/net.py:7 in forward", "/o/orchestrator/worker/model/pipeline_adapter.py:3 in loss"]
    ]
