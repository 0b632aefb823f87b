"""`tune conf=...`, and what a launch does first where a key is `auto`: measure, predict, choose. No bit depends on it.

    pieces        the run itself, with one worker and with two, each for `tuning.seconds`, on one Ray, recorded in a folder
                  that is removed, and stopped as a user stops a run
    conditions    from what their members report of their time (`simulation.calibration`)
    candidates    every layout that is free, its step played by these conditions (`simulation.candidates`)
    best three    `tune` runs these too, and what was measured decides

Only settings of the execution are chosen, so runs that chose otherwise have the same identity and the same bits; a rerun and a
resume take what was chosen from the record.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from orchestrator.cluster.placement.reservation import living_nodes
from orchestrator.cluster.sessions import RaySession
from orchestrator.cluster.sessions.joined import JoinedRay
from orchestrator.cluster.sessions.local import LocalRay
from orchestrator.commands.launch import launch
from orchestrator.driver.record import preflight
from orchestrator.driver.run.job import Beside
from orchestrator.driver.terminal import signals
from orchestrator.driver.terminal.progress import ProgressDisplay, for_stream
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.engine.compute import construction
from orchestrator.errors import Interrupted, RunFailed, UsageError
from orchestrator.plan.resolve import resolve
from orchestrator.records import lines
from orchestrator.settings import (
    CheckpointSettings,
    EvaluationSettings,
    Settings,
    TopologySettings,
    TrackingSettings,
    TuningSettings,
    Workers,
)
from orchestrator.settings.sections import AUTO
from orchestrator.simulation import calibration
from orchestrator.simulation.calibration import Layout, Measured, Model
from orchestrator.simulation.candidates import ALONE, Candidate, candidates, choose, in_words, numbers_of_workers, table
from orchestrator.simulation.conditions import Conditions
from orchestrator.topologies import TOPOLOGIES

KEYS: Final = tuple(AUTO.values())
_BEST: Final = 3
_LEAST_STEPS: Final = 6  # of a piece, however long they take: the first computes twice and counts nothing
_STOPPED: Final = "tuned"  # the signal by which a piece ends
_ADDED: Final = 1 << 19  # elements, larger than the caches of one core


@dataclass(frozen=True)
class Tuned:
    """What was found. keys: that were free; chosen: their values; cpus: of the machine, or of the cluster's nodes together."""

    keys: tuple[str, ...]
    chosen: Mapping[str, Any]
    reason: str
    predicted_s: float
    cpus: int
    candidates: Sequence[Candidate]
    points: Sequence[Measured]
    conditions: Conditions
    took_s: float

    def as_dict(self) -> dict[str, Any]:
        listed = [
            {**asdict(each.layout), "predicted_s": each.predicted_s, "measured_s": each.measured_s}
            for each in self.candidates
        ]
        return {
            "keys": list(self.keys),
            "chosen": dict(self.chosen),
            "reason": self.reason,
            "predicted_s": self.predicted_s,
            "cpus": self.cpus,
            "candidates": listed,
            "points": [asdict(each) for each in self.points],
            "conditions": asdict(self.conditions),
            "took_s": round(self.took_s, 3),
        }

    def as_text(self) -> str:
        given = " ".join(f"{key}={value}" for key, value in self.chosen.items())
        return "\n".join([table(self.candidates), "", f"{given}: {self.reason}"])


def decided(settings: Settings, origins: Mapping[str, str]) -> tuple[Settings, dict[str, str], dict[str, Any] | None]:
    """The settings with a value for every key that is `auto`, where each value is from, and what the record keeps of it; as
    they are where none is. Raises OrchestratorError."""
    keys = settings.tuning.auto
    if not keys:
        return settings, dict(origins), None
    display = for_stream()
    try:
        found = _tuned(settings, keys, display, best=0)
    finally:
        display.close()
    given = " ".join(f"{key}={value}" for key, value in found.chosen.items())
    display.say(f"chosen by a measurement of {found.took_s:.0f} s: {given}: {found.reason}")
    where = {key: value for key, value in origins.items() if key != "tuning.auto"}
    told = {"topology": "topology.name"}
    where |= {told.get(key, key): "a measurement at launch (tuning.json)" for key in found.chosen}
    return _with(settings, found.chosen), where, found.as_dict()


def tune(settings: Settings) -> Tuned:
    """Of the keys that are `auto`, or of all. Raises OrchestratorError."""
    display = for_stream()
    try:
        return _tuned(settings, settings.tuning.auto or KEYS, display, best=_BEST)
    finally:
        display.close()


def _tuned(settings: Settings, keys: tuple[str, ...], display: ProgressDisplay, *, best: int) -> Tuned:
    began = time.monotonic()
    replace(settings, tuning=replace(settings.tuning, auto=keys))  # its rules hold, or ConfigurationError
    project = Path.cwd()
    fixed = replace(settings, tuning=replace(settings.tuning, auto=()))
    preflight.check(fixed, project)
    model = model_of(fixed)
    with probing(fixed, display) as prober:
        topologies = _topologies(fixed, free="topology" in keys)
        workers = (
            numbers_of_workers(settings.data.shards, int(prober.cpus / settings.cluster.cpus_per_worker))
            if "cluster.workers" in keys
            else [settings.cluster.workers.start]
        )
        loaders = [0, 1] if "data.loaders" in keys else [settings.data.loaders]
        points = [prober.measure(Layout(ALONE, 1, loaders[0]))]
        if max(workers) > 1:
            points.append(prober.measure(Layout(topologies[0], 2, loaders[0])))
        fetched = [prober.measure(Layout(ALONE, 1, each)) for each in loaders[1:]]
        cores = 0 if settings.cluster.address is not None else prober.cpus
        conditions = calibration.calibrate(model, points, cores, added_s())
        by_loaders = {
            loaders[0]: conditions,
            **{each.layout.loaders: _fetching(conditions, each, model) for each in fetched},
        }
        found = candidates(
            model,
            topologies,
            workers,
            loaders,
            lambda layout: _shared(by_loaders[layout.loaders], conditions, layout, model),
        )
        for place, each in enumerate(found[:best]):
            found[place] = replace(each, measured_s=prober.measure(each.layout).wall_s)
    choice = choose(found, topologies)
    layout = choice.candidate.layout
    values = {"topology": layout.topology, "cluster.workers": layout.workers, "data.loaders": layout.loaders}
    chosen = {key: values[key] for key in KEYS if key in keys}
    took = time.monotonic() - began
    return Tuned(
        keys,
        chosen,
        choice.reason,
        choice.candidate.predicted_s,
        prober.cpus,
        found,
        [*points, *fetched],
        conditions,
        took,
    )


def model_of(settings: Settings) -> Model:
    elements = construction.rehearse(resolve(settings)).parameters
    if not elements:
        raise UsageError(
            "the model's size is not known before its data are, so no layout can be chosen for it",
            "give topology, cluster.workers and data.loaders",
        )
    wide = 8 if settings.reduction == "exact" else 4
    own = {settings.topology.name: dict(settings.topology.options)}
    return Model(settings.data.shards, (elements * wide, elements * 4), own)


def _topologies(settings: Settings, *, free: bool) -> list[str]:
    own = settings.topology.name
    return [own, *(name for name in TOPOLOGIES if name != own)] if free else [own]


def _fetching(conditions: Conditions, alone: Measured, model: Model) -> Conditions:
    """The same with loaders: what computing takes less is done beside it, by others."""
    return replace(conditions, compute_s=min(conditions.compute_s, alone.busy_s["compute"] / model.shards))


def _shared(of_loaders: Conditions, without: Conditions, layout: Layout, model: Model) -> Conditions:
    """What loaders fetch takes cores too."""
    fetched = (without.compute_s - of_loaders.compute_s) * model.shards / layout.workers
    return replace(of_loaders, background_s=of_loaders.background_s + max(0.0, fetched))


def added_s() -> float:
    """Processor seconds of adding a byte of a sum to another; the least of some."""
    one, other = torch.ones(_ADDED, dtype=torch.float64), torch.ones(_ADDED, dtype=torch.float64)
    found = []
    for _ in range(7):
        began = time.thread_time()
        one.add_(other)
        found.append(time.thread_time() - began)
    return min(found) / (8 * _ADDED)


def _with(settings: Settings, chosen: Mapping[str, Any]) -> Settings:
    """The settings with these values, and nothing left to choose."""
    changed = replace(settings, tuning=replace(settings.tuning, auto=()))
    if "topology" in chosen and chosen["topology"] != settings.topology.name:
        changed = replace(changed, topology=TopologySettings(name=chosen["topology"]))
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
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-tune-"))
    servers = max(1, resolve(settings).cluster.members.servers)
    room = cluster.cpus_per_worker * (max(cores, most, cluster.workers.start) + servers)
    ray: Any = LocalRay(room, timeout_s, lambda: None) if cluster.address is None else JoinedRay(cluster.address)
    try:
        with ray as session:
            nodes = [] if cluster.address is None else living_nodes()
            cpus = int(sum(node.resources.get("CPU", 0.0) for node in nodes)) if nodes else cores
            yield Prober(settings, display, session, folder, max(1, cpus))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
        sharing = lambda _plan: contextlib.nullcontext(self.ray)  # noqa: E731
        with signals.posted() as pending_signal:
            watch = _Watch(self.settings.tuning.seconds, pending_signal)
            beside = Beside(self.folder, _Quiet(), pending_signal)
            run_id, outcome = launch(self._piece(layout), {}, sharing, None, beside, watch.heard)
        if outcome.error is not None and watch.pending_signal.signal != _STOPPED:
            raise outcome.error
        if outcome.error is not None and not isinstance(outcome.error, Interrupted):
            raise outcome.error
        windows = list(lines.read(self.folder / run_id / "times.jsonl"))
        found = calibration.measured(layout, windows, watch.driver_s)
        if found is None:
            raise RunFailed(
                f"the run ends before a step of {in_words(layout)} could be measured",
                "give topology, cluster.workers and data.loaders; a run so short gains nothing by choosing",
            )
        return found

    def _piece(self, layout: Layout) -> Settings:
        """The run with this layout, without what takes time beside its steps."""
        chosen = {"topology": layout.topology, "cluster.workers": layout.workers, "data.loaders": layout.loaders}
        settings = _with(self.settings, chosen)
        return replace(
            settings,
            cluster=replace(settings.cluster, spares=0),
            tracking=TrackingSettings(),
            tuning=TuningSettings(),
            checkpoint=CheckpointSettings(every=None),
            evaluation=self.settings.evaluation if self.settings.watches_a_metric else EvaluationSettings(every=None),
        )


class _Watch:
    """Ends a piece once it has run so long. driver_s: processor seconds of this process for a step."""

    def __init__(self, seconds: float, pending_signal: PendingSignal) -> None:
        self.pending_signal = pending_signal
        self._seconds = seconds
        self._first: tuple[int, float, float] | None = None
        self.driver_s = 0.0

    def heard(self, event: Mapping[str, Any]) -> None:
        if event["event"] != "step":
            return
        step, now, busy = event["step"], time.monotonic(), time.process_time()
        if self._first is None:
            self._first = step, now, busy
            return
        first, began, before = self._first
        if now > began and step > first:
            self.driver_s = (busy - before) / (step - first)
        over = now - began >= self._seconds and step + 1 >= _LEAST_STEPS
        if over and self.pending_signal.signal is None:
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
