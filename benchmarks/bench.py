"""`make bench`: what the program costs beside its peers, each row and its peer in turn: a table with goals, and a picture.

    python -m benchmarks.bench [rows=digits,one-worker] [--smoke] [--page docs/benchmarks/index.md]

About 20 minutes on two quiet cores. rows: groups of rows, all when not given; --smoke: every row with tiny sizes, once, which
says that it can be measured and nothing about speed; --page: the table and the picture beside it replace those that stand
there. Exits with 1 where a row could not be measured: its reason is said, and the other rows are measured nevertheless.

A figure compares medians. Samples are of one sum, one step, one checkpoint, one command; of a training the median step of a
launch. Ours are true launches, except for `all-reduce`, `one-worker` and `checkpoint`, which are the parts that a launch uses.
Peers are what a user would write: `benchmarks/wired.py` (DDP), `loop.py` (plain PyTorch), `trainer.py` (Ray Train).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from benchmarks import launch, pages

REPOSITORY = Path(__file__).resolve().parent.parent
PICTURE = "side-by-side.svg"  # beside the page
KEEPS = ("torch", "numpy", "numba", "ray", "mlflow")  # whose versions stand with the figures
Found = dict[str, list[float]]  # contestant -> samples, of which less is better
Act = Callable[[], Found]
Acts = AbstractContextManager[Sequence[Act]]


@dataclass(frozen=True)
class Row:
    """ours, peer: contestants; the peer is shown by its name up to a comma. kind: `speedup` is the peer's median over ours,
    with a goal to be reached; `cost` is ours over the peer's, `value` ours itself, and their goals are not to be passed."""

    name: str
    ours: str
    peer: str
    unit: str
    goal: float | None
    kind: Literal["speedup", "cost", "value"] = "speedup"

    def figure(self, ours: Sequence[float], peer: Sequence[float]) -> float:
        own, other = statistics.median(ours), statistics.median(peer)
        return {"speedup": other / own, "cost": own / other, "value": own}[self.kind]

    def goal_beside(self, peer: Sequence[float]) -> float | None:
        """How many times better than the peer it is to be."""
        if self.goal is None or self.kind == "speedup":
            return self.goal
        return (1.0 if self.kind == "cost" else statistics.median(peer)) / self.goal

    @property
    def beside(self) -> str:
        return self.peer.partition(",")[0]

    def met(self, figure: float) -> bool | None:
        if self.goal is None:
            return None
        return figure >= self.goal if self.kind == "speedup" else figure <= self.goal


@dataclass(frozen=True)
class Effort:
    """How much is measured. hidden: of the wide model (4096: 25 million parameters); widths: of what is checkpointed."""

    rounds: int = 5
    repeats: int = 15
    steps: int = 40
    hidden: int = 4096
    widths: tuple[int, int] = (128, 1024)
    losses: int = 3


FULL, SMOKE = Effort(), Effort(rounds=1, repeats=2, steps=6, hidden=512, widths=(32, 64), losses=1)


@dataclass(frozen=True)
class Group:
    """acts: what all contestants do in a round, in turn. rounds: at most, where the effort allows for more."""

    rows: Sequence[Row]
    acts: Callable[[Effort], Acts]
    rounds: int = 3


# --- The contestants --------------------------------------------------------------------------------------------------------


@contextmanager
def all_reduce(effort: Effort) -> Iterator[Sequence[Act]]:
    from benchmarks.exchange import Contest, measure, name_of

    contest = Contest(effort.repeats, media=("unix",), reductions=("exact",), topologies=("ring",))

    def act(members: int) -> Found:
        shown = {"gloo": "gloo", name_of("exact", "unix", "ring"): "exact"}
        sizes = measure(members, contest).items()
        return {
            f"{shown[name]}, {size}, {members}": [1e3 * each for each in seconds]
            for size, times in sizes
            for name, seconds in times.items()
        }

    yield [partial(act, members) for members in (2, 4)]


@dataclass(frozen=True)
class Trained:
    """A model of benchmarks/wired.py on two workers. rows, lr, clip: of a step of each process of DDP."""

    model: str
    target: str
    settings: Sequence[str]
    steps: int  # so many times those of the effort
    rows: int
    lr: float
    clip: float | None = None


MLP = Trained("mlp", "benchmarks.wired:Mlp", ("conf=mlp", "data.shards=2", "data.batch_size=16"), 1, 8, 0.001)
DIGITS = Trained("digits", "benchmarks.wired:Images", ("conf=digits", "run.arithmetic=native"), 10, 32, 0.002)
CHARACTERS = Trained("characters", "benchmarks.wired:Text", ("conf=characters",), 2, 32, 0.002, 1.0)
# A feature that this version does not have yet: with a value here, its rows are there.
SHARDED: Sequence[str] | None = ("update.sharded=true",)


def training(trained: Trained, variants: Mapping[str, Sequence[str]]) -> Callable[[Effort], Acts]:
    """variants: contestant -> settings beside those of `trained`. All have the same rows, dealt to two workers."""

    @contextmanager
    def acts(effort: Effort) -> Iterator[Sequence[Act]]:
        with projects() as project:
            steps = 3 + effort.steps * trained.steps
            args = {"hidden": effort.hidden} if trained is MLP else {}
            ours = [partial(_launched, project, trained, name, more, steps, args) for name, more in variants.items()]
            yield [*ours, partial(_by_ddp, project, trained, steps, args)]

    return acts


def _launched(
    project: Path, trained: Trained, name: str, more: Sequence[str], steps: int, args: Mapping[str, Any]
) -> Found:
    with tempfile.TemporaryDirectory(prefix="marks-", dir="/tmp") as marks:
        pipeline = (f"pipeline.target={trained.target}", f"pipeline.args={json.dumps({'folder': marks, **args})}")
        common = (f"run.steps={steps}", "evaluation.every=null", "cluster.workers=2")
        launch.outcome(project, *trained.settings, *pipeline, *common, *more)
        return {name: [_step_ms(marks)]}


def _by_ddp(project: Path, trained: Trained, steps: int, args: Mapping[str, Any]) -> Found:
    with tempfile.TemporaryDirectory(prefix="marks-", dir="/tmp") as marks:
        told = {
            "model": trained.model,
            "world": 2,
            "meeting": f"file://{marks}/meeting",
            "interface": "lo",
            "shards": 1,
        }
        told |= {"steps": steps, "rows": trained.rows, "lr": trained.lr, "clip": trained.clip, **args}
        run_all([("benchmarks.wired", marks, json.dumps({**told, "rank": rank})) for rank in range(2)], project)
        return {"DDP": [_step_ms(marks)]}


def _step_ms(marks: str) -> float:
    from benchmarks.wired import marks_of, spans_of

    return 1e3 * statistics.median(spans_of(marks_of(Path(marks))))


@contextmanager
def one_worker(effort: Effort) -> Iterator[Sequence[Act]]:
    yield [partial(alone, _beside_plain, name, effort.steps) for name in ("digits", "characters")]


def _beside_plain(name: str, steps: int) -> Found:
    """Milliseconds of processor time."""
    from benchmarks.loop import WARM_UP, settings_of, side_by_side

    pairs = side_by_side(settings_of(name, "exact", steps + WARM_UP))
    ours, plain = ([1e3 * getattr(pair, side).computing for pair in pairs] for side in ("engine", "plain"))
    return {name: ours, f"plain PyTorch, {name}": plain}


@contextmanager
def memory(effort: Effort) -> Iterator[Sequence[Act]]:
    from benchmarks.memory import above_tiny, parameters

    def act(name: str, side: str, workers: int, more: Sequence[str]) -> Found:
        _, held = above_tiny(side, workers, effort.hidden, shards=4, steps=6, more=more)
        return {name: [held / parameters(effort.hidden)]}

    ours = [partial(act, f"{workers}", "orchestrator", workers, ()) for workers in (1, 2, 4)]
    peers = [partial(act, f"DDP, {workers}", "DDP", workers, ()) for workers in (1, 2, 4)]
    sharded = [partial(act, "4, sharded", "orchestrator", 4, SHARDED)] if SHARDED else []
    yield [*ours, *sharded, *peers]


@contextmanager
def start(effort: Effort) -> Iterator[Sequence[Act]]:
    """Ray Train has a model of as many parameters as the digits' one (16 units), and the wide one."""
    from benchmarks.recovery import first_step_of_ray_train

    def launched(name: str, *command: str) -> Found:
        outcome = launch.outcome(project, *command, "run.steps=5", "cluster.workers=2")
        return {name: [outcome["launch_s"]]}

    def ray_train(name: str, hidden: int) -> Found:
        return {name: [first_step_of_ray_train(hidden)]}

    with projects() as project, tempfile.TemporaryDirectory(prefix="marks-", dir="/tmp") as marks:
        args = json.dumps({"folder": marks, "hidden": effort.hidden})
        wide = (*MLP.settings, f"pipeline.target={MLP.target}", f"pipeline.args={args}")
        yield [
            partial(launched, "digits", "conf=digits"),
            partial(launched, "mlp", *wide),
            partial(ray_train, "Ray Train, digits", 16),
            partial(ray_train, "Ray Train, mlp", effort.hidden),
        ]


@contextmanager
def verbs(effort: Effort) -> Iterator[Sequence[Act]]:  # noqa: ARG001
    def timed(name: str, *command: str) -> Found:
        began = time.perf_counter()
        launch.run(command, project)
        return {name: [time.perf_counter() - began]}

    with projects() as project:
        launch.outcome(project, "conf=digits", "run.steps=5", "cluster.workers=1")
        ours = {"runs": ("runs",), "compare": ("compare=last,last",), "plan": ("conf=digits", "plan=true")}
        program = (sys.executable, "-m", "orchestrator")
        yield [
            *(partial(timed, name, *program, *command) for name, command in ours.items()),
            partial(timed, "git log", "git", "log"),
        ]


@contextmanager
def checkpoint(effort: Effort) -> Iterator[Sequence[Act]]:
    yield [
        partial(alone, _checkpointed, size, width, max(2, effort.repeats // 4))
        for size, width in zip(("0.4", "25"), effort.widths, strict=True)
    ]


def _checkpointed(size: str, width: int, repeats: int) -> Found:
    """Milliseconds: how long training stands still, and what the steps beside the writing lose, never less than nothing."""
    import torch

    from benchmarks.checkpoint import Training, measure, other_cores_busy

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, other_cores_busy():
        times = measure(Training(width), Path(folder), repeats)
    ours = [1e3 * (stall + max(0.0, lost)) for stall, lost in zip(times["stall"], times["lost"], strict=True)]
    return {size: ours, f"torch.save and fsync, {size}": [1e3 * each for each in times["flushed"]]}


@contextmanager
def recovery(effort: Effort) -> Iterator[Sequence[Act]]:
    from benchmarks.recovery import SIDES, lose

    def act(side: str) -> Found:
        return {side: [loss.next_step for loss in lose(side, effort.losses, hidden=1024, every=5)]}

    yield [partial(act, side) for side in (SIDES[0], SIDES[-1])]


# --- The rows ---------------------------------------------------------------------------------------------------------------


def _all_reduce_rows() -> Iterator[Row]:
    goals = {
        ("4 kB", 2): 5.0,
        ("1 MB", 2): 5.0,
        ("25 MB", 2): 4.0,
        ("4 kB", 4): None,
        ("1 MB", 4): None,
        ("25 MB", 4): None,
    }
    for (size, members), goal in goals.items():
        key = f"{size}, {members}"
        yield Row(
            f"all-reduce in shared memory, exact, {size}, {members} workers",
            f"exact, {key}",
            f"gloo, {key}",
            "ms",
            goal,
        )


ABSENT = {"sharded"} if SHARDED is None else set()


def _there(*rows: Row) -> Sequence[Row]:
    return [row for row in rows if row.ours.rpartition(", ")[2] not in ABSENT]


ABOVE, IN_BYTES = "memory above a tiny model", "bytes per parameter"
FIRST_STEP = "command to first step"
GROUPS = {
    "all-reduce": Group([*_all_reduce_rows()], all_reduce, rounds=1),
    "mlp": Group(
        _there(
            Row("step, MLP of 25 million parameters, 2 workers", "mlp", "DDP", "ms", 1.8),
            Row("step, MLP of 25 million parameters, 2 workers, `update: sharded`", "mlp, sharded", "DDP", "ms", 1.8),
        ),
        training(MLP, {"mlp": (), **({"mlp, sharded": SHARDED} if SHARDED else {})}),
    ),
    "digits": Group(
        [Row("step, digits, 2 workers, 2 shards", "digits", "DDP", "ms", 1.1)],
        training(DIGITS, {"digits": ("data.shards=2", "data.batch_size=64")}),
    ),
    "characters": Group(
        [
            Row("step, characters, 2 workers, 2 shards", "2 shards", "DDP", "ms", 1.05),
            Row("step, characters, 2 workers, 8 shards", "8 shards", "DDP", "ms", 1.05),
        ],
        training(CHARACTERS, {"2 shards": ("data.shards=2",), "8 shards": ("data.shards=8",)}),
    ),
    "one-worker": Group(
        [
            Row(
                "step, characters, 1 worker", "characters", "plain PyTorch, characters", "ms of processor", 1.01, "cost"
            ),
            Row("step, digits, 1 worker", "digits", "plain PyTorch, digits", "ms of processor", 1.10, "cost"),
        ],
        one_worker,
    ),
    "memory": Group(
        _there(
            *(
                Row(f"{ABOVE}, {n} worker{'s' * (n > 1)}", f"{n}", f"DDP, {n}", IN_BYTES, 28, "value")
                for n in (1, 2, 4)
            ),
            Row(f"{ABOVE}, 4 workers, `update: sharded`", "4, sharded", "DDP, 4", IN_BYTES, 20, "value"),
        ),
        memory,
        rounds=1,
    ),
    "start": Group(
        [
            Row(f"{FIRST_STEP}, {model}", key, f"Ray Train, {key}", "s", goal, "value")
            for key, model, goal in (("digits", "`conf=digits`", 3.5), ("mlp", "MLP of 25 million", 6.0))
        ],
        start,
    ),
    "verbs": Group(
        [
            Row("`runs`", "runs", "git log", "s", 0.5, "value"),
            Row("`compare=last,last`", "compare", "git log", "s", 0.5, "value"),
            Row("`conf=digits plan=true`", "plan", "git log", "s", 0.5, "value"),
        ],
        verbs,
        rounds=5,
    ),
    "checkpoint": Group(
        [
            Row(
                f"all that a checkpoint costs, {size} million, busy cores",
                size,
                f"torch.save and fsync, {size}",
                "ms",
                1.0,
                "cost",
            )
            for size in ("0.4", "25")
        ],
        checkpoint,
        rounds=1,
    ),
    "recovery": Group(
        [Row("worker killed to next step", "orchestrator", "Ray Train", "s", 0.15, "value")], recovery, rounds=1
    ),
}


# --- Running commands -------------------------------------------------------------------------------------------------------


@contextmanager
def projects() -> Iterator[Path]:
    """The project of `launch`, with the wide model as `conf=mlp`."""
    with launch.project() as folder:
        given = {"run": {"name": "mlp", "seed": 1}, "optimizer": {"name": "adamw", "lr": 0.001}}
        (folder / "conf" / "mlp.yaml").write_text(json.dumps(given))
        yield folder


def run_all(modules: Sequence[Sequence[str]], folder: Path) -> None:
    """Processes that need each other; when one fails, the others are killed."""
    processes = [
        subprocess.Popen(
            (sys.executable, "-m", *module), cwd=folder, env=launch.environment(), stderr=subprocess.PIPE, text=True
        )
        for module in modules
    ]
    try:
        for process in processes:
            _, said = process.communicate(timeout=launch.PATIENCE_S)
            if process.returncode:
                sys.exit(f"{modules[0][0]} exited with {process.returncode}: {said.strip()[-1000:]}")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def alone(function: Callable[..., Found], *arguments: Any) -> Found:
    """In a process of its own, whose threads and memory are as they are in a fresh one."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(group: Group, effort: Effort) -> tuple[Found, list[str]]:
    """All acts in turn, round by round; one that fails has its reason told and no further turn."""
    found: Found = {}
    reasons: dict[int, str] = {}
    try:
        with group.acts(effort) as acts:
            for _ in range(min(group.rounds, effort.rounds)):
                for number, act in enumerate(acts):
                    if number not in reasons:
                        try:
                            for name, samples in act().items():
                                found.setdefault(name, []).extend(samples)
                        except (Exception, SystemExit) as error:
                            reasons[number] = str(error) or type(error).__name__
    except (Exception, SystemExit) as error:  # what all contestants need could not be made
        reasons[-1] = str(error) or type(error).__name__
    return found, list(reasons.values())


# --- What is shown ----------------------------------------------------------------------------------------------------------


def table(groups: Mapping[str, Group], found: Mapping[str, Found]) -> str:
    """In Markdown. A row whose contestants have no samples is shown as not measured."""
    lines = ["| | ours, least / median | beside | its least / median | | goal | |", "|---|---:|---|---:|---:|---:|---|"]
    for name, group in groups.items():
        for row in group.rows:
            ours, peer = (found.get(name, {}).get(side) for side in (row.ours, row.peer))
            if not ours or not peer:
                lines.append(f"| {row.name} | | {row.beside} | | not measured | {_goal(row)} | |")
                continue
            figure = row.figure(ours, peer)
            met = {True: "met", False: "**not met**", None: ""}[row.met(figure)]
            cells = (
                f"{_spread(ours)} {row.unit}",
                row.beside,
                f"{_spread(peer)} {row.unit}",
                _shown(row, figure),
                _goal(row),
                met,
            )
            lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(row: Row, figure: float) -> str:
    words = {"speedup": " times as fast", "cost": " times its cost", "value": f" {row.unit}"}
    return f"{_number(figure)}{words[row.kind]}"


def _goal(row: Row) -> str:
    if row.goal is None:
        return ""
    return f"{row.goal:g}" if row.kind == "speedup" else f"at most {row.goal:g}"


def _spread(samples: Sequence[float]) -> str:
    return f"{_number(min(samples))} / {_number(statistics.median(samples))}"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def draw(groups: Mapping[str, Group], found: Mapping[str, Found], path: Path) -> None:
    """A bar for each row: how many times better than its peer it is, with a line where its goal is."""
    bars = [
        (row, found[name][row.ours], found[name][row.peer])
        for name, group in groups.items()
        for row in group.rows
        if {row.ours, row.peer} <= found[name].keys()
    ]
    with pages.picture(path, 1, 8, 0.27 * len(bars) + 1) as (axis,):
        for place, (row, ours, peer) in enumerate(bars):
            better, goal = statistics.median(peer) / statistics.median(ours), row.goal_beside(peer)
            color = "tab:blue" if goal is None or better >= goal else "tab:orange"
            axis.barh(place, better - 1, left=1, height=0.7, color=color)
            if goal is not None:
                axis.plot([goal, goal], [place - 0.45, place + 0.45], color="black", linewidth=1.5)
        labels = [f"{row.name.replace('`', '')}, {row.beside}" for row, _, _ in bars]
        axis.set_yticks(range(len(bars)), labels, fontsize=7)
        axis.invert_yaxis()
        axis.set_xscale("log")
        axis.axvline(1.0, color="grey", linewidth=0.8)
        axis.set_xlabel("times better than the peer; a line: the goal; orange: not met", fontsize=8)


def machine() -> str:
    """Processor, cores, memory and versions, in a sentence."""
    said = Path("/proc/cpuinfo").read_text()
    name = re.search(r"^model name\s*: (.*)$", said, re.MULTILINE)
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{each} {_version(each)}" for each in KEEPS)
    cores = len(os.sched_getaffinity(0))
    return (
        f"{name[1] if name else platform.processor()}, {cores} cores, {size:.0f} GB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # where packages are copied together by hand
        return "of unknown version"


def load() -> str:
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench")
    parser.add_argument("rows", nargs="?", type=_groups, default=dict(GROUPS), help=f"rows=A,B of {', '.join(GROUPS)}")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, once")
    parser.add_argument("--page", type=pages.with_marks("bench"))
    chosen = parser.parse_args(arguments)
    if chosen.page is not None and len(chosen.rows) < len(GROUPS):
        parser.error("--page needs all rows: what it replaces is one run's")
    return chosen


def _groups(text: str) -> dict[str, Group]:
    names = text.removeprefix("rows=").split(",")
    unknown = [name for name in names if name not in GROUPS]
    if unknown or not text.startswith("rows="):
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown) or text}; there is rows=A,B of {', '.join(GROUPS)}")
    return {name: GROUPS[name] for name in names}


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parsed(arguments)
    effort = SMOKE if chosen.smoke else FULL
    before, began = load(), time.monotonic()
    found: dict[str, Found] = {}
    failed = False
    for name, group in chosen.rows.items():
        found[name], reasons = measure(group, effort)
        failed |= bool(reasons)
        print(
            table({name: group}, found),
            *(f"{name}: {reason}" for reason in reasons),
            sep="\n",
            file=sys.stderr,
            flush=True,
        )
    took = (time.monotonic() - began) / 60
    today = datetime.datetime.now(datetime.UTC).strftime("%d %B %Y").lstrip("0")
    where = f"{today}, {machine()}; load average {before} before and {load()} after {took:.0f} minutes."
    note = "Tiny sizes, once: this says nothing about speed. " if chosen.smoke else ""
    text = f"{note}{where}\n\n{table(chosen.rows, found)}"
    print(text)
    if chosen.page is not None:
        draw(chosen.rows, found, chosen.page.parent / PICTURE)
        pages.replace(chosen.page, "bench", f"{text}\n\n![how many times better than its peer]({PICTURE})\n")
    return int(failed)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
