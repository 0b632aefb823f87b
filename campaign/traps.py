"""The side of the campaign inside the processes of a run: they tell what they are about to do, and strike themselves there.

`install` wraps functions by name; each wrapper first looks at one word (`moments.Words`). A fault is claimed by making a file,
which the kernel lets one process do, and told in a log, one line in one write, before it strikes.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from campaign import moments
from campaign.kinds import BY_NAME, memory, process
from campaign.moments import NAMES, VARIABLE, Words

_LOOK_S = (0.002, 0.01)  # between the first two looks at the gate, and between later ones at most
_ALIVE_S = 0.05  # between two beats of one who waits at the gate
_HOUR_S = 3600
_SUMS = (1, *range(12, 64))  # SUM, LATTICE, LATTICE_KEYS and what compressions send (`comm.collectives`)
_OF_PHASE = {
    **dict.fromkeys(_SUMS, "sum"),
    0: "vote",
    2: "evaluation",
    3: "evaluation",
    4: "end",
    5: "state transfer",
    6: "sprint",
    7: "rest",
    8: "rest",
    66: "held sum",
    67: "held sum",
}  # by the phase of a message
_OF_ACTIVITY = {"compute": "compute", "update": "apply", "checkpoint": "checkpoint copy", "evaluate": "evaluation"}


class Traps:
    """Of this process."""

    def __init__(self, folder: Path) -> None:
        self.words = Words(folder)
        self.in_driver = sys.argv[0].endswith("orchestrator/__main__.py")
        self._numbers = {name: number for number, name in enumerate(NAMES)}
        self._log = os.open(folder / "log.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._passed: dict[int, int] = {}  # how often this process was there while that fault waited
        self._flips: Mapping[str, Any] | None = None  # what flips bits here
        self.is_of_another_build = False

    def hit(self, moment: str, step: int | None = None) -> None:
        """This process is there. Where that is armed, and nobody was faster, it is struck."""
        number = self.words.armed(self._numbers[moment])
        if number:
            self._meet(moment, number, step)

    def flips(self, kind: str, step: int) -> Mapping[str, Any] | None:
        """The fault by which this process flips a bit in this step; told when it does so for the first time."""
        if self._flips is None and self.words.flip:
            fault = self._fault(self.words.flip)
            if fault is None or fault["kind"] != kind or step < fault["step"] or not self._claims(fault["number"]):
                return None
            self._flips = fault
            told = {"fault": fault["number"], "kind": kind, "moment": "compute", "step": step, "victim": os.getpid()}
            self.tell(what="struck", **told)
        return self._flips if self._flips is not None and self._flips["kind"] == kind else None

    @property
    def computes_wrongly(self) -> bool:
        return self._flips is not None

    def kept(self, step: int) -> None:
        """This process has committed the step; told where what it computes is wrong."""
        if self._flips is not None:
            self.tell(what="kept", step=step)

    def tell(self, **what: Any) -> None:
        line = json.dumps({"ns": time.monotonic_ns(), "pid": os.getpid(), **what}) + "\n"
        os.write(self._log, line.encode())

    def wait_at_gate(self, step: int, live: Callable[[], None]) -> None:
        """live: says that this process is alive, and may raise."""
        self.words.wants(step)
        beat_at = time.monotonic() + _ALIVE_S
        look_s, most_s = _LOOK_S
        while step >= self.words.gate:
            time.sleep(look_s)  # it waits for leave to go on, not for a moment
            look_s = min(2 * look_s, most_s)
            if time.monotonic() >= beat_at:
                live()
                beat_at = time.monotonic() + _ALIVE_S

    def _meet(self, moment: str, number: int, step: int | None) -> None:
        fault = self._fault(number)
        if fault is None:
            return
        if os.getpid() in fault["spared"]:
            return
        self._passed[number] = self._passed.get(number, 0) + 1
        if self._passed[number] <= fault["skip"] or not self._claims(number):
            return
        self.words.arm(moment, moments.NOTHING)
        if self.in_driver and BY_NAME[fault["kind"]].family in ("process", "version"):
            self._hand_on(fault, step)
        else:
            self._suffer(moment, fault, step)

    def _suffer(self, moment: str, fault: Mapping[str, Any], step: int | None) -> None:
        if fault["then"] is not None:  # its partner waits from now on
            self.words.arm(fault["then_at"], fault["then"])
        kind = BY_NAME[fault["kind"]]
        victim = self.words.driver if kind.family == "driver" else os.getpid()
        self.tell(what="struck", fault=fault["number"], kind=kind.name, moment=moment, step=step, victim=victim)
        if kind.family == "driver":
            process.send(kind.signal or "", victim)
        elif kind.family == "clock":
            self.words.shift_s = 0 if self.words.shift_s else _HOUR_S
        elif kind.family == "version":
            self.is_of_another_build = True
        else:
            process.strike(kind.name, fault["hold_s"])

    def obey(self, number: int, step: int | None) -> None:
        """What the driver has handed on, if it is for this process."""
        fault = self._fault(number)
        if fault is not None and fault["pids"][0] == os.getpid():
            self.words.arm(moments.FROM_OUTSIDE, moments.NOTHING)
            self._suffer("manifest", fault, step)

    def _hand_on(self, fault: Mapping[str, Any], step: int | None) -> None:
        """From the driver to a worker: at once where it is a signal, and else where that worker is next."""
        (victim, *_), kind = fault["pids"], BY_NAME[fault["kind"]]
        if kind.signal is None:
            self.words.arm(moments.FROM_OUTSIDE, -fault["number"])
            return
        self.tell(what="struck", fault=fault["number"], kind=kind.name, moment="manifest", step=step, victim=victim)
        process.send(kind.signal, victim)

    def _claims(self, number: int) -> bool:
        try:
            os.close(os.open(self.words.folder / f"claim-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _fault(self, number: int) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.words.folder / f"fault-{number}.json").read_text())
        except (OSError, ValueError):
            return None
        return found


_installed: Traps | None = None


def installed() -> Traps | None:
    """Of this process, installed by the first call; None in one that is not under test."""
    global _installed
    folder = os.environ.get(VARIABLE)
    if _installed is None and folder is not None:
        _installed = Traps(Path(folder))
        _wrap_member(_installed)
        if _installed.in_driver:
            _wrap_driver(_installed)
    return _installed


def _before(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Have `act` called with the same arguments before the function of this name."""
    whole = getattr(owner, name)

    @functools.wraps(whole)
    def both(*arguments: Any, **named: Any) -> Any:
        act(*arguments, **named)
        return whole(*arguments, **named)

    setattr(owner, name, both)


def _after(owner: Any, name: str, act: Callable[..., None]) -> None:
    """And of one that returns nothing, after it."""
    whole = getattr(owner, name)

    @functools.wraps(whole)
    def both(*arguments: Any, **named: Any) -> None:
        whole(*arguments, **named)
        act(*arguments, **named)

    setattr(owner, name, both)


def _wrap_member(traps: Traps) -> None:
    from orchestrator.checkpoint import writer
    from orchestrator.worker.hooks import WorkerHooks
    from orchestrator.worker.loop import Loop
    from orchestrator.worker.member.cancellation import CancellableTransport
    from orchestrator.worker.member.heartbeat import Heartbeat

    _wrap_memory(traps)
    _wrap_clock(traps)
    _wrap_manifest(traps)
    _before(writer, "write_part", lambda *_: traps.hit("checkpoint write"))
    _before(Heartbeat, "rest", lambda heartbeat: _at_rest(traps, heartbeat))
    _after(Heartbeat, "beat", functools.partial(_at_beat, traps))
    _before(Loop, "_commit", functools.partial(_at_commit, traps))
    _before(WorkerHooks, "running", functools.partial(_at_running, traps))
    _before(CancellableTransport, "receive", lambda *given: _at_message(traps, given[2], "state transfer"))
    made = CancellableTransport.__init__

    def make(transport: Any, inner: Any, heartbeat: Any) -> None:
        made(transport, inner, heartbeat)
        send = transport.send

        def trapped(peer: int, tag: Any, *more: Any, **named: Any) -> Any:
            _at_message(traps, tag)
            return send(peer, tag, *more, **named)

        transport.send = trapped

    CancellableTransport.__init__ = make  # type: ignore[method-assign,assignment]


def _wrap_clock(traps: Traps) -> None:
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + traps.words.shift_s
    time.time_ns = lambda: nanoseconds() + traps.words.shift_s * 1_000_000_000


def _wrap_manifest(traps: Traps) -> None:
    """Of a worker of another build the model begins with other bits, so that it has prepared another run."""
    from orchestrator.worker import worker

    digest = worker.model_digest  # type: ignore[attr-defined]
    worker.model_digest = lambda model: "0" * 64 if traps.is_of_another_build else digest(model)  # type: ignore[attr-defined]


def _wrap_memory(traps: Traps) -> None:
    from orchestrator.worker.model.updater import Updater
    from orchestrator.worker.step.local_steps import LocalSteps
    from orchestrator.worker.step.shard_gradients import ShardGradients

    for owner in (ShardGradients, LocalSteps):
        _flip_contributions(traps, owner)

    def flip(updater: Any, step: int, *_: Any) -> None:
        fault = None if traps.computes_wrongly else traps.flips(memory.PARAMETER, step)
        if fault is not None:
            memory.in_place(updater._replica.parameters, fault["place"], fault["bit"])

    _after(Updater, "move", flip)


def _flip_contributions(traps: Traps, owner: Any) -> None:
    compute = owner.compute

    @functools.wraps(compute)
    def wrongly(gradients: Any, step: int, shard: int) -> Any:
        found = compute(gradients, step, shard)
        fault = traps.flips(memory.GRADIENTS, step)
        if found is None or fault is None:
            return found
        return found._replace(tensors=memory.in_copies(found.tensors, fault["place"], fault["bit"]))

    owner.compute = wrongly


def _wrap_driver(traps: Traps) -> None:
    from orchestrator.checkpoint.catalog import Catalog
    from orchestrator.driver.run.event_sink import EventSink
    from orchestrator.driver.run.session import Session

    def drives(*_: Any, **__: Any) -> None:
        traps.words.driver = os.getpid()

    _before(Session, "run", drives)
    _before(EventSink, "lost", lambda _, role, member, why: traps.tell(what="lost", role=role, member=member, why=why))
    _before(Catalog, "_prune", lambda _, manifest: traps.hit("manifest", manifest.step))


def _at_message(traps: Traps, tag: Any, only: str | None = None) -> None:
    moment = _OF_PHASE.get(tag.phase)
    if moment is not None and only in (None, moment):
        traps.hit(moment, tag.step)


def _at_rest(traps: Traps, heartbeat: Any) -> None:
    if heartbeat.snapshot()["activity"] == "prepare":
        traps.hit("admission")


def _at_beat(traps: Traps, heartbeat: Any, activity: str, step: int | None = None, _shard: int | None = None) -> None:
    number = traps.words.armed(NAMES.index(moments.FROM_OUTSIDE))
    if number < 0:
        traps.obey(-number, step)
    if activity == "compute" and step is not None:
        traps.wait_at_gate(step, heartbeat.live)
    moment = _OF_ACTIVITY.get(activity)
    if moment is not None:
        traps.hit(moment, step)


def _at_commit(traps: Traps, loop: Any, outcome: Any) -> None:
    if loop.run_state.free is not None:
        traps.hit("apply", outcome.steps)
    traps.words.committed(outcome.steps, time.monotonic_ns())
    traps.kept(outcome.steps - 1)


def _at_running(traps: Traps, hooks: Any) -> None:
    """The first step of a generation is committed: who takes part, and where."""
    generation, rank = hooks._generation, hooks._rank
    stage = generation.begin.stages[rank] if generation.begin.stages else 0
    step = hooks._state.loop.run_state.steps
    workers = generation.workers
    traps.tell(what="running", generation=generation.number, rank=rank, workers=workers, stage=stage, step=step)
