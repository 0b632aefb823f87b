"""Goes on with a run when the head of its Ray is gone together with its driver: a process on another machine, outside
of that Ray.

    python -m orchestrator.driver.supervision.remote_failover

It hears that the driver lives from an actor on its node (`cluster.actors.driver_failover`), a line of standard input each
time: first what to do, in JSON, then "beat", in the end "over". The actor ends with the Ray. When the process has not heard
of the driver for some time, it asks the store, which the driver tells too (`leader_lease`): so a network that is cut between
the two machines is told from a driver that is dead. If the store knows nothing new for as long, the process becomes the next
driver. If the run has ended, or another process drives it, it ends.

If all machines share the folder of the run, its lock is waited for, too. On NFS that of a machine which is gone outlasts it by
90 seconds.

Not told apart are a driver that is dead and one that reaches neither this machine nor the store. The latter goes on until it
reaches the store, where it finds who has taken over.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from orchestrator.common import locks
from orchestrator.common.descriptors import readable
from orchestrator.driver.supervision import headless, supervisor
from orchestrator.driver.supervision.headless import Workers
from orchestrator.driver.supervision.supervisor import Lines
from orchestrator.provenance.tracking import Driving, Store

UNHEARD_S = 15.0  # three beats
SILENT_S = 30.0
_ASK_S = 5.0
_FORGOTTEN_S = 900.0  # without an answer of the store
Verdict = Literal["waits", "leaves", "goes on"]


@dataclass(frozen=True)
class RemoteFailoverTask:
    """All that another machine has to know to go on with a run."""

    run: str  # its id
    uri: str  # of the store
    process: tuple[str, ...]  # the driver's, as the store has it, its number first
    words: tuple[str, ...]  # of the command line that would go on with the run on its Ray, after `python -m`
    workers: Workers  # that may do so on one machine
    lock: str  # of the run, within the folder of a project

    @property
    def pid(self) -> str:
        return self.process[0]

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, as_json: str | bytes) -> RemoteFailoverTask:
        found = json.loads(as_json)
        lists = {name: tuple(found[name]) for name in ("process", "words")}
        return cls(**{**found, **lists, "workers": Workers(**found["workers"])})


@dataclass
class DriverSilence:
    """The last that was heard of the driver, and when. process: as the store has it."""

    process: tuple[str, ...]
    heard_at: float
    beat: str | None = None
    asked_at: float | None = None

    def hears(self, now: float) -> None:
        self.heard_at = now
        self.asked_at = None

    def is_not_answered(self) -> None:
        """The store does not answer: the driver may have told it nothing either."""
        self.asked_at = None

    def has_to_ask(self, now: float) -> bool:
        return now - self.heard_at >= UNHEARD_S

    def sees(self, now: float, driving: Driving) -> Verdict:
        """The verdict on what the store says of the driver."""
        if driving.process != self.process or not driving.is_running:
            return "leaves"
        if self.asked_at is None or driving.beat != self.beat:
            self.beat, self.asked_at = driving.beat, now
        return "goes on" if now - self.asked_at >= SILENT_S else "waits"


def main() -> None:
    """Returns where there is nothing to go on with, and else becomes the next driver."""
    lines = Lines(0)
    while not (first := lines.read()):
        if lines.is_over:
            return
    task = RemoteFailoverTask.of(first.pop(0))
    if _is_parent():  # Ray ends the children of its actors
        return
    if _is_wanted(task, lines, first):
        _say(
            f"nobody has heard of the driver of run {task.run} (process {task.pid}) for some time, here or at {task.uri}: "
            f"this machine goes on with it"
        )
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ[supervisor.TAKEN_OVER] = f"1 0 {time.monotonic():.3f} {task.pid}"
        headless.become(headless.words(task.words, task.workers, headless.cores()))


def _is_parent() -> bool:
    return os.fork() != 0


def _is_wanted(task: RemoteFailoverTask, lines: Lines, heard: list[bytes]) -> bool:
    """Whether the run needs another driver, once that is known."""
    silence = DriverSilence(task.process, time.monotonic())
    store: Store | None = None
    answered, is_told = time.monotonic(), False
    while True:
        if b"over" in heard:
            return False
        if heard:
            silence.hears(time.monotonic())
        heard = _read(lines, _ASK_S)
        if heard or not silence.has_to_ask(time.monotonic()):
            answered = time.monotonic()
            continue
        try:
            store = store or Store(task.uri, Path.cwd())
            verdict = silence.sees(time.monotonic(), store.driving(task.run))
        except Exception as error:  # MLflow's, requests': it is asked again
            silence.is_not_answered()
            if time.monotonic() - answered > _FORGOTTEN_S:
                _say(f"run {task.run} is left: neither its driver was heard of, nor {task.uri}: {error}")
                return False
            continue
        answered = time.monotonic()
        if verdict == "goes on" and locks.is_held(Path(task.lock)):
            if not is_told:
                _say(
                    f"run {task.run} is locked in {Path.cwd()}, by {locks.holder(Path(task.lock))}: its end is waited for"
                )
            is_told = True
        elif verdict != "waits":
            return verdict == "goes on"


def _read(lines: Lines, patience_s: float) -> list[bytes]:
    """The lines that come within this time. If the input is over there are none, once the time has passed."""
    if lines.is_over:
        time.sleep(patience_s)
        return []
    return lines.read() if readable([lines.descriptor], patience_s) else []


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
