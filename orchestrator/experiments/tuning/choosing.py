"""`tune conf=...`, and what a launch does first where a key is `auto`: measure, predict, choose. No bit depends on it.

    pieces        the run itself, with one worker and with two, each for `tuning.seconds`, on one Ray, recorded in a folder
                  that is removed, and stopped as a user stops a run
    conditions    from what their members report of their time (`experiments.simulation.calibration`)
    candidates    every layout that is free, its step played by these conditions (`experiments.simulation.candidates`)
    best three    `tune` runs these too, and what was measured decides

Only settings of the execution are chosen, so runs that chose otherwise have the same identity and the same bits; a rerun and a
resume take what was chosen from the record.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from orchestrator.comm.topologies import TOPOLOGIES, asks_for_nodes
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Settings
from orchestrator.config.settings.sections import AUTO, BY_MEMORY
from orchestrator.driver.preflight import begin, checks
from orchestrator.driver.terminal.progress import ProgressDisplay, for_stream
from orchestrator.errors import UsageError
from orchestrator.experiments.simulation import calibration
from orchestrator.experiments.simulation.calibration import Layout, Measured, Model
from orchestrator.experiments.simulation.candidates import (
    ALONE,
    Candidate,
    candidates,
    choose,
    numbers_of_workers,
    table,
)
from orchestrator.experiments.simulation.conditions import Conditions
from orchestrator.experiments.tuning.probing import added_s, probing, with_values
from orchestrator.experiments.tuning.stage_tuning import as_dict, staged
from orchestrator.worker.model import construction

KEYS: Final = tuple(key for key in AUTO.values() if key != BY_MEMORY)
_BEST: Final = 3


@dataclass(frozen=True)
class Tuned:
    """The choice, and the measurements behind it."""

    keys: tuple[str, ...]  # settings that were free
    chosen: Mapping[str, Any]  # key -> the value that it gets
    reason: str  # sentence for a person, with the figures
    predicted_s: float  # seconds of a step with these values
    cpus: int  # CPUs of the machine, or of the cluster's nodes together
    candidates: Sequence[Candidate]  # layouts that were considered, with their seconds of a step
    points: Sequence[Measured]  # runs that were measured
    conditions: Conditions  # of the simulation, from those runs
    took_s: float  # seconds that the measurement took

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


def decided(
    settings: Settings, origins: Mapping[str, str], *, trusted: bool = False
) -> tuple[Settings, dict[str, str], dict[str, Any] | None]:
    """The settings with a value for every key that is `auto`, where each value is from, and what the record keeps of it.
    trusted: as `launch` takes it. Raises OrchestratorError."""
    where = {key: value for key, value in origins.items() if key != "tuning.auto"}
    settings = begin.all_pinned(settings, Path.cwd(), trusted=trusted)
    display = for_stream()
    try:
        settings, staged_record = _staged(settings, display)
        if staged_record is not None:
            where[BY_MEMORY] = "the memory at launch (tuning.json)"
        keys = settings.tuning.auto
        if not keys:
            return settings, where, staged_record
        tuned = _tuned(settings, keys, display, best=0)
    finally:
        display.close()
    settings_chosen = " ".join(f"{key}={value}" for key, value in tuned.chosen.items())
    display.say(f"chosen by a measurement of {tuned.took_s:.0f} s: {settings_chosen}: {tuned.reason}")
    names = {"topology": "topology.name"}
    where |= {names.get(key, key): "a measurement at launch (tuning.json)" for key in tuned.chosen}
    return with_values(settings, tuned.chosen), where, _both(staged_record, tuned.as_dict())


def _staged(settings: Settings, display: ProgressDisplay) -> tuple[Settings, dict[str, Any] | None]:
    """With a number of stages, said with its reason, and what the record keeps of that."""
    settings, choice = staged(settings)
    if choice is None:
        return settings, None
    display.say(f"chosen by the memory that is there: {BY_MEMORY}={choice.stages}: {choice.reason}")
    return settings, as_dict(choice)


def _both(by_memory: dict[str, Any] | None, measured: dict[str, Any]) -> dict[str, Any]:
    if by_memory is None:
        return measured
    return {
        **by_memory,
        **measured,
        "keys": [*by_memory["keys"], *measured["keys"]],
        "chosen": {**by_memory["chosen"], **measured["chosen"]},
        "reason": f"{by_memory['reason']}; {measured['reason']}",
    }


def tune(settings: Settings, *, trusted: bool = False) -> Tuned:
    """Choose the keys that are `auto`, or all. trusted: as `launch` takes it. Raises OrchestratorError."""
    settings = begin.all_pinned(settings, Path.cwd(), trusted=trusted)
    display = for_stream()
    try:
        settings, _ = _staged(settings, display)
        return _tuned(settings, settings.tuning.auto or KEYS, display, best=_BEST)
    finally:
        display.close()


def _tuned(settings: Settings, keys: tuple[str, ...], display: ProgressDisplay, *, best: int) -> Tuned:
    began = time.monotonic()
    replace(settings, tuning=replace(settings.tuning, auto=keys))  # its rules hold, or ConfigurationError
    project = Path.cwd()
    fixed = replace(settings, tuning=replace(settings.tuning, auto=()))
    for note in checks.check(fixed, project).of_cards:
        display.say(f"note: {note}")
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
            code="tuning.model-size",
        )
    wide = 8 if settings.reduction == "exact" else 4
    own = {settings.topology.name: dict(settings.topology.options)}
    return Model(settings.data.shards, (elements * wide, elements * 4), own)


def _topologies(settings: Settings, *, free: bool) -> list[str]:
    """Without those that differ from others only where there are several hosts, whose wires were not measured."""
    own = settings.topology.name
    return [own, *(name for name in TOPOLOGIES if name != own and not asks_for_nodes(name))] if free else [own]


def _fetching(conditions: Conditions, alone: Measured, model: Model) -> Conditions:
    """The same with loaders: what computing takes less is done beside it, by others."""
    return replace(conditions, compute_s=min(conditions.compute_s, alone.busy_s["compute"] / model.shards))


def _shared(of_loaders: Conditions, without: Conditions, layout: Layout, model: Model) -> Conditions:
    """The fetching of loaders takes cores too."""
    fetched = (without.compute_s - of_loaders.compute_s) * model.shards / layout.workers
    return replace(of_loaders, background_s=of_loaders.background_s + max(0.0, fetched))
