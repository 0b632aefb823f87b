"""Pieces of a run, each with another layout, to see what its steps take: what `tune` and `topology: auto` measure with.

All pieces share one Ray and lie in a folder that is removed. A piece is the run itself, stopped as a user stops a run, without
what takes time beside its steps: checkpoints, evaluations, a digest now and then. Nobody is disturbed on purpose.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from orchestrator.cluster.placement.reservation import living_nodes
from orchestrator.cluster.sessions import RaySession
from orchestrator.cluster.sessions.joined import JoinedRay
from orchestrator.cluster.sessions.local import Actors, LocalRay
from orchestrator.common import temporary
from orchestrator.config.plan import Variant
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import (
    ChaosSettings,
    CheckpointSettings,
    EvaluationSettings,
    Settings,
    TrackingSettings,
    TuningSettings,
    Workers,
)
from orchestrator.driver.launch.launch import launch
from orchestrator.driver.preflight import visible_cards
from orchestrator.driver.run.job import Beside
from orchestrator.driver.terminal import signals
from orchestrator.driver.terminal.progress import ProgressDisplay
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.errors import Interrupted, RunFailed
from orchestrator.experiments.simulation import calibration
from orchestrator.experiments.simulation.calibration import Layout, Measured
from orchestrator.experiments.simulation.candidates import in_words
from orchestrator.records import lines, phases

_LEAST_STEPS: Final = 6  # of a piece, however long they take: the first computes twice and counts nothing
_STOPPED: Final = "tuned"  # the signal by which a piece ends
_ADDED: Final = 1 << 19  # elements, larger than the caches of one core


def with_values(settings: Settings, chosen: Mapping[str, Any]) -> Settings:
    """The settings with these values, and nothing left to choose."""
    changed = replace(settings, tuning=replace(settings.tuning, auto=()))
    if "topology" in chosen and chosen["topology"] != settings.topology.name:
        changed = replace(changed, topology=Variant(chosen["topology"]))
    if "cluster.workers" in chosen:
        changed = replace(changed, cluster=replace(changed.cluster, workers=Workers.parse(chosen["cluster.workers"])))
    if "data.loaders" in chosen:
        changed = replace(changed, data=replace(changed.data, loaders=chosen["data.loaders"]))
    return changed


@contextlib.contextmanager
def probing(settings: Settings, display: ProgressDisplay, most: int = 0) -> Iterator[Prober]:
    """With a Ray for all pieces, joined or started here, and a folder for their records. most: workers of a piece, where that
    is more than this machine has cores."""
    cluster, timeout_s = settings.cluster, settings.cluster.start_timeout_s
    cores = len(os.sched_getaffinity(0))
    planned = resolve(settings).cluster
    servers = max(1, planned.members.servers)
    room = cluster.cpus_per_worker * (max(cores, most, cluster.workers.start) + servers)
    actors = Actors(1.0, *visible_cards.for_ray(wanted=bool(planned.gpus)))
    ray: Any = JoinedRay(cluster.address) if cluster.address is not None else LocalRay(room, timeout_s, actors=actors)
    with temporary.folder() as folder, ray as session:
        nodes = [] if cluster.address is None else living_nodes()
        cpus = int(sum(node.resources.get("CPU", 0.0) for node in nodes)) if nodes else cores
        yield Prober(settings, display, session, folder, max(1, cpus))


@dataclass(frozen=True)
class Prober:
    """Runs pieces of a run. cpus: that workers may have in all."""

    settings: Settings
    display: ProgressDisplay
    ray: RaySession
    folder: Path
    cpus: int

    def measure(self, layout: Layout) -> Measured:
        """Raises Interrupted, RunFailed, and what the run raises."""
        self.display.say(f"measuring {in_words(layout)}")
        with signals.posted() as pending_signal, phases.of_a_launch():
            watch = _Watch(self.settings.tuning.seconds, pending_signal)
            beside = Beside(self.folder, _Quiet(), pending_signal, self.ray)
            run_id, outcome = launch(self._piece(layout), {}, beside=beside, on_event=watch.heard)
        is_stopped = watch.pending_signal.signal == _STOPPED and isinstance(outcome.error, Interrupted)
        if outcome.error is not None and not is_stopped:
            raise outcome.error
        windows = list(lines.read(self.folder / run_id / "times.jsonl"))
        spans = self.folder / run_id / "timeline.jsonl"
        found = calibration.measured(layout, windows, watch.driver_s, lines.written(spans))
        if found is None:
            raise RunFailed(
                f"the run ends before a step of {in_words(layout)} could be measured",
                "give topology, cluster.workers and data.loaders; a run so short gains nothing by choosing",
                code="tuning.run-too-short",
            )
        return replace(found, disturbed=watch.disturbed)

    def _piece(self, layout: Layout) -> Settings:
        """The run with this layout, without what takes time beside its steps."""
        chosen = {"topology": layout.topology, "cluster.workers": layout.workers, "data.loaders": layout.loaders}
        settings = with_values(
            replace(self.settings, chaos=ChaosSettings()), chosen
        )  # who is disturbed needs two workers
        return replace(
            settings,
            run=replace(settings.run, supervised=None),  # nobody goes on with a piece
            cluster=replace(settings.cluster, spares=0),
            tracking=TrackingSettings(),
            tuning=TuningSettings(),
            trace=replace(settings.trace, timeline=layout.workers == 1),
            checkpoint=CheckpointSettings(every=None),
            evaluation=self.settings.evaluation if self.settings.monitors_a_metric else EvaluationSettings(every=None),
        )


class _Watch:
    """Ends a piece once it has run so long. driver_s: processor seconds for a step of this process and of what it has started
    but the members, which is Ray's own; disturbed: share of the cores that others take."""

    def __init__(self, seconds: float, pending_signal: PendingSignal) -> None:
        self.pending_signal = pending_signal
        self._seconds = seconds
        self._first: tuple[int, float, _Spent] | None = None
        self._members: set[int] = set()
        self.driver_s = 0.0
        self.disturbed = 0.0

    def heard(self, event: Mapping[str, Any]) -> None:
        if event["event"] in ("worker_started", "server_started"):
            self._members.add(event["pid"])
        if event["event"] != "step" or self.pending_signal.signal is not None:
            return
        step, now = event["step"], time.monotonic()
        if self._first is None:
            self._first = step, now, _spent(self._members)
            return
        first, began, before = self._first
        if now > began and step > first:  # where the run ends by itself, this has to do
            self.driver_s = (time.process_time() - before.driver_s) / (step - first)
        if now - began >= self._seconds and step + 1 >= _LEAST_STEPS:
            after = _spent(self._members)
            self.driver_s = (after.beside_s - before.beside_s) / (step - first)
            others = after.machine_s - before.machine_s - (after.all_s - before.all_s)
            self.disturbed = max(0.0, others) / ((os.cpu_count() or 1) * (now - began))
            self.pending_signal.signal = _STOPPED


class _Quiet:
    """The display of a piece; implements ProgressDisplay."""

    def start(self, steps: int) -> None:
        pass

    def step(self, done: int, loss: float | None, epsilon: float | None = None) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


def added_s() -> float:
    """Processor seconds of adding a byte of a sum to another; the least of some."""
    one, other = torch.ones(_ADDED, dtype=torch.float64), torch.ones(_ADDED, dtype=torch.float64)
    found = []
    for _ in range(7):
        began = time.thread_time()
        one.add_(other)
        found.append(time.thread_time() - began)
    return min(found) / (8 * _ADDED)


@dataclass(frozen=True)
class _Spent:
    """Processor seconds so far: driver_s: of this process; beside_s: with what it has started but the members; all_s: with
    these; machine_s: of all processes of the machine."""

    driver_s: float
    beside_s: float
    all_s: float
    machine_s: float


def _spent(members: Collection[int]) -> _Spent:
    return _Spent(time.process_time(), processor_s(os.getpid(), members), processor_s(os.getpid()), machine_s())


def machine_s(proc: Path = Path("/proc")) -> float:
    """Processor seconds of the machine since it was started. Source: proc_stat(5): user, nice, system, idle, iowait, irq,
    softirq."""
    user, nice, system, _, _, irq, softirq = map(int, (proc / "stat").read_text(encoding="utf-8").split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def processor_s(root: int, without: Collection[int] = (), proc: Path = Path("/proc")) -> float:
    """Processor seconds so far of this process and all below it, `without` these and all below them. Source: proc_pid_stat(5);
    what ends in between is missing."""
    tick = os.sysconf("SC_CLK_TCK")
    found: dict[int, tuple[int, float]] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(folder.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / tick

    def counts(pid: int) -> bool:
        while pid != root:
            if pid in without or pid not in found:
                return False
            pid = found[pid][0]
        return True

    return sum(seconds for pid, (_, seconds) in found.items() if counts(pid))
