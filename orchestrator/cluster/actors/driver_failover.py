"""Goes on with a run of a joined Ray when the machine of its driver is lost: a detached actor on another node, and its driver's
side.

The supervisor of a driver (`driver.supervision`) is lost with its machine. This actor is not. If it is on the head, it looks
at Ray's list of nodes, and starts `python -m orchestrator resume=RUN` when the driver's node is dead. It does so in the
project's folder if its node has that, and else in an empty one, into which code and data come from the record. While the
driver lives it makes another actor for one that is lost, so Ray need not (`max_restarts`): a copy that Ray made would not
know that somebody goes on with the run already.

If the driver is on the head, nothing of Ray outlives their machine. There the actor, on another node, starts a process that
does (`driver.supervision.remote_failover`), and passes on to it that the driver lives.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.ray_calls import unless_gone
from orchestrator.common import locks
from orchestrator.records import redaction

NAMESPACE = "orchestrator"
_HEAD = "node:__internal_head__"  # a resource of one node
_LOOK_S = 0.5
_BEAT_S = 5.0
_FORGOTTEN_S = 600.0  # without a beat of a driver whose node lives, which has ended without a word
_OF_A_WORKER = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_NODE_ID", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class FailoverTask:
    """The task when the node of the driver is lost."""

    run: str  # the run's id
    node: str  # of the driver, by its id
    driver: int  # its process
    words: Sequence[str]  # of the command line after `python -m`
    project: str  # the folder of the driver
    variables: Mapping[str, str]  # of the new process, beside those of its node
    driver_variable: str  # the variable that tells the new process whom it follows (`driver.supervision`)
    # to the new process by its standard input; then it is started at once, and hears of the driver after it
    first_line: str = ""
    lock: str = ""  # of the run, within the folder of a project; nobody goes on with a run that is locked there


class FailoverActor:
    """The actor."""

    def __init__(self, task: FailoverTask) -> None:
        self._task = task
        self._heard = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._obstacle = self._prepare()
        threading.Thread(target=self._watch, name="standby", daemon=True).start()

    def beat(self) -> str | None:
        """The driver lives. Returns the obstacle to going on with its run, in words; None where there is none."""
        self._heard = time.monotonic()
        if self._obstacle is not None:
            self._obstacle = self._prepare()
        self._pass_on("beat")
        return self._obstacle

    def over(self) -> None:
        """The driver needs nobody any more."""
        self._pass_on("over")

    def _prepare(self) -> str | None:
        """The same as `beat` returns."""
        try:
            require_home()
            if self._task.first_line:
                self._process = take_over(self._task)
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
            return f"on {socket.gethostname()}: {error}"
        return None

    def _pass_on(self, word: str) -> None:
        if self._process is not None:
            try:
                write_line(self._process, word)
            except OSError:  # the driver makes another one
                os._exit(0)

    def _watch(self) -> None:
        while time.monotonic() - self._heard < _FORGOTTEN_S and not (self._process and has_left(self._process)):
            if self._process is None and is_lost(self._task.node, _nodes()) and not is_locked(self._task):
                take_over(self._task).wait()  # the actor's end would be the process's
                break
            time.sleep(_LOOK_S)  # Ray tells nobody of a lost node who does not ask
        os._exit(0)


def has_left(process: subprocess.Popen[bytes]) -> bool:
    """Whether nobody hears what it is told any more."""
    assert process.stdin is not None
    poll = select.poll()
    poll.register(process.stdin, 0)
    return bool(poll.poll(0))


def write_line(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()


def is_lost(node: str, nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether Ray holds it for dead. nodes: as `ray.nodes()` tells; empty where the head does not answer."""
    return any(each["NodeID"] == node and not each["Alive"] for each in nodes)


def require_home() -> Path:
    """The folder of such runs here. Raises OSError where nothing can be written there, RuntimeError without a home."""
    home = Path.home() / ".orchestrator-standby"
    home.mkdir(exist_ok=True, parents=True)
    if not os.access(home, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(home))
    return home


def is_locked(task: FailoverTask) -> bool:
    """Whether somebody drives the run in the folder in which it would go on, or seems to: if all machines share that, the lock
    of one that is gone may outlast it, on NFS for 90 seconds."""
    return bool(task.lock) and locks.is_held(_folder(task) / task.lock)


def _folder(task: FailoverTask) -> Path:
    """The folder in which the run goes on here."""
    folder = Path(task.project)
    return folder if _holds_something(folder) else require_home() / task.run


def take_over(task: FailoverTask) -> subprocess.Popen[bytes]:
    """Start the process that goes on with the run, or waits for that. Its output goes to RUN.log in
    `~/.orchestrator-standby`."""
    home, folder = require_home(), _folder(task)
    folder.mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_A_WORKER}
    marker = {task.driver_variable: f"1 0 {time.monotonic():.3f} {task.driver}"}
    with (home / f"{task.run}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *task.words],
            cwd=folder,
            env={**inherited, **task.variables, **marker},
            stdin=subprocess.PIPE if task.first_line else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if task.first_line:
        write_line(process, task.first_line)
    return process


@contextmanager
def standing_by(
    make: Callable[[], Any], trouble: Callable[[], str | None], hindered: Callable[[str], None]
) -> Iterator[None]:
    """Within this an actor is there, and another one for one that is lost. make: starts one, and may raise RayError; trouble:
    with the Ray, which then is asked for nothing any more: it would end this process for that; hindered: is told of an obstacle
    to going on, once."""
    over = threading.Event()
    held: list[Any] = []
    told: set[str] = set()

    def keep() -> None:
        while not over.is_set() and trouble() is None:
            try:
                held[:] = held or [make()]
                obstacle = ray.get(held[0].beat.remote(), timeout=_FORGOTTEN_S / 10)
                if obstacle is not None and obstacle not in told:
                    told.add(obstacle)
                    hindered(obstacle)
            except (RayError, ValueError):  # the next one may live
                held.clear()
            over.wait(_BEAT_S)

    thread = threading.Thread(target=keep, name="standby", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        if trouble() is None:
            thread.join(_BEAT_S)
        for actor in held:
            unless_gone(lambda actor=actor: ray.get(actor.over.remote(), timeout=_BEAT_S), trouble)  # type: ignore[misc]
            unless_gone(lambda actor=actor: ray.kill(actor), trouble)  # type: ignore[misc]


def is_head(node: str) -> bool:
    """node: by id."""
    return any(each["NodeID"] == node and _HEAD in each["Resources"] for each in _nodes())


def place(node: str) -> str | None:
    """The node, by id, of an actor that is to outlive this one: the head, or else the one with most processors; None
    where there is no other."""
    others = [each for each in _nodes() if each["Alive"] and each["NodeID"] != node]
    best = max(others, key=lambda each: (_HEAD in each["Resources"], each["Resources"].get("CPU", 0.0)), default=None)
    return None if best is None else str(best["NodeID"])


def starter(task: FailoverTask) -> Callable[[], Any]:
    """A function that starts an actor on another node. Raises ValueError where there is none."""
    kind: Any = ray.remote(num_cpus=0, max_restarts=0)(FailoverActor)

    def make() -> Any:
        there = place(task.node)
        if there is None:
            raise ValueError("no other node")
        where = NodeAffinitySchedulingStrategy(there, soft=False)
        name = f"standby-{task.run}-{os.getpid()}-{time.monotonic_ns()}"
        env = {"env_vars": redaction.without_secrets(task.variables)}  # the task has all
        options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "scheduling_strategy": where}
        return kind.options(**options, runtime_env=env).remote(task)

    return make


def _nodes() -> list[dict[str, Any]]:
    try:
        return list(ray.nodes())  # type: ignore[no-untyped-call]
    except Exception:  # Ray's own, of a head that does not answer at the moment
        return []


def _holds_something(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False
