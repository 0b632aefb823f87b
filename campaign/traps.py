"""The side of the campaign inside the processes of a run: they tell what they are about to do, and strike themselves there.

`installed` makes this process's `Traps` the injector of its moments (`orchestrator.common.injection`). At most of them it only
looks at one word (`moments.Words`). A fault is claimed by making a file, which the kernel lets one process do, and told in a
log, one line in one write, before it strikes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from campaign import moments
from campaign.kinds import BY_NAME, memory, process
from campaign.moments import NAMES, VARIABLE, Words
from orchestrator.comm import collectives
from orchestrator.comm.transports.base import Tag
from orchestrator.common import injection
from orchestrator.common.injection import Moment
from orchestrator.records.progress import Activity
from orchestrator.worker.between_steps.run_state import RunState
from orchestrator.worker.member.generation import Generation
from orchestrator.worker.member.heartbeat import Heartbeat
from orchestrator.worker.pipeline_parallel import messages
from orchestrator.worker.step.contribution import Contribution

_LOOK_S = (0.002, 0.01)  # between the first two looks at the gate, and between later ones at most
_ALIVE_S = 0.05  # between two beats of one who waits at the gate
_HOUR_S = 3600
_OF_PHASE = {
    **dict.fromkeys((collectives.SUM, *range(collectives.GRID_SUM, messages.ACTIVATIONS)), "sum"),
    collectives.VOTE: "vote",
    collectives.EVALUATION_VOTE: "evaluation",
    collectives.EVALUATION: "evaluation",
    collectives.END: "end",
    collectives.STATE_TRANSFER: "state transfer",
    collectives.ASYNC_PHASE: "sprint",
    collectives.BARRIER: "rest",
    collectives.FALLBACKS: "rest",
    messages.DONE: "held sum",
    messages.NORMS: "held sum",
}  # by the phase of a message
_OF_ACTIVITY = {"compute": "compute", "update": "apply", "checkpoint": "checkpoint copy", "evaluate": "evaluation"}


class Traps:
    """The traps of this process."""

    def __init__(self, folder: Path) -> None:
        self.words = Words(folder)
        self.in_driver = sys.argv[0].endswith("orchestrator/__main__.py")
        self._numbers = {name: number for number, name in enumerate(NAMES)}
        self._log = os.open(folder / "log.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._passed: dict[int, int] = {}  # how often this process was there while that fault waited
        self._flips: Mapping[str, Any] | None = None  # what flips bits here
        self.is_of_another_build = False
        self._met: Mapping[str, Callable[..., Any]] = {
            **{activity: partial(self._at_activity, activity) for activity in get_args(Activity)},
            "idle": self._at_rest,
            "initial parameters": self._at_initial_parameters,
            "send": self._at_send,
            "receive": self._at_receive,
            "contribution": self._at_contribution,
            "parameters": self._at_parameters,
            "commit": self._at_commit,
            "running": self._at_running,
            "checkpoint write": lambda *_: self.hit("checkpoint write"),
            **(self._of_driver() if self.in_driver else {}),
        }

    def __call__(self, moment: Moment, step: int | None, subject: Any) -> Any:
        """As `injection.Injector`. A trap that returns nothing leaves the subject as it is."""
        act = self._met.get(moment)
        instead = None if act is None else act(step, subject)
        return subject if instead is None else instead

    def hit(self, moment: str, step: int | None = None) -> None:
        """This process is there. If the moment is armed, and nobody was faster, the process is struck."""
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
        """Obey what the driver has handed on, if it is for this process."""
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

    # ---- by the moment of `injection`; each is called with its step and its subject

    def _of_driver(self) -> dict[str, Callable[..., None]]:
        return {
            "drive": self._at_drive,
            "lost": self._at_lost,
            "manifest": lambda step, _: self.hit("manifest", step),
        }

    def _at_drive(self, _step: int | None, _subject: None) -> None:
        self.words.driver = os.getpid()

    def _at_lost(self, _step: int | None, lost: tuple[str, int, str]) -> None:
        role, member, why = lost
        self.tell(what="lost", role=role, member=member, why=why)

    def _at_activity(self, activity: Activity, step: int | None, heartbeat: Heartbeat) -> None:
        number = self.words.armed(self._numbers[moments.FROM_OUTSIDE])
        if number < 0:
            self.obey(-number, step)
        if activity == "compute" and step is not None:
            self.wait_at_gate(step, heartbeat.live)
        moment = _OF_ACTIVITY.get(activity)
        if moment is not None:
            self.hit(moment, step)

    def _at_rest(self, _step: int | None, heartbeat: Heartbeat) -> None:
        if heartbeat.snapshot()["activity"] == "prepare":
            self.hit("admission")

    def _at_initial_parameters(self, _step: int | None, _digest: str) -> str | None:
        """The model of a worker of another build begins with other bits, so that it has prepared another run."""
        return "0" * 64 if self.is_of_another_build else None

    def _at_send(self, _step: int | None, tag: Tag) -> None:
        moment = _OF_PHASE.get(tag.phase)
        if moment is not None:
            self.hit(moment, tag.step)

    def _at_receive(self, step: int | None, tag: Tag) -> None:
        if _OF_PHASE.get(tag.phase) == "state transfer":
            self.hit("state transfer", step)

    def _at_contribution(self, step: int, computed: Contribution | None) -> Contribution | None:
        fault = self.flips(memory.GRADIENTS, step)
        if computed is None or fault is None:
            return None
        return computed._replace(tensors=memory.in_copies(computed.tensors, fault["place"], fault["bit"]))

    def _at_parameters(self, step: int, parameters: Sequence[torch.Tensor]) -> None:
        fault = None if self.computes_wrongly else self.flips(memory.PARAMETER, step)
        if fault is not None:
            memory.in_place(parameters, fault["place"], fault["bit"])

    def _at_commit(self, steps: int, before: RunState) -> None:
        if before.free is not None:
            self.hit("apply", steps)
        self.words.committed(steps, time.monotonic_ns())
        self.kept(steps - 1)

    def _at_running(self, step: int, here: tuple[Generation, int]) -> None:
        """The first step of a generation is committed: who takes part, and where."""
        generation, rank = here
        stage = generation.begin.stages[rank] if generation.begin.stages else 0
        workers = generation.workers
        self.tell(what="running", generation=generation.number, rank=rank, workers=workers, stage=stage, step=step)


_installed: Traps | None = None


def installed() -> Traps | None:
    """The traps of this process, installed by the first call; None in one that is not under test."""
    global _installed
    folder = os.environ.get(VARIABLE)
    if _installed is None and folder is not None:
        _installed = Traps(Path(folder))
        _shift_clock(_installed.words)
        injection.install(_installed)
    return _installed


def _shift_clock(words: Words) -> None:
    """The clock of the machine may be set wrong: so Python's functions tell."""
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + words.shift_s
    time.time_ns = lambda: nanoseconds() + words.shift_s * 1_000_000_000
