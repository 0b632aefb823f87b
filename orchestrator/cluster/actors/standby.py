"""Goes on with a run of a joined Ray when the machine of its driver is lost: a detached actor on another node, and its driver's
side.

The supervisor of a driver (`driver.supervision`) is lost with its machine. This actor is not. It looks at Ray's list of nodes,
and when the driver's is dead it starts `python -m orchestrator resume=RUN`: in the project's folder where its node has that,
and else in an empty one, into which code and data come from the record. While the driver lives it makes another actor for one
that is lost, so Ray need not (`max_restarts`): a copy that Ray made would not know that somebody goes on with the run already.

Which node is lost Ray's head knows, so the head's is the best place; where that is the driver's, nothing outlives it.
"""

from __future__ import annotations

import contextlib
import os
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

NAMESPACE = "orchestrator"
_HEAD = "node:__internal_head__"  # a resource of one node
_LOOK_S = 0.5
_BEAT_S = 5.0
_FORGOTTEN_S = 600.0  # without a beat of a driver whose node lives, which has ended without a word
_OF_A_WORKER = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_NODE_ID", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Task:
    """What to do when the node is lost. node, driver: of the driver, its node by id and its process; words: of the command line
    after `python -m`; project: the folder of the driver; variables: of the new process, beside those of its node; told_by:
    the variable that tells the new process whom it follows (`driver.supervision`)."""

    run: str
    node: str
    driver: int
    words: Sequence[str]
    project: str
    variables: Mapping[str, str]
    told_by: str


class Standby:
    """The actor."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._heard = time.monotonic()
        threading.Thread(target=self._watch, name="standby", daemon=True).start()

    def beat(self) -> None:
        """The driver lives."""
        self._heard = time.monotonic()

    def _watch(self) -> None:
        while time.monotonic() - self._heard < _FORGOTTEN_S:
            if is_lost(self._task.node, _nodes()):
                take_over(self._task).wait()  # the actor's end would be the process's
                break
            time.sleep(_LOOK_S)  # Ray tells nobody of a lost node who does not ask
        os._exit(0)


def is_lost(node: str, nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether Ray holds it for dead. nodes: as `ray.nodes()` tells; empty where the head does not answer."""
    return any(each["NodeID"] == node and not each["Alive"] for each in nodes)


def take_over(task: Task) -> subprocess.Popen[bytes]:
    """Start the process that goes on with the run. What it says goes to RUN.log in `~/.orchestrator-standby`."""
    home = Path.home() / ".orchestrator-standby"
    folder = Path(task.project)
    if not _holds_something(folder):
        folder = home / task.run
    for each in (home, folder):
        each.mkdir(exist_ok=True, parents=True)
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_A_WORKER}
    told = {task.told_by: f"1 0 {time.time():.3f} {task.driver}"}
    with (home / f"{task.run}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *task.words],
            cwd=folder,
            env={**inherited, **task.variables, **told},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@contextmanager
def standing_by(make: Callable[[], Any]) -> Iterator[None]:
    """Within this an actor is there, and another one for one that is lost. make: starts one, and may raise RayError."""
    over = threading.Event()
    held: list[Any] = []

    def keep() -> None:
        while not over.is_set():
            try:
                held[:] = held or [make()]
                ray.get(held[0].beat.remote(), timeout=_FORGOTTEN_S / 10)
            except (RayError, ValueError):  # the next one may live
                held.clear()
            over.wait(_BEAT_S)

    thread = threading.Thread(target=keep, name="standby", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_BEAT_S)
        for actor in held:
            with contextlib.suppress(RayError):
                ray.kill(actor)


def starter(task: Task) -> Callable[[], Any] | None:
    """What starts an actor on another node, its head before others; None where there is none that can outlive the driver's."""
    others = [node for node in _nodes() if node["Alive"] and node["NodeID"] != task.node]
    heads = [node for node in others if _HEAD in node["Resources"]]
    if not heads:
        return None
    kind: Any = ray.remote(num_cpus=0, max_restarts=0)(Standby)

    def make() -> Any:
        where = NodeAffinitySchedulingStrategy(heads[0]["NodeID"], soft=False)
        name = f"standby-{task.run}-{os.getpid()}-{time.monotonic_ns()}"
        env = {"env_vars": dict(task.variables)}
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
