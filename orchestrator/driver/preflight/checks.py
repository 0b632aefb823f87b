"""Finds before anything is started what is wrong, and what would keep the run from being repeated exactly."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator import pipeline
from orchestrator.adapters import table
from orchestrator.adapters.adapted import Adapted, Course
from orchestrator.checkpoint.storage import try_out
from orchestrator.cluster.sessions import metrics
from orchestrator.cluster.sessions.gpus import VARIABLE
from orchestrator.comm.pipeline_schedules import PIPELINING, Hosts
from orchestrator.comm.pipeline_schedules import laws as pipelining_laws
from orchestrator.comm.synchronization import SYNCHRONY, build_mode
from orchestrator.comm.synchronization import laws as synchrony_laws
from orchestrator.comm.topologies import TOPOLOGIES, asks_for_nodes
from orchestrator.comm.topologies import laws as topology_laws
from orchestrator.common.registry import Table, Variant, is_reference
from orchestrator.common.tested_versions import TORCH
from orchestrator.common.values import Steps
from orchestrator.config.settings import ScheduleSettings, Settings, Workers, flat, redactor
from orchestrator.config.settings.rules import free_running
from orchestrator.config.settings.rules import stages as stage_rules
from orchestrator.controller.shard_assignment import assign_columns, assign_stages, hosts_of
from orchestrator.data.order import Epochs
from orchestrator.data.sampling import orders, partition_laws, samplings, subsets
from orchestrator.data.sampling.partitions import PARTITIONS
from orchestrator.driver import folders
from orchestrator.driver.preflight import private, visible_cards
from orchestrator.driver.preflight.visible_cards import Visible
from orchestrator.errors import ConfigurationError, NotRerunnable, bulleted, code_of, coded
from orchestrator.numerics import cuda, determinism, inductor, torch_names
from orchestrator.optim import contribution_laws, optimizer_laws, schedule_laws
from orchestrator.optim.compressions import COMPRESSIONS
from orchestrator.optim.compressions import laws as compression_laws
from orchestrator.optim.contributions import CONTRIBUTIONS
from orchestrator.optim.privacy import accounting
from orchestrator.optim.schedules import SCHEDULES
from orchestrator.provenance.code import git, imported, pushed, secrets, worktree
from orchestrator.provenance.data import dvc_files, remote_state, versions
from orchestrator.provenance.data.hashing import Scan, scan_input, scanned_again
from orchestrator.provenance.tracking import addresses, names
from orchestrator.records import input_audit, loggers, redaction

_FEW_WORKERS, _SOME_WORKERS, _MANY_WORKERS = 5, 8, 64  # to look at all moves of more takes seconds
_FEW_STEPS = 64  # for which schedules of the pipeline are looked at
_SOME_STEPS = 1000  # of a run whose length in steps is known only when its data are


@dataclass(frozen=True)
class Provenance:
    """Facts about code and data, found before the start."""

    project: Path  # folder from which the pipeline is imported
    work: worktree.WorkTree | None  # what git has of the code; None where it cannot be recorded
    scans: Mapping[str, Scan]  # what lies at each of the inputs
    in_code: list[str]  # the obstacles to an exact rerun that are in the code
    notes: list[str]  # what a person should know before the run is recorded
    of_cards: list[str]  # notes that also count where a recorded run goes on; they are among those above

    @cached_property
    def inputs(self) -> list[versions.Input]:
        """The inputs, with what DVC and git know of them. The first call imports DVC, so it is left to the thread that
        opens the record, unless `strict` asks earlier. Raises ConfigurationError."""
        return versions.look_up(self.project, self.scans)

    @cached_property
    def is_code(self) -> Callable[[input_audit.File], bool]:
        return code_in(self.work)

    @property
    def has_remote(self) -> bool:
        """Whether the repository of the code is one that others may have a clone of."""
        return self.work is not None and bool(git.line(self.work.root, "remote"))

    @property
    def unpushed(self) -> list[str]:
        """The code and data that others lack: a sentence each, with the command that pushes it. Nothing of a repetition: its
        checkout has no remote to push to, and none of the credentials of DVC's."""
        if self.work is not None and self.work.is_restored:
            return []
        commit = None if self.work is None else pushed.unpushed(self.work)
        return [*([] if commit is None else [commit]), *remote_state.unpushed(self.project, self.inputs)]

    @property
    def obstacles(self) -> list[str]:
        """The obstacles to an exact rerun, each with its remedy."""
        return [*self.in_code, *(item.obstacle for item in self.inputs if item.obstacle is not None)]


def code_in(work: worktree.WorkTree | None) -> Callable[[input_audit.File], bool]:
    """Tells of a file that was read whether it is code."""
    return (
        input_audit.in_project
        if work is None
        else input_audit.code_of(work.entries, str(work.root.resolve()), work.project)
    )


def check(
    settings: Settings,
    project: Path,
    known: Mapping[str, Scan] = MappingProxyType({}),
    *,
    cards_elsewhere: bool = False,
) -> Provenance:
    """Check the settings; returns what is known of code and data. known: inputs as this process has read them before, of which
    only what was written since is read; cards_elsewhere: what this machine lacks to compute on a GPU is noted. Else a card that
    is lost is hidden from what this process starts, as in `take_cards`.
    Raises ConfigurationError with all problems, and NotRerunnable under `strict` when there are obstacles."""
    if lacking := torch_names.problems():
        remedy = f"install {TORCH.wanted}, with which this was tested"
        raise ConfigurationError(lacking, remedy, code="environment.torch-lacks")
    visible = _visible(settings)
    of_device = [*([] if visible.problem is None else [visible.problem]), *_compiler_problems(settings)]
    problems = [
        *_pipeline_problems(settings),
        *_local_problems(settings),
        *_variant_problems(settings),
        *_sync_problems(settings),
        *_stage_problems(settings),
        *_privacy_problems(settings, project),
        *_input_problems(settings, project),
        *_checkpoint_problems(settings),
        *([] if cards_elsewhere else of_device),
        *loggers.problems(settings.tracking.also),
        *addresses.problems(settings.tracking.uri),
        *names.registration_problems("tracking.register", settings.tracking.register),
        *_metrics_problems(settings),
    ]
    if problems:
        raise ConfigurationError(problems)
    in_code: list[str] = []
    work = None
    try:
        work = worktree.examine(project)
        in_code += work.obstacles
    except worktree.Unrecorded as error:
        in_code.append(str(error))
    if (settings.strict or settings.is_private) and work is not None:
        in_code += _imported_obstacles(work, project)
    unbound = private.unbound(settings, in_code)
    if unbound is not None:
        raise unbound
    misplaced = [] if work is None else private.misplaced(settings, work.root)
    if misplaced:
        raise ConfigurationError(misplaced)
    of_cards = [f"not on this machine: {problem}" for problem in of_device] if cards_elsewhere else _hide_lost(visible)
    notes = [
        *of_cards,
        *_hook_notes(settings),
        several_launches(os.environ),
        _unmasked_note(settings),
        _redacted_note(settings),
        _passed_over_note(settings, project),
    ]
    if work is not None:
        looked_at = [*dict.fromkeys([*work.untracked, *work.changed, secrets.DVC_CONFIG])]
        notes += [
            secrets.note(work.left_out),
            secrets.note_of_contents(work.root, looked_at),
            _store_note(settings, work),
        ]
    scans = {path: _scanned(project, path, known.get(path)) for path in settings.data.inputs}
    notes += [_pointers_note(path, found) for path, found in scans.items()]
    found = Provenance(project, work, scans, in_code, [note for note in notes if note is not None], of_cards)
    if settings.strict and found.obstacles:
        raise NotRerunnable(
            f"strict: this run could not be repeated exactly:{bulleted(found.obstacles)}",
            "mend these, or leave strict out",
            code="rerun.strict",
        )
    return found


def _scanned(project: Path, path: str, before: Scan | None) -> Scan:
    if before is not None and (found := scanned_again(project, path, before)) is not None:
        return found
    try:
        return scan_input(project, path)
    except OSError as error:
        raise ConfigurationError(
            [f"data.inputs: {error.filename or path} cannot be read: {error.strerror}"],
            "see to its rights and its disk",
            code="data.input-unreadable",
        ) from error


def take_cards(settings: Settings) -> list[str]:
    """Look at the cards of this machine alone, and hide one that is lost from what this process starts, by
    CUDA_VISIBLE_DEVICES. Returns the notes about it. Raises ConfigurationError."""
    visible = _visible(settings)
    if visible.problem is not None:
        raise ConfigurationError([visible.problem])
    return _hide_lost(visible)


def _hide_lost(visible: Visible) -> list[str]:
    if visible.named is None or visible.note is None:
        return []
    os.environ[VARIABLE] = visible.named
    return [visible.note]


def _imported_obstacles(work: worktree.WorkTree, project: Path) -> list[str]:
    """The obstacles in what this process has imported, the pipeline's module among it. Reports of the workers (record.py)
    come too late to refuse the start."""
    command = sys.modules.get("__main__")  # under this name and under multiprocessing's; no worker imports it
    modules = {name: module for name, module in sys.modules.items() if module is not command}
    loaded = imported.gather(imported.files_of(modules), project, work.origin)
    return list(imported.judge(loaded, work, imported.ORCHESTRATOR).obstacles)


def _redacted_note(settings: Settings) -> str | None:
    """A note that names the settings that are not recorded, or None."""
    found = redactor(settings).hidden(flat(settings))
    if not found:
        return None
    names = dict.fromkeys(name for kept in found.values() for name in redaction.variables_of(kept))
    again = [key for key, kept in found.items() if redaction.is_redacted(kept) and not redaction.variables_of(kept)]
    remedy = f"; a rerun reads {', '.join(names)} again" if names else ""
    remedy += f"; a rerun asks for {', '.join(again)} again" if again else ""
    return f"{', '.join(found)}: credentials are left out of the record{remedy}"


def _passed_over_note(settings: Settings, project: Path) -> str | None:
    """MLflow's own programs take their store from the variable, and `mlflow.set_tracking_uri` writes it. A run's store must not
    depend on who resumes or repeats it where."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if (
        not uri
        or settings.tracking.uri is not None
        or addresses.absolute(uri) == addresses.default_uri(project / folders.NAME)
    ):
        return None
    return (
        "MLFLOW_TRACKING_URI is passed over, and the run is recorded in the project's own store; tracking.uri names "
        f"another one, here tracking.uri={redaction.text(uri)}"
    )


def _store_note(settings: Settings, work: worktree.WorkTree) -> str | None:
    """A store among the code grows by itself: each snapshot holds it, and it holds each snapshot."""
    database = addresses.database_of(addresses.absolute(settings.tracking.uri or ""))
    place = None if database is None else database.resolve()
    if place is None or not place.is_relative_to(work.root) or git.line(work.root, "check-ignore", str(place)):
        return None
    return (
        f"the MLflow store {place} lies in the repository: it and its artifacts are recorded with the code of every run, which "
        f"so is never the same; list {place.name}, mlflow.lock and artifacts/ in .gitignore, or put it elsewhere"
    )


def _pointers_note(path: str, found: Scan) -> str | None:
    """A clone without git-lfs has pointers in place of files. A pipeline that reads text would train on these."""
    if not found.pointers:
        return None
    if found.is_file:
        return f"{path} is a pointer of git-lfs in place of the file; git lfs pull"
    names = sorted(found.pointers)
    listed = ", ".join(names if len(names) < 4 else [*names[:3], "..."])
    return f"{path} has pointers of git-lfs in place of {len(names)} of its {len(found.entries)} files ({listed}); git lfs pull"


def _course(settings: Settings) -> Course:
    """Some course with these settings: how long it is shows when there are data."""
    data, every = settings.data, settings.evaluation.every
    return Course(
        *(min(settings.run.steps or _FEW_STEPS, _FEW_STEPS), _FEW_STEPS, data.batch_size.at(0), settings.schedule.name),
        order=data.order.name,
        sampling=data.sampling.name,
        evaluates_in_steps=every is not None and every.seconds is None,
    )


def _pipeline_problems(settings: Settings) -> list[str]:
    if found := table.problems(settings.pipeline.source, _course(settings), determinism.left_as_it_was):
        return found
    target = table.find(settings.pipeline.source)
    if settings.data.sampling.name == "weighted" and not pipeline.defines(target, "weights"):
        return [
            coded(
                "data.weighted-needs-weights",
                "data.sampling: weighted needs weights(self, train) in the pipeline, a weight for each training sample",
            )
        ]
    own = pipeline.defines(target, "optimizer")
    section = settings.optimizer
    # Code of a framework that chooses among schedulers says by itself which of them goes with this one.
    chosen = settings.schedule.name == "plateau" and issubclass(target, Adapted)
    if pipeline.has_rate(target) and settings.schedule != ScheduleSettings() and not chosen:
        return [coded("schedule.own-rate", "schedule: the pipeline has a rate() of its own; remove one of the two")]
    if own and section.name is not None:
        return [coded("optimizer.own", "optimizer: the pipeline has an optimizer() of its own; remove one of the two")]
    if section.name is None:
        return (
            []
            if own
            else [
                coded(
                    "optimizer.required-by-pipeline",
                    "optimizer: required, because the pipeline has no optimizer(); for example optimizer=adamw",
                )
            ]
        )
    return optimizer_laws.problems(section.name, section.options)


def _local_problems(settings: Settings) -> list[str]:
    section = settings.local.optimizer
    found = [] if section.name is None else optimizer_laws.problems(section.name, section.options)
    return [coded(code_of(problem), f"local.{problem}") for problem in found]


def _variant_problems(settings: Settings) -> list[str]:
    """Problems of variants of the user's own, which could not be looked at before they were imported."""
    data, topology, schedule = settings.data, settings.topology, settings.schedule
    shards, steps = data.shards, settings.run.steps or _SOME_STEPS
    own, by_host = _problems_of_own, []
    if is_reference(topology.name) and settings.reduction == "fast" and asks_for_nodes(topology.name):
        by_host.append(
            coded(
                "topology.own-by-host",
                f"topology: {topology.name} depends on which workers share a host; with reduction=fast set topology=ring",
            )
        )
    return [
        *own(data.order, orders.ORDERS, orders.problems, *_small_epoch(shards)),
        *own(data.partition, PARTITIONS, partition_laws.problems, shards),
        *own(data.sampling, samplings.SAMPLINGS, samplings.problems, shards),
        *own(data.subset, subsets.SUBSETS, subsets.problems),
        *own(topology, TOPOLOGIES, topology_laws.problems, _numbers_of_workers(settings.cluster.workers)),
        *by_host,
        *own(schedule, SCHEDULES, schedule_laws.problems, schedule.warmup, steps),
        *own(settings.contribution, CONTRIBUTIONS, contribution_laws.problems),
        *own(settings.cluster.pipeline, PIPELINING, pipelining_laws.problems, _some_hosts(settings)),
        *own(settings.compression, COMPRESSIONS, compression_laws.problems, shards),
    ]


def _problems_of_own(
    variant: Variant | ScheduleSettings, known: Table[Any], of_laws: Callable[..., list[str]], *tried: Any
) -> list[str]:
    """Problems of a variant if it is the user's own. of_laws: tells those of the laws that it breaks where it is tried."""
    if not is_reference(variant.name):
        return []
    return known.problems(variant.name, variant.options) or of_laws(variant.name, variant.options, *tried)


def _small_epoch(shards: int) -> tuple[Callable[[], Epochs], int]:
    """A small epoch on which the user's own order is tried, and the number of its steps."""
    epochs = Epochs(1, 40 * shards + 3, Steps.constant(8 * shards), shards)
    return lambda: epochs, epochs.steps_per_epoch


def _sync_problems(settings: Settings) -> list[str]:
    """Problems of a mode of the user's own, which could not be looked at before it was imported."""
    sync = settings.sync
    if found := _problems_of_own(sync, SYNCHRONY, synchrony_laws.problems):
        return found
    if not is_reference(sync.name):
        return []
    execution = build_mode(sync.name, sync.options).execution
    free = free_running.rules_of(lambda _name: execution)
    return settings.broken([*free, stage_rules.in_lockstep(lambda _name: execution != "lockstep")])


def _stage_problems(settings: Settings) -> list[str]:
    """Problems of a model in stages that could not be looked at before the user's code was imported."""
    if settings.cluster.stages == 1:
        return []
    problems: list[str] = []
    try:
        target = table.find(settings.pipeline.source)
    except ConfigurationError:  # it is told among the problems of the pipeline
        return []
    if pipeline.defines(target, "optimizer"):
        own = "configure_optimizers()" if issubclass(target, Adapted) else "optimizer()"
        problems.append(
            coded(
                "stages.pipeline-optimizer",
                f"optimizer: the pipeline's {own} may look at all parameters; leave it out, and name one, as optimizer=adamw",
            )
        )
    if pipeline.defines(target, "on_evaluation"):
        problems.append(coded("stages.on-evaluation", "pipeline: on_evaluation() gets the whole model; leave it out"))
    why = "or cluster.stages=1, because a worker has one stage only"
    return [*_served_stages(settings), *(coded(code_of(problem), f"{problem}, {why}") for problem in problems)]


def _served_stages(settings: Settings) -> list[str]:
    topology = settings.topology
    if not is_reference(topology.name):
        return []
    servers = TOPOLOGIES.resolve(topology.name, topology.options).get("servers")
    return settings.broken([stage_rules.without_servers(lambda _name: bool(servers))])


def _some_hosts(settings: Settings) -> Iterator[Hosts]:
    """The hosts for each number of workers that the run may come to; for two stages if it has none."""
    stages, shards = max(2, settings.cluster.stages), settings.data.shards
    numbers = {*_numbers_of_workers(settings.cluster.workers), stages, 2 * stages}
    for number in sorted(numbers):
        if stages <= number <= stages * shards:
            stage_of = assign_stages([None] * number, stages)
            yield hosts_of(stage_of, assign_columns(shards, stage_of))


def _privacy_problems(settings: Settings, project: Path) -> list[str]:
    if not settings.is_private:
        return []
    missing = [] if accounting.is_installed() else [accounting.MISSING]
    return [*missing, *private.misplaced(settings, project), *private.unusable(settings)]


def _hook_notes(settings: Settings) -> list[str]:
    target = table.find(settings.pipeline.source)
    if issubclass(target, Adapted):
        return []
    found = pipeline.named_otherwise(target)
    clipping = pipeline.idle_clipping(target)
    idle = f"pipeline.target: {clipping}() in loss() clips nothing, as the backward pass comes after it; gradient.clip does"
    return [
        *(
            f"pipeline.target: nobody calls {name}(); the method that is called is {here}()"
            for name, here in found.items()
        ),
        *([] if clipping is None else [idle]),
    ]


_LAUNCHERS = {  # a variable that a launcher of several processes sets, the variable with their number, and its name
    "TORCHELASTIC_RUN_ID": ("WORLD_SIZE", "torchrun or accelerate"),
    "OMPI_COMM_WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "mpirun"),
}


def several_launches(environment: Mapping[str, str]) -> str | None:
    """A note for who has started one launch for each worker, as training scripts are. Each is a whole run, all at once."""
    for sign, (variable, launcher) in _LAUNCHERS.items():
        number = environment.get(variable, "1")
        if sign in environment and number not in ("", "1"):
            return (
                f"{launcher} has started {number} launches ({variable}), and each is a run of its own with all its workers; "
                f"leave it out: python -m orchestrator conf=NAME cluster.workers={number}"
            )
    return None


def _unmasked_note(settings: Settings) -> str | None:
    workers = settings.cluster.workers.most
    if not settings.secure_aggregation or workers > 2:
        return None
    if workers == 1:
        return "secure_aggregation: with one worker there is nothing to mask: its sum is the sum that all may see"
    return "secure_aggregation: of two workers each can take its own sum off and has the other's; three hide it from each other"


def _numbers_of_workers(workers: Workers) -> list[int]:
    """The numbers that the run may come to. If it may shrink to one worker there are a few more, so that a slip shows in a
    small run."""
    most = max(workers.most, _FEW_WORKERS) if workers.least == 1 else workers.most
    numbers = {*range(workers.least, min(most, workers.least + _SOME_WORKERS) + 1), workers.start, workers.most}
    return sorted(number for number in numbers if number <= _MANY_WORKERS) or [_MANY_WORKERS]


def _checkpoint_problems(settings: Settings) -> list[str]:
    if settings.checkpoint.uri is None:
        return []
    try:
        try_out(settings.checkpoint.uri)
    except ConfigurationError as error:
        return error.with_remedy()
    return []


def _visible(settings: Settings) -> Visible:
    """A private Ray runs this very torch; of another one's nodes its workers say it."""
    if settings.run.device == "cpu" or settings.cluster.address is not None:
        return Visible()
    problem = cuda.build_problem()
    return visible_cards.look() if problem is None else Visible(problem)


def _compiler_problems(settings: Settings) -> list[str]:
    """Likewise of nodes of another Ray."""
    if not settings.run.compile or settings.cluster.address is not None:
        return []
    problem = inductor.problem(settings.run.device)
    return [] if problem is None else [problem]


def _metrics_problems(settings: Settings) -> list[str]:
    lacking = None if settings.tracking.metrics_port is None else metrics.lacking()
    return [] if lacking is None else [coded("ray.metrics-agent", f"tracking.metrics_port: {lacking}")]


def _input_problems(settings: Settings, project: Path) -> list[str]:
    problems: list[str] = []
    for path in settings.data.inputs:
        if not (project / path).exists():
            remedy = dvc_files.how_to_have(project, path)
            problems.append(
                coded("data.no-input", f"data.inputs: there is no {path} in {project}{remedy and f'; {remedy}'}")
            )
    return problems
