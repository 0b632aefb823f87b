"""True workers of a tiny model on this machine: what a run costs beside its work, from a few workers to more than a hundred.

For each number of workers one launch, which is watched from outside (`benchmarks.launch.Watch`) and by the marks of its steps
(`benchmarks.wide.marked`):

    launch      from the command to the first step of all: seconds, and processor time by kind of process
    step        over some seconds: processor time of the driver, of Ray's processes and of a worker, for each step and second
    loss        one worker is killed, three times, then a tenth of them: seconds from the kill until a worker has done two steps
                without them, and the recovery as the run records it, to the first of the two
    join        seconds from the kill to the first step of a process that replaces one
    messages    of a worker by kind, and their bytes, counted where it sends them (`messages.py`)
    memory      proportional set size (PSS) of the driver and of the median worker, and the worker's own pages
    loopback    bytes and packets of Ray, in and out of all its processes: reports, calls, its own; as root, where the launch
                gets a network of its own

Wall times mean something on a machine that does nothing else. It does not measure several machines.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks import launch, pages
from benchmarks.recovery import Marks, lives, read, telling
from benchmarks.scale import messages

SIZES = (4, 8, 16, 32, 64, 128)
RAY = ("raylet", "gcs_server", "agents of Ray", "idle worker")
_LOSSES = 3
_QUIET_STEPS = 5  # of all workers, before anything is measured
_LOOK_S = 0.05
_ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")  # a loopback of its own
T = TypeVar("T")


def options(parser: argparse.ArgumentParser) -> None:
    numbers: Callable[[str], list[int]] = lambda text: [int(each) for each in text.split(",")]  # noqa: E731
    parser.add_argument("--sizes", type=numbers, default=list(SIZES), help="numbers of true workers")
    parser.add_argument("--seconds", type=float, default=10.0, help="of steps that are counted")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for each thing that is waited for")
    parser.add_argument("--picture", type=Path, help="an SVG file: seconds and processor time by number of workers")
    parser.add_argument("--set", action="append", default=[], help="a further setting of the launches, key=value")


def measured(chosen: argparse.Namespace) -> str:
    ctypes.CDLL(None).prctl(launch._SUBREAPER, 1)
    courses = []
    for size in chosen.sizes:
        courses.append(course(size, chosen.seconds, chosen.patience, chosen.set))
        print(courses[-1], file=sys.stderr, flush=True)
    if chosen.picture is not None:
        draw(courses, chosen.picture)
    return told(courses)


class Loss(NamedTuple):
    """Seconds from the kill of some workers at once."""

    went_on: float  # a worker has done two steps, so one at least without them
    joined: float  # a process that replaces one has done its first step
    recovery: float  # as the run records it: from its detection to the next step


@dataclass(frozen=True)
class Instant:
    """The state of a launch at one moment."""

    at: float  # monotonic seconds
    steps: int  # that all its workers have completed
    spent: Mapping[str, Sequence[float]]  # processor seconds of each process, by kind
    loopback: tuple[int, int] | None  # bytes and packets so far; None where the network is not its own
    messages: messages.Counts = field(default_factory=dict)  # of all workers so far

    def of(self, *kinds: str) -> float:
        return sum(sum(self.spent.get(kind, ())) for kind in kinds)


@dataclass
class Course:
    """How the launch with so many workers went. Times in seconds; None where it was not measured."""

    workers: int
    first_step: float = 0.0  # from the command
    launch: Instant | None = None  # at the first step; what was spent is what the launch has cost
    before: Instant | None = None  # the steps that are counted lie between these two
    after: Instant | None = None
    lost_one: Loss | None = None  # the median of some by each figure
    lost_tenth: Loss | None = None
    driver_pss: float = 0.0  # MB
    worker_pss: float = 0.0
    worker_own: float = 0.0  # pages that no other process has
    checkpoint: int = 0  # bytes of one
    notes: list[str] = field(default_factory=list)


class Launch:
    """A launch that runs, watched all the time by a thread."""

    def __init__(self, process: subprocess.Popen[str], marks: Path, patience_s: float, *, alone: bool) -> None:
        self.process = process
        self.began = time.monotonic()
        self._marks = marks
        self._patience_s = patience_s
        self._alone = alone
        self._watch = launch.Watch()
        self._looking = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def marks(self) -> Marks:
        return read(self._marks, self.process.pid)

    def now(self) -> Instant:
        steps = completed(self.marks())
        with self._looking:
            self._watch.look()
            spent = dict(self._watch.spent(self.process.pid))
        loopback = _loopback(self.process.pid) if self._alone else None
        sent = messages.read(self._marks.parent / "messages", list(self.marks()))
        return Instant(time.monotonic(), steps, spent, loopback, sent)

    def wait(self, look: Callable[[Marks], T | None]) -> T:
        """Returns what `look` finds in the marks. Exits where the launch ends, or nothing is seen for too long."""
        deadline = time.monotonic() + self._patience_s
        while (seen := look(self.marks())) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit("the launch has ended or stands still")
            time.sleep(_LOOK_S)
        return seen

    def _look(self) -> None:
        while not self._ended.wait(4 * _LOOK_S):
            with self._looking:
                self._watch.look()


def course(workers: int, seconds: float, patience_s: float, more: Sequence[str] = ()) -> Course:
    found = Course(workers)
    with tempfile.TemporaryDirectory(prefix="sca-", dir="/tmp") as name:  # short, because Ray puts Unix sockets into it
        folder = Path(name)
        with launched(folder, workers, patience_s, more) as run:
            first = run.wait(lambda marks: _all_did(marks, workers, 1))
            found.first_step = first - run.began
            found.launch = run.now()
            run.wait(lambda marks: _all_did(marks, workers, _QUIET_STEPS))
            found.before = run.now()
            time.sleep(seconds)
            found.after = run.now()
            found.driver_pss, found.worker_pss, found.worker_own = _memory(run)
            losses = [_lose(run, folder, 1, workers) for _ in range(_LOSSES)]
            found.lost_one = Loss(*map(statistics.median, zip(*losses, strict=True)))
            if workers >= 20:
                found.lost_tenth = _lose(run, folder, workers // 10, workers)
        found.checkpoint = _checkpoint(folder)
    return found


@contextlib.contextmanager
def launched(folder: Path, workers: int, patience_s: float, more: Sequence[str]) -> Iterator[Launch]:
    marks = folder / "marks"
    marks.mkdir()
    shutil.copy2(launch.REPOSITORY / "benchmarks" / "scale" / "tiny.py", folder)
    settings = {
        "run": {"name": "scale", "steps": 1_000_000, "seed": 1},
        "pipeline": {"target": "tiny:Tiny", "args": {"marks": str(marks)}},
        "data": {"shards": workers, "batch_size": workers},
        "checkpoint": {"every": 1000},
        "cluster": {"workers": workers, "start_timeout_s": int(patience_s)},
    }
    (folder / "run.yaml").write_text(json.dumps(settings))
    alone = os.geteuid() == 0 and shutil.which("unshare") is not None and shutil.which("ip") is not None
    command = [*(_ALONE if alone else ()), sys.executable, "-m", "orchestrator", "conf=run.yaml", *more]
    with telling(folder / "output.txt") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=launch.environment(), stdout=output, stderr=output, text=True
        )
        run = Launch(process, marks, patience_s, alone=alone)
        try:
            yield run
            process.send_signal(signal.SIGTERM)
            process.wait(patience_s)
        except BaseException:
            process.kill()
            raise
        finally:
            run.close()
            _reap()


def completed(marks: Marks) -> int:
    """The most steps that all living processes have completed."""
    return min((own[-1][1] for pid, own in marks.items() if lives(pid)), default=0)


def next_step(marks: Marks, killed: float, victims: Sequence[int]) -> float | None:
    """When a process completed the first step in which the victims had no part; the one after their last may have been under
    way."""
    last = max(marks[pid][-1][1] for pid in victims)
    return min(
        (
            at
            for pid, own in marks.items()
            if pid not in victims
            for at, step in own
            if at > killed and step >= last + 2
        ),
        default=None,
    )


def _lose(run: Launch, folder: Path, number: int, workers: int) -> Loss:
    """Kill so many workers at once, and wait until all are replaced."""
    before, known = run.marks(), len(_recoveries(folder))
    victims = sorted(pid for pid in before if lives(pid))[-number:]
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    went_on = run.wait(lambda marks: next_step(marks, killed, victims))
    joined = run.wait(lambda marks: min((own[0][0] for pid, own in marks.items() if pid not in before), default=None))
    run.wait(lambda marks: sum(map(lives, marks)) >= workers or None)
    recovery = run.wait(lambda _: next(iter(_recoveries(folder)[known:]), None))
    return Loss(went_on - killed, joined - killed, recovery)


def _recoveries(folder: Path) -> list[float]:
    """Seconds of each recovery from a loss that the run has recorded."""
    (journal,) = (folder / ".orchestrator").glob("*/journal.jsonl")
    events = [json.loads(line) for line in journal.read_text().splitlines() if '"recovered"' in line]
    return [event["seconds"] for event in events if event["event"] == "recovered" and event["kind"] == "lost"]


def _all_did(marks: Marks, workers: int, steps: int) -> float | None:
    """When the last of all workers completed so many steps; None while one has not."""
    if len(marks) < workers or any(len(own) < steps for own in marks.values()):
        return None
    return max(own[steps - 1][0] for own in marks.values())


def _memory(run: Launch) -> tuple[float, float, float]:
    """MB: PSS of the driver, PSS of the median worker, and that worker's own pages."""
    workers = sorted(_smaps(pid) for pid in run.marks() if lives(pid))
    return _smaps(run.process.pid)[0], *workers[len(workers) // 2]


def _smaps(pid: int) -> tuple[float, float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return sizes["Pss"] / 1000, (sizes["Private_Clean"] + sizes["Private_Dirty"]) / 1000


def _loopback(pid: int) -> tuple[int, int]:
    """Bytes and packets that the loopback of this process's network has carried."""
    line = next(line for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines() if "lo:" in line)
    size, packets = line.split(":")[1].split()[:2]
    return int(size), int(packets)


def _checkpoint(folder: Path) -> int:
    """Bytes of the newest one with all its parts."""
    places = sorted((folder / ".orchestrator").glob("*/checkpoints/*"), key=lambda path: path.stat().st_mtime)
    if not places:
        return 0
    newest = places[-1]
    files = [newest] if newest.is_file() else [path for path in newest.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


def _reap() -> None:
    """The processes that have come to this one."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def told(courses: Sequence[Course]) -> str:
    """The tables, in Markdown."""
    parts = (_launches, _steps, _messages, _losses, _memories)
    return "\n\n".join(part(courses) for part in parts)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---:|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(map(_shown, row)) + " |" for row in rows])


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"


def _launches(courses: Sequence[Course]) -> str:
    heads = (
        *("workers", "command to first step s", "processor s", "driver", "Ray", "fork server", "workers, each"),
        "between two looks",
    )
    rows = []
    for each in courses:
        assert each.launch is not None
        spent = each.launch
        rest = sum(sum(own) for own in spent.spent.values())
        rows.append(
            (
                *(each.workers, each.first_step, rest, spent.of("driver"), spent.of(*RAY), spent.of("fork server")),
                *(spent.of("worker") / each.workers, spent.of("between two looks")),
            )
        )
    return _table(heads, rows)


def _steps(courses: Sequence[Course]) -> str:
    heads = (
        *("workers", "steps/s", "driver ms/step", "Ray ms/step", "a worker ms/step"),
        *("driver ms/s", "Ray ms/s", "a worker ms/s", "loopback kB/s", "packets/s"),
    )
    rows = []
    for each in courses:
        assert each.before is not None
        assert each.after is not None
        before, after = each.before, each.after
        steps, seconds = max(1, after.steps - before.steps), after.at - before.at
        spent = [
            1000 * (after.of(*kinds) - before.of(*kinds)) / number
            for kinds, number in ((("driver",), 1), (RAY, 1), (("worker",), each.workers))
        ]
        carried = (
            (None, None)
            if before.loopback is None or after.loopback is None
            else (
                (after.loopback[0] - before.loopback[0]) / seconds / 1000,
                (after.loopback[1] - before.loopback[1]) / seconds,
            )
        )
        rows.append(
            (
                *(each.workers, steps / seconds, *(value / steps for value in spent)),
                *(*(value / seconds for value in spent), *carried),
            )
        )
    return _table(heads, rows)


def _messages(courses: Sequence[Course]) -> str:
    """Each is of a worker: votes and sums in a step, reports in a second, and the connections of its first generation."""
    heads = (
        *("workers", "votes/step", "bytes", "parts of sums/step", "bytes", "reports/s", "bytes/s"),
        *("connections", "bytes of addresses"),
    )
    rows = []
    for each in courses:
        assert each.before is not None
        assert each.after is not None
        before, after, workers = each.before.messages, each.after.messages, each.workers
        steps, seconds = max(1, each.after.steps - each.before.steps), each.after.at - each.before.at
        row: list[Any] = [workers]
        for kind, times in (("vote", steps), ("sum", steps), ("report", seconds)):
            number, size = ((after[kind][place] - before[kind][place]) / times / workers for place in (0, 1))
            row += [number, size]
        rows.append((*row, *(count / workers for count in before["connection"])))
    return _table(heads, rows)


def _losses(courses: Sequence[Course]) -> str:
    heads = (
        *(
            "workers",
            "loss of one, recovery s",
            "until two steps s",
            "loss of a tenth, recovery s",
            "until two steps s",
        ),
        "join s",
    )
    rows = []
    for each in courses:
        assert each.lost_one is not None
        one, tenth = each.lost_one, each.lost_tenth
        of_tenth = (None, None) if tenth is None else (tenth.recovery, tenth.went_on)
        rows.append((each.workers, one.recovery, one.went_on, *of_tenth, one.joined))
    return _table(heads, rows)


def _memories(courses: Sequence[Course]) -> str:
    heads = ("workers", "driver PSS MB", "a worker PSS MB", "its own pages MB", "a checkpoint kB")
    return _table(
        heads,
        [(each.workers, each.driver_pss, each.worker_pss, each.worker_own, each.checkpoint / 1000) for each in courses],
    )


def draw(courses: Sequence[Course], path: Path) -> None:
    """Seconds of a launch and of losses, and processor time of a launch and of each second, by the number of workers."""
    workers = [each.workers for each in courses]
    launches = [each.launch for each in courses if each.launch is not None]
    between = [(each.before, each.after) for each in courses if each.before is not None and each.after is not None]
    lost = [each.lost_one for each in courses if each.lost_one is not None]

    def a_second(number: Callable[[int], int], *kinds: str) -> list[float]:
        return [
            (after.of(*kinds) - before.of(*kinds)) / (after.at - before.at) / number(count)
            for count, (before, after) in zip(workers, between, strict=True)
        ]

    panels: dict[str, dict[str, Sequence[float]]] = {
        "seconds": {
            "command to first step": [each.first_step for each in courses],
            "loss of one, recovery": [each.recovery for each in lost],
            "join": [each.joined for each in lost],
        },
        "processor seconds of a launch": {
            "driver": [each.of("driver") for each in launches],
            "Ray": [each.of(*RAY) for each in launches],
            "fork server": [each.of("fork server") for each in launches],
            "a worker": [each.of("worker") / count for count, each in zip(workers, launches, strict=True)],
        },
        "processor seconds in each second": {
            "driver": a_second(lambda _: 1, "driver"),
            "Ray": a_second(lambda _: 1, *RAY),
            "a worker": a_second(lambda count: count, "worker"),
        },
    }
    with pages.picture(path, len(panels), 3.2) as axes:
        for axis, (title, curves) in zip(axes, panels.items(), strict=True):
            for label, values in curves.items():
                axis.loglog(workers, values, marker="o", markersize=3, label=label)
            axis.set_xticks(workers, [str(count) for count in workers])
            axis.minorticks_off()
            axis.set_xlabel("workers")
            axis.set_title(title, fontsize=9)
            axis.legend(fontsize=7)
        axes[0].set_ylabel("s")
