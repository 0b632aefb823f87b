"""The parts of `benchmarks.gpu`: checks, and times. Each part takes the seconds that it may take."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from benchmarks.gpu import memory, plain, runs, sharing
from benchmarks.gpu.kept import Kept
from benchmarks.gpu.order import Slots, Turn, ordered, processors
from benchmarks.gpu.plain import Loop
from benchmarks.gpu.report import ROWS, Found
from benchmarks.gpu.runs import REPOSITORY, OutOfTime, Run, RunFailed, launched, spread
from benchmarks.gpu.sharing import Shared
from benchmarks.gpu.zoo import ZOO
from orchestrator.cli import cards as card_reports
from orchestrator.common.child import Started

_LEAST_S: Final = 5.0  # a launch that has less is not begun
_OF_A_PART: Final = 0.5  # of its time, at most, one run of a case takes
_START_S: Final = 6.0  # of a process that imports torch and starts CUDA
_A_STAGE_GB: Final = 20
_ZOO_STEPS: Final = 5
_FREE: Final = 4  # shards whose replicas run free, each on a worker of its own
_FREE_STEPS: Final = 60  # that is three rests, of which the first has warmed up and the last ends the run
# 7 million parameters: a chunk of a sum goes over the wire in pieces.
_WIRED: Final = {"width": 256, "layers": 4, "heads": 4, "vocabulary": 8192, "window": 64, "nap_s": 0.0015}
# 27 million parameters: some settings take a second a step for them, and would take half a minute for the large model.
_MEDIUM: Final = {"width": 512, "layers": 6, "heads": 8, "vocabulary": 8192}
SIGKILLS: Final = {"every": "1s", "kinds": ["kill"]}


@dataclass(frozen=True)
class Scale:
    """The device of a benchmark, and its sizes."""

    device: str = "cuda"
    share: float = 0.1  # of the card, for each worker
    gpt: Mapping[str, Any] = field(default_factory=dict)  # arguments of the model
    # likewise, of one whose sums leave the card
    medium: Mapping[str, Any] = field(default_factory=lambda: dict(_MEDIUM))
    llama: Mapping[str, Any] = field(default_factory=dict)  # likewise
    # the settings of its four workers
    llama_cluster: Mapping[str, Any] = field(default_factory=lambda: {"gpus_per_worker": 0.25, "gpu_gb": _A_STAGE_GB})
    wired: Mapping[str, Any] = field(default_factory=lambda: dict(_WIRED))  # arguments of the model on several hosts
    rows: int = 64  # of a step
    steps: int = 24  # of a run that is timed
    medium_steps: int = 200  # of one of the medium model
    slow_steps: int = 16  # of one that moves data of it to host memory
    small_steps: int = 1000  # of one of a small model: its worker describes itself beside the first hundreds
    small_loop: int = 40  # steps of plain PyTorch beside it
    kill_steps: int = 80  # of one whose worker is killed
    nap_s: float = 0.0015  # that reading a sample takes in such a run
    layouts: int = 200  # that sums are tried with
    backend: str = "inductor"  # of torch.compile
    shared: Shared = field(default_factory=Shared)


CARD: Final = Scale()
TOY: Final = Scale(  # all of it, on processors: that nothing is mistyped
    "cpu",
    0.0,
    {"width": 16, "layers": 1, "heads": 2, "vocabulary": 64, "window": 8},
    {"width": 16, "layers": 1, "heads": 2, "vocabulary": 64, "window": 8},
    {"width": 16, "layers": 4, "heads": 4, "groups": 2, "inner": 24, "vocabulary": 64, "window": 8},
    {},
    {"width": 64, "layers": 1, "heads": 2, "vocabulary": 4096, "window": 8, "nap_s": 0.01},
    rows=8,
    steps=150,
    medium_steps=150,
    slow_steps=150,
    small_steps=150,
    small_loop=18,
    kill_steps=80,
    nap_s=0.01,
    layouts=10,
    backend="eager",
    shared=Shared("tests.comm.transports.device_double:HostDriver", 1 << 16),
)


@dataclass
class Bench:
    """found: samples; checks: what was checked, in sentences; missing: what could not be measured, and why; failed: whether
    anything of that was a failure."""

    scale: Scale
    found: Found = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    failed: bool = False
    began: float = field(default_factory=time.monotonic)
    kept: Kept = field(default_factory=Kept)  # what tells more of failures

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def tell(self, line: str) -> None:
        shown = f"{self.elapsed_s:5.0f} s  {line}"
        print(shown, flush=True)
        self.kept.line(shown)

    def checked(self, line: str) -> None:
        self.tell(line)
        self.checks.append(line)

    def wrong(self, line: str, details: str = "") -> None:
        """details: all that is known of it."""
        self.tell(f"FAILED: {line}")
        self.kept.failure(line, details)
        self.missing.append(line)
        self.failed = True

    def raised(self, name: str, error: BaseException) -> None:
        """To be called where it is caught. It is kept with the traceback and what a process said."""
        details = f"{traceback.format_exc()}\n{getattr(error, 'details', '')}"
        if isinstance(error, OutOfTime):
            self.kept.failure(f"{name}: {error}", details)
            self.skipped(f"{name}: {error}")
        else:
            self.wrong(f"{name}: {str(error) or type(error).__name__}", details)

    def project(self, name: str) -> AbstractContextManager[Path]:
        """As `runs.project`. name: of what its runs are for."""
        return runs.project(self.kept, name, lambda: self.failed)

    def skipped(self, line: str) -> None:
        self.tell(f"skipped: {line}")
        self.missing.append(f"{line} (skipped)")

    def measured(self, key: str, samples: Sequence[float]) -> None:
        self.found.setdefault(key, []).extend(samples)
        row = next((row for row in ROWS if row.key == key), None)
        name, unit = (key, "ms") if row is None else (row.name, row.unit)
        self.tell(f"{name}: {spread(samples)} {unit}")


Work = Callable[[Bench, float], None]


@dataclass(frozen=True)
class Part:
    """half: of the benchmark; what is spare follows the times, as far as time is left."""

    name: str
    share_s: float
    work: Work
    half: Literal["checks", "times", "both", "spare"] = "times"
    needs: str | None = None  # the key of section `run` without which there is nothing to measure


# --- Checks -----------------------------------------------------------------------------------------------------------------


def cards(bench: Bench, seconds: float) -> None:  # noqa: ARG001 (each step of it has its own time)
    """As `doctor` looks at them, which tries each call that workers make."""
    if bench.scale.device != "cuda":
        bench.checked("cards: none is there to be tried")
        return
    found = card_reports.report(lambda: Started(card_reports.TRIAL, apart=True))  # what it says of errors is shown
    for line in found.as_text():
        bench.tell(line)
    tried = found.tried
    why = found.unknown or ("nothing was tried" if tried is None else tried.trouble)
    refused = [] if tried is None else [each for each in (*tried.compiles, *tried.shares) if each is not None]
    if why or refused:
        bench.wrong(f"cards: {'; '.join([*([why] if why else []), *refused])}")
    else:
        bench.checked(f"cards: kernels compile, and memory is shared, on {len(found.found)}")


def kernels(bench: Bench, seconds: float) -> None:
    """Each way to sum in a process of its own, since an error of a card ends all that a process has there."""
    names = ["kernels"] if bench.scale.device == "cuda" else []
    began = time.monotonic()
    for number, name in enumerate(names := [*names, "operations of torch"]):
        left = seconds - (time.monotonic() - began)
        _summed_by(bench, name, left / (len(names) - number))


def _summed_by(bench: Bench, name: str, seconds: float) -> None:
    code, output, errors = _rounds_of(bench.scale, name, bench.scale.layouts, seconds)
    told = [json.loads(line) for line in output.splitlines() if line.startswith('{"count"')]
    said = f"{output}\n{errors}"
    found: dict[str, Any] = told[-1] if told else {"count": 0, "differed": []}
    for line in found["differed"]:
        bench.wrong(f"{name}: {line}", said)
        said = ""
    if told:
        layouts = len({line.partition(":")[0] for line in found["differed"]})
        right = f"{found['count'] - layouts} of {found['count']} random layouts have the bits of the processor"
        bench.checked(f"sums by {name}: {right}")
    if spent := found.get("times"):
        bench.tell(f"136 million elements: {', '.join(f'{each} {ms:.2f} ms' for each, ms in spent.items())}")
    if code != 0:
        ended = "was not done in time" if code is None else f"exited with {code}"
        bench.wrong(f"sums by {name}: the process {ended}: {''.join(errors.strip().splitlines()[-1:])}", said)
    if bench.scale.device == "cuda" and "Error" in errors:
        # An error of a card is told by a later call, unless each call waits.
        blocking = runs.Place(variables={"CUDA_LAUNCH_BLOCKING": "1"})
        _, output, errors = _rounds_of(bench.scale, name, 2, seconds, blocking)
        bench.kept.failure(f"sums by {name}, again with CUDA_LAUNCH_BLOCKING=1", f"{output}\n{errors}")


def _rounds_of(
    scale: Scale, name: str, layouts: int, seconds: float, place: runs.Place = runs.HERE
) -> tuple[int | None, str, str]:
    command = ["-m", "benchmarks.gpu.bits", scale.device, name, str(layouts), str(seconds - _START_S)]
    return runs.executed(command, REPOSITORY, seconds + _START_S, place)


def shared_memory(bench: Bench, seconds: float) -> None:
    bench.checked(f"shared memory: {sharing.outlives_its_owner(bench.scale.shared, runs.environment(), seconds)}")


class Layout(NamedTuple):
    """kind: what it shows, by a name that other cases share; name: of this one; changes: of the settings of its case."""

    kind: str
    name: str
    changes: Mapping[str, Any]

    @property
    def processors(self) -> int:
        """The number that a run keeps busy as it starts: its workers and the launch."""
        return 1 + int(self.changes.get("workers", 1))


@dataclass(frozen=True)
class Case:
    """A small model and a way to train it. topology: of its four workers; needs: as of a part; free: its replicas run free, so
    that runs differ, and only the repetition of one has its digest; stages: into which it is cut for two workers, too."""

    name: str
    model: str
    topology: str
    precision: str = "float32"
    more: Mapping[str, Any] = field(default_factory=dict)
    needs: str | None = None
    free: bool = False
    stages: int = 1
    loaders: int = 0  # of each of four workers
    checked: bool = (
        False  # a run more, which names the pair of members between whom a bit changes, or who computes wrongly
    )

    @property
    def layouts(self) -> Iterator[Layout]:
        """The first is that of the run which is repeated."""
        if not self.free:
            yield Layout("1 worker", "1 worker", {})
        yield Layout("SIGKILL", "3 workers in a ring, SIGKILL", {"workers": 3, "topology": "ring", "chaos": SIGKILLS})
        if not self.free:
            ahead = {"loaders": self.loaders} if self.loaders else {}
            changes = {"workers": 4, "topology": self.topology, **ahead}
            yield Layout("4 workers", f"4 workers, {self.topology}", changes)
        if self.checked:
            changes = {"workers": 3, "topology": "peer_to_peer", "check": {"every": 1}}
            yield Layout("checked", "3 workers, each step checked", changes)
        if self.stages > 1:
            yield Layout("stages", f"2 workers, {self.stages} stages", {"workers": 2, "stages": self.stages})


CASES: Final = (
    Case("convolutions, float32", "Digits", "tree", stages=2, checked=True),
    # Compiling takes longest, so it begins early.
    Case("transformer, compiled", "Characters", "ring", more={"run": {"compile": True}}, needs="compile"),
    Case("convolutions, compiled", "Digits", "tree", more={"run": {"compile": True}}, needs="compile"),
    Case(
        "transformer, bfloat16, clipped",
        "Characters",
        "peer_to_peer",
        "bfloat16",
        {"gradient": {"clip": 1.0}},
        stages=2,
    ),
    Case("recurrent, PowerSGD", "Sequences", "ring", more={"compression": {"name": "powersgd"}}),
    Case(
        "convolutions, local steps",
        "Digits",
        "tree",
        more={
            "optimizer": {"name": "sgd", "lr": 1.0},
            "local": {"steps": 2, "optimizer": {"name": "sgd", "lr": 0.01}},
        },
    ),
    Case("wide rows, loaders", "Wide", "tree", loaders=2),
    Case("recurrent, quantized", "Sequences", "tree", more={"compression": {"name": "quantize"}}),
    Case("transformer, private", "Characters", "ring", more={"privacy": {"clipping_norm": 1.0}}),
    Case("convolutions, asynchronous", "Digits", "tree", more={"sync": {"name": "ssp", "staleness": 3}}, free=True),
)


@dataclass
class Met:
    """The outcome of a case so far. done: its runs by their layouts, the first first, with which all others are compared;
    begun: whether the run that is to be repeated has ended, well or not."""

    case: Case
    project: Path
    done: dict[str, Run] = field(default_factory=dict)
    begun: threading.Event = field(default_factory=threading.Event)
    comparing: threading.Lock = field(default_factory=threading.Lock)


_REPEATED: Final = Layout("repeated", "repeated", {"workers": 2})


def trials(cases: Sequence[Case]) -> list[tuple[Case, Layout]]:
    """All runs of these cases, in the order in which they go: each case and each kind of layout is shown once, before anything
    is shown again. A case is shown by two of its runs."""
    made: list[tuple[Case, Layout]] = []
    shown: list[set[str]] = []
    after: dict[int, int] = {}
    for case in cases:
        beginning = len(made)
        for place, layout in enumerate((*case.layouts, _REPEATED), beginning):
            made.append((case, layout))
            shown.append({layout.kind, case.name} if place > beginning else {layout.kind})
            if place > beginning:
                after[place] = beginning
    return [made[place] for place in ordered(shown, after)]


def digests(bench: Bench, seconds: float) -> None:
    """As many runs at once as there are processors for; those of a case in one project. A run that stands still leaves time for
    the others."""
    until, most_s = time.monotonic() + seconds, _OF_A_PART * seconds
    there = [case for case in CASES if case.needs is None or runs.has_setting("run", case.needs)]
    slots, turns = Slots(processors()), trials(there)
    with contextlib.ExitStack() as stack:
        met = {case.name: Met(case, stack.enter_context(bench.project(case.name))) for case in there}
        pool = stack.enter_context(ThreadPoolExecutor(len(turns)))
        for case, layout in turns:
            pool.submit(_tried, bench, until, most_s, slots.turn(layout.processors), met[case.name], layout)


def _tried(bench: Bench, until: float, most_s: float, turn: Turn, met: Met, layout: Layout) -> None:
    """A run of a case, at most so long. One that fails hides nothing of the others."""
    name = f"{met.case.name}, {layout.name}"
    with turn:
        try:
            left = min(until - time.monotonic(), most_s)
            if left < _LEAST_S:
                bench.skipped(name)
            elif layout is _REPEATED:
                _repeated(bench, met, left)
            else:
                _run_as(bench, met, layout, left)
        except Exception as error:
            bench.raised(name, error)
            bench.kept.records(met.project, met.case.name)
        finally:
            if layout == next(met.case.layouts):
                met.begun.set()


def _run_as(bench: Bench, met: Met, layout: Layout, seconds: float) -> None:
    scale, case, changes = bench.scale, met.case, layout.changes
    # A run has to last where a worker is killed, and each step where loaders read ahead.
    nap_s = scale.nap_s if {"chaos", "loaders"} & set(changes) else 0.0
    common = {"precision": case.precision, "steps": scale.kill_steps, "args": {"nap_s": nap_s}, **case.more}
    asked = settings(scale, case.model, **{**common, **changes})
    run = launched(met.project, asked, seconds, where=f"{layout.kind.replace(' ', '-')}.yaml")
    with met.comparing:
        met.done[layout.name] = run
        for why in runs.slower_ways(runs.journal_of(met.project, run)):
            bench.tell(f"{case.name}, {layout.name}: {why}")
        beside, first = next(iter(met.done.items()))
        _compare(bench, f"{case.name}, {layout.name}", run, first, beside, killed="chaos" in changes)


def _repeated(bench: Bench, met: Met, seconds: float) -> None:
    """Undisturbed, also where it repeats a run that was killed: two workers may be lost together, again and again."""
    case, until = met.case, time.monotonic() + seconds
    met.begun.wait(seconds)
    with met.comparing:
        run = met.done.get(next(case.layouts).name) or next(iter(met.done.values()), None)
    left = until - time.monotonic()
    if run is None or left < _LEAST_S:
        bench.skipped(f"{case.name}, repeated")
    elif not (met.project / ".git").exists():
        bench.skipped(f"{case.name}, repeated: there is no git, which keeps the code of a run")
    else:
        asked = (f"rerun={run.outcome['run_id']}", "cluster.workers=2", f"topology={case.topology}", "chaos.every=null")
        verdict = runs.said(met.project, left, *asked)["verdict"]
        if verdict != "exact":
            raise RunFailed(f"by 2 workers: {verdict}")
        bench.checked(f"{case.name}, repeated by 2 workers, {case.topology}: exact")


def _compare(bench: Bench, name: str, run: Run, first: Run, layout: str = "1 worker", *, killed: bool) -> None:
    """layout: of the first run."""
    digest = str(run.outcome["digest"])
    if digest != first.outcome["digest"]:
        bench.wrong(f"{name}: digest {digest[:16]}, and {str(first.outcome['digest'])[:16]} with {layout}")
        return
    losses = run.losses
    if killed and not losses:
        bench.wrong(f"{name}: nobody was killed before its end, so nothing is shown")
        return
    lost = sum(each["steps_lost"] for each in run.outcome["recoveries"])
    next_step = f", next step after {spread(losses)} s" if losses else ""
    bench.checked(f"{name}: digest {digest[:16]}; {len(losses)} killed, {lost} steps lost{next_step}")


def zoo(bench: Bench, seconds: float) -> None:
    """Small models of all kinds, each for itself: one worker, which computes its first shard twice, and three have one digest.
    An operation that torch refuses, or that varies, is told with what to write instead."""
    until, slots = time.monotonic() + seconds, Slots(processors())
    with ThreadPoolExecutor(len(ZOO)) as pool:
        for _ in pool.map(partial(_met, bench, until, slots), ZOO):
            pass


def _met(bench: Bench, until: float, slots: Slots, kind: type) -> None:
    """One of the zoo."""
    name, refused = f"zoo, {kind.__name__}", getattr(kind, "refused", None) if bench.scale.device == "cuda" else None
    try:
        with bench.project(name) as project:
            with slots.turn(2):
                one = _of_zoo(bench, project, until, kind, 1)
            with slots.turn(4):
                three = _of_zoo(bench, project, until, kind, 3)
            events = [event for run in (one, three) for event in runs.journal_of(project, run)]
    except Exception as error:
        if refused is not None and refused in str(error):
            bench.checked(f"{name}: refused as it should be, {refused}")
        else:
            bench.raised(name, error)
    else:
        if refused is not None:
            bench.wrong(f"{name}: torch computes {refused} now, so its row of the table goes")
        _compare(bench, f"{name}, 3 workers", three, one, killed=False)
        for why in sorted({str(event["why"]) for event in events if event["event"] == "device"}):
            bench.checked(f"{name}: {why}")


def _of_zoo(bench: Bench, project: Path, until: float, kind: type, workers: int) -> Run:
    left = until - time.monotonic()
    if left < _LEAST_S:
        raise OutOfTime(f"no time is left for {workers} workers")
    asked = partial(settings, bench.scale, kind.__name__, module="gpu_zoo", steps=_ZOO_STEPS, shards=4)
    return launched(
        project, asked(precision=getattr(kind, "precision", "float32"), workers=workers, topology="tree"), left
    )


def two_hosts(bench: Bench, seconds: float) -> None:
    """The same in two hosts, which are network namespaces: sums between them are packed on the card. Two workers on each share
    it, and one is killed."""
    until = time.monotonic() + seconds
    scale = bench.scale
    common: dict[str, Any] = {"steps": scale.kill_steps, "args": scale.wired, "shards": 4}
    with contextlib.ExitStack() as stack:
        try:
            from benchmarks.hosts import ADDRESS, ray_on
            from benchmarks.namespaces import wired

            network = stack.enter_context(wired(2, "10gbit"))
        except (ImportError, FileNotFoundError, SystemExit) as error:
            bench.skipped(f"two hosts: {error}")
            return
        # A Ray that does not come up is waited for by others for much longer.
        watch = threading.Timer(seconds, partial(_end_all, network.processes))
        stack.callback(watch.cancel)
        watch.start()
        project = stack.enter_context(bench.project("two hosts"))
        first = launched(project, settings(scale, "Gpt", **common), until - time.monotonic())
        nodes = stack.enter_context(ray_on(network, 2, gpus=int(scale.device == "cuda")))
        cluster = {"address": ADDRESS, "workers": 4, "gpus_per_worker": scale.share}
        asked = settings(scale, "Gpt", **common, topology="hierarchical", chaos=SIGKILLS, cluster=cluster)
        place = runs.Place(("ip", "netns", "exec", network.names[0]), nodes.variables)
        run = launched(project, asked, until - time.monotonic(), place=place)
    _compare(bench, "GPT, 2 hosts, hierarchical, 4 workers, SIGKILL", run, first, killed=True)


def _end_all(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()


# --- Times ------------------------------------------------------------------------------------------------------------------


def settings(
    scale: Scale,
    model: str,
    *,
    precision: str = "float32",
    shards: int = 8,
    steps: int,
    workers: int = 1,
    stages: int = 1,
    loaders: int = 0,
    args: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    cluster: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    module: str = "gpu_models",
    **more: Any,
) -> dict[str, Any]:
    """The settings of a run of a pipeline of this module. run, cluster, data: more keys of these sections; more: sections."""
    given = {"name": model.lower(), "steps": steps, "seed": 1, "device": scale.device, "precision": precision}
    return {
        "run": {**given, **(run or {})},
        "pipeline": {"target": f"{module}:{model}", "args": dict(args or {})},
        "data": {"shards": shards, "batch_size": rows_of(scale, model), "loaders": loaders, **(data or {})},
        "cluster": {"workers": workers, "stages": stages, "gpus_per_worker": scale.share, **(cluster or {})},
        "optimizer": {"name": "adamw", "lr": 1e-4},
        "checkpoint": {"every": None},
        **more,
    }


def rows_of(scale: Scale, model: str) -> int:
    """The rows of a step; `conf/digits.yaml` has twice those of `conf/characters.yaml`."""
    return 2 * scale.rows if model == "Digits" else scale.rows


@dataclass(frozen=True)
class Step:
    """A part: a run whose step is measured. model: the GPT where nothing else is said; steps: of the run, None: those of the
    scale; single: an update of one shard is measured, and not a step of all; saves: the steps that are measured are followed by
    a checkpoint, which is measured, and by as many steps more; size: of the GPT, where slow is the medium one with few steps;
    more: sections of the run's settings."""

    key: str
    precision: str = "float32"
    shards: int = 8
    workers: int = 1
    stages: int = 1
    model: str = "Gpt"
    steps: int | None = None
    single: bool = False
    saves: bool = False
    size: Literal["large", "medium", "slow"] = "large"
    run: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, bench: Bench, seconds: float) -> None:
        with bench.project(self.key) as project:
            asked = self.asked(bench.scale)
            try:
                run = launched(project, asked, seconds)
            except OutOfTime as error:
                windows, _ = runs.recorded(project)
                if max((window["first"] + window["steps"] for window in windows), default=0) < asked["run"]["steps"]:
                    raise
                bench.skipped(f"{self.key}: what follows the last step: {error}")
            else:
                if self.model != "Gpt":
                    bench.measured("start", [run.outcome["launch_s"]])
            windows, journal = runs.recorded(project)
        updates = self.shards if self.single else 1
        saved = asked["checkpoint"]["every"]
        bench.measured(self.key, [each / updates for each in runs.step_ms(windows, saved)])
        if saved is not None:
            bench.measured("checkpoint", runs.checkpoint_ms(windows, journal))
            if held := runs.bytes_per_parameter(journal):
                bench.measured("memory", held)

    def asked(self, scale: Scale) -> dict[str, Any]:
        large = self.model == "Gpt"
        of_size = {"large": scale.steps, "medium": scale.medium_steps, "slow": scale.slow_steps}
        steps = self.steps or (of_size[self.size] if large else scale.small_steps)
        args = scale.gpt if self.size == "large" else scale.medium
        saving: dict[str, Any] = {"checkpoint": {"every": 3 * steps // 2, "keep": 1}} if self.saves else {}
        return settings(
            scale,
            self.model,
            precision=self.precision,
            shards=self.shards,
            steps=3 * steps if self.saves else steps,
            workers=self.workers,
            stages=self.stages,
            args=args if large else {},
            run=self.run,
            **saving,
            **self.more,
        )


def beside_one_worker(step: Step, bench: Bench, seconds: float) -> None:
    step(bench, seconds)
    if alone := bench.found.get("bfloat16, 8"):
        bench.found[f"{step.key}: 1 worker"] = alone


four_workers: Final = partial(
    beside_one_worker, Step("bfloat16, 8, 4 workers", "bfloat16", workers=4, more={"topology": "peer_to_peer"})
)
_AHEAD: Final = {"cluster": {"pipeline": {"name": "1f1b", "ahead": 1}}}
two_stages: Final = partial(
    beside_one_worker, Step("bfloat16, 8, 2 stages", "bfloat16", workers=2, stages=2, more=_AHEAD)
)


_MEDIUM_ALONE: Final = Step("medium", "bfloat16", size="medium")
_MEDIUM_TWO: Final = Step("medium, 2 workers", "bfloat16", workers=2, size="medium", more={"topology": "peer_to_peer"})


def beside_itself(step: Step, unchanged: Step, bench: Bench, seconds: float) -> None:
    """Measure a step with a setting beside one without it, which several parts have in common."""
    until = time.monotonic() + seconds
    if unchanged.key not in bench.found:
        unchanged(bench, seconds / 2)
    bench.found[f"{step.key}: without it"] = bench.found[unchanged.key]
    step(bench, until - time.monotonic())


def privately(step: Step, unchanged: Step, bench: Bench, seconds: float) -> None:
    """As that, with a secret that is gone with the run: the user's own is not needed."""
    with tempfile.TemporaryDirectory(prefix="gpu-secret-") as folder:
        privacy = {**step.more["privacy"], "secret": f"{folder}/secret"}
        beside_itself(replace(step, more={**step.more, "privacy": privacy}), unchanged, bench, seconds)


_medium: Final = partial(Step, precision="bfloat16", size="slow")
compression: Final = partial(
    beside_itself, _medium("compression", more={"compression": {"name": "powersgd"}}), _MEDIUM_ALONE
)
_PRIVATE: Final = {
    "privacy": {"clipping_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-3},
    "data": {"partition": {"name": "iid", "clients": 64}},
}
privacy: Final = partial(privately, _medium("privacy", more=_PRIVATE), _MEDIUM_ALONE)
fast_sums: Final = partial(beside_itself, _medium("fast", more={"reduction": "fast"}), _MEDIUM_ALONE)
_LOCAL: Final = {
    "optimizer": {"name": "sgd", "lr": 1.0},
    "local": {"steps": 2, "optimizer": {"name": "sgd", "lr": 0.01}},
}
local_steps: Final = partial(beside_itself, Step("local", "bfloat16", size="medium", more=_LOCAL), _MEDIUM_ALONE)
checked: Final = partial(
    beside_itself,
    Step("checked", "bfloat16", workers=2, size="medium", more={**_MEDIUM_TWO.more, "check": {"every": 1}}),
    _MEDIUM_TWO,
)

_ASP: Final = {"sync": {"name": "asp"}}


def loops(scale: Scale, kinds: Sequence[str]) -> list[Loop]:
    """Loops of plain PyTorch that do what the runs do."""
    large = partial(Loop, model="Gpt", rows=scale.rows, steps=max(4, scale.steps // 3), args=scale.gpt, lr=1e-4)
    small = partial(Loop, precision="float32", shards=8, steps=scale.small_loop, lr=1e-4)
    made = (
        partial(large, key="bfloat16, 8", precision="bfloat16", shards=8),
        partial(large, key="bfloat16, 1", precision="bfloat16", shards=1),
        partial(large, key="float32, 8", precision="float32", shards=8),
        partial(large, key="asynchronous", precision="bfloat16", shards=1, rows=scale.rows // _FREE),
        partial(small, key="digits", model="Digits", rows=rows_of(scale, "Digits")),
        partial(small, key="characters", model="Characters", rows=scale.rows, clip=1.0),
    )
    return [make(kind=kind, backend=scale.backend) for kind in kinds for make in made]


def plainly(bench: Bench, seconds: float, wanted: Sequence[Loop]) -> None:
    code, output, errors = runs.executed(
        ["-m", "benchmarks.gpu.plain", plain.told(bench.scale.device, wanted)], REPOSITORY, seconds
    )
    heard, failed = plain.heard(output)
    for key, kinds in heard.items():
        for kind, samples in kinds.items():
            bench.measured(f"{key}: {kind}", samples)
    for line in failed:
        bench.wrong(line)
    absent = [f"{loop.key}: {loop.kind}" for loop in wanted if loop.kind not in heard.get(loop.key, {})]
    if code is None and absent:
        bench.skipped(f"plain PyTorch, {'; '.join(absent)}: {seconds:.0f} s were over")
    if code:
        bench.wrong(f"plain PyTorch exited with {code}: {errors.strip()[-600:]}", f"{output}\n{errors}")


def plain_steps(bench: Bench, seconds: float) -> None:
    """The first peers of most rows come first, should time be over."""
    scale = bench.scale
    save = Loop("checkpoint", "torch.save", "Gpt", "bfloat16", 8, scale.rows, 1, scale.gpt)
    plainly(bench, seconds, [*loops(scale, ("deterministic", "eager")), save])


def plain_compiled(bench: Bench, seconds: float) -> None:
    plainly(bench, seconds, [loop for loop in loops(bench.scale, ("compiled",)) if loop.model == "Gpt"][:2])


def kills(bench: Bench, seconds: float) -> None:
    scale = bench.scale
    with bench.project("kill") as project:
        args = {"nap_s": scale.nap_s / 3}  # the next step is a survivor's, which reads the rows of those that were lost
        asked = settings(scale, "Characters", steps=3 * scale.kill_steps // 2, workers=3, args=args, chaos=SIGKILLS)
        try:
            lost = launched(project, asked, seconds).losses
        except OutOfTime:
            lost = runs.losses(runs.recorded(project)[1])
    if not lost:
        raise RunFailed("nobody was killed before its end")
    bench.measured("kill", lost)


def device_memory(bench: Bench, seconds: float) -> None:
    """The memory of all processes. Rows are few and have few tokens, so that activations are next to nothing; a process that
    only starts the device is taken off. The driver, graphs and gaps between blocks take what workers do not count."""
    scale, until = bench.scale, time.monotonic() + seconds
    args = {**scale.gpt, "window": 16}
    lean = partial(Loop, "memory", model="Gpt", precision="float32", shards=8, rows=8, steps=1, args=args)
    with memory.watching(scale.device) as watch, bench.project("device memory") as project:
        peaks, parameters = [], 0.0
        for kind in ("empty", "memory"):
            _, output, errors = runs.executed(
                ["-m", "benchmarks.gpu.plain", plain.told(scale.device, [lean(kind=kind)])],
                REPOSITORY,
                until - time.monotonic(),
            )
            answer = plain.heard(output)[0].get("memory", {}).get(kind)
            if answer is None:
                raise RunFailed(f"plain PyTorch did not end: {(output + errors).strip()[-600:]}")
            parameters = answer[0]
            peaks.append(watch.most())
        asked = settings(scale, "Gpt", steps=scale.steps // 2, args=args, data={"shards": 8, "batch_size": 8})
        launched(project, asked, until - time.monotonic())
        peaks.append(watch.most())
    empty, plainly_held, held = peaks
    bench.measured("memory, card", [(held - empty) / parameters])
    bench.found["memory, card: plain"] = [(plainly_held - empty) / parameters]


def llama_settings(scale: Scale, seconds: float) -> dict[str, Any]:
    """Four workers on one card, of which each may take a part that the whole model is too large for."""
    return settings(
        scale,
        "Llama",
        precision="bfloat16",
        steps=scale.steps // 2,
        args=scale.llama,
        cluster={"workers": 4, "stages": 4, "start_timeout_s": seconds, **scale.llama_cluster},
        data={"shards": 8, "batch_size": 8},
    )


def llama(bench: Bench, seconds: float) -> None:
    with bench.project("llama") as project:
        run = launched(project, llama_settings(bench.scale, seconds), seconds)
    bench.measured("llama", runs.step_ms(run.windows))
    if held := [(each["peak"] + each.get("sums", 0)) / 1e9 for each in run.outcome.get("gpu_memory", {}).values()]:
        bench.measured("llama, memory", held)


def start_of_ray_train(bench: Bench, seconds: float) -> None:  # noqa: ARG001
    from importlib.util import find_spec

    if find_spec("tensorboardX") is None:
        bench.skipped("Ray Train's start: it needs tensorboardX, which is not there")
        return
    from benchmarks.recovery import first_step_of_ray_train

    bench.found["start: Ray Train on processors"] = [first_step_of_ray_train(16)]


# Shares of a bare machine with an H200, on which each was measured, and a fifth more. Those of a half fit its time.
PARTS: Final = (
    Part("cards", 8, cards, "both"),
    Part("kernels", 20, kernels, "both"),
    Part("memory-shared", 10, shared_memory, "checks"),
    Part("digests", 150, digests, "checks"),
    Part("zoo", 100, zoo, "checks"),
    Part("hosts", 60, two_hosts, "checks"),  # needs more than a card, so it comes last
    Part("bfloat16-8", 35, Step("bfloat16, 8", "bfloat16")),
    Part("plain", 48, plain_steps),
    Part("bfloat16-1", 32, Step("bfloat16, 1", "bfloat16", shards=1, saves=True)),
    Part("workers-4", 32, four_workers),
    Part("stages-2", 52, two_stages),
    Part("asynchronous", 42, Step("asynchronous", "bfloat16", _FREE, _FREE, steps=_FREE_STEPS, single=True, more=_ASP)),
    Part("digits", 20, Step("digits", model="Digits")),
    Part("characters", 24, Step("characters", model="Characters", more={"gradient": {"clip": 1.0}})),
    Part("float32-8", 35, Step("float32, 8")),
    Part("kill", 26, kills),
    Part("compile-8", 60, Step("bfloat16, 8, compile", "bfloat16", run={"compile": True}), needs="compile"),
    Part("device-memory", 45, device_memory, "spare"),
    Part("graphs-off", 30, Step("bfloat16, 8, no graphs", "bfloat16", run={"graphs": False}), "spare", "graphs"),
    Part("compile-1", 60, Step("bfloat16, 1, compile", "bfloat16", 1, run={"compile": True}), "spare", "compile"),
    Part("plain-compiled", 60, plain_compiled, "spare"),
    Part("ray-train", 20, start_of_ray_train, "spare"),
    Part("compression", 60, compression, "spare"),
    Part("privacy", 60, privacy, "spare"),
    Part("fast", 50, fast_sums, "spare"),
    Part("local", 40, local_steps, "spare"),
    Part("checked", 40, checked, "spare"),
    Part("llama", 440, llama, "spare"),
)


def half(*, checks: bool) -> list[Part]:
    """The parts of one half of the benchmark."""
    wanted = ("checks", "both") if checks else ("times", "both", "spare")
    return [part for part in PARTS if part.half in wanted]
