"""The loss of a worker, on Ray Train and here: the same model, two workers each, SIGKILL from outside, turn by turn.

    python -m benchmarks.recovery [--rounds 2] [--losses 3] [--hidden 1024] [--every 5]

In each round Ray Train (TorchTrainer, DDP over gloo, a checkpoint every `--every` steps, FailureConfig) trains and loses
`--losses` workers. It does so once with its defaults and once with its health check as fast as it can be set (0.1 s); then a
run of ours does. Every process marks every completed step with the time (benchmarks/wide.py), the same way on all sides.
Measured from the SIGKILL to

    next step     the next completed step that does without the dead worker: of a new process; or of a survivor, the second
                  after the last that the dead one completed, since the first may have been under way (so it counts against us)
    progress      the first step that nobody had completed before
    joined        the first step of a new process
    step before   the median of the victim's last steps; with one worker left, a step of ours takes twice as long
    repeated      how many steps a process completes that were completed before, by itself or by one that is gone

It measures neither several hosts nor models whose state takes longer to hand over than Ray needs to start a process.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from benchmarks.trainer import WORKERS
from benchmarks.wide import ROWS

REPOSITORY = Path(__file__).resolve().parent.parent
QUIET_STEPS = 12  # of all workers between two losses
PATIENCE_S = 240.0
SIDES = ("Ray Train", "Ray Train, 0.1 s", "orchestrator")
Marks = dict[int, list[tuple[float, int]]]  # of each process: when, and how many steps were completed then
Begin = Callable[[Path, int, int, int], AbstractContextManager[subprocess.Popen[str]]]
T = TypeVar("T")


@dataclass(frozen=True)
class Loss:
    """Seconds from the SIGKILL; the steps that were done again; the seconds that a step took before."""

    next_step: float
    progress: float
    joined: float
    repeated: int
    step: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--losses", type=int, default=3, help="of a worker, in each round and on each side")
    parser.add_argument("--hidden", type=int, default=1024, help="width of the model; 1024: 3.1 million parameters")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    chosen = parser.parse_args(arguments)
    require_ray_train()
    found: dict[str, list[Loss]] = {side: [] for side in SIDES}
    for number in range(chosen.rounds):
        for side in SIDES:
            losses = lose(side, chosen.losses, chosen.hidden, chosen.every)
            found[side] += losses
            for loss in losses:
                print(f"round {number + 1}, {side}: {loss}", file=sys.stderr, flush=True)
    print(table(found))
    return 0


def require_ray_train() -> None:
    if importlib.util.find_spec("tensorboardX") is None:
        sys.exit("Ray Train needs tensorboardX, which is not there: make peers, and PYTHONPATH=.venv/peers")


def table(found: Mapping[str, Sequence[Loss]]) -> str:
    """Medians, and the range behind them."""
    ours = found[SIDES[-1]]
    heads = "".join(f"{head:>23}" for head in ("next step s", "progress s", "joined s", "step before s"))
    lines = [f"{'':18}{'losses':>7}{heads}{'repeated':>10}{'/ ours':>8}"]
    for side, losses in found.items():
        names = ("next_step", "progress", "joined", "step")
        columns = "".join(f"{_spread([getattr(loss, name) for loss in losses], 3):>23}" for name in names)
        repeated = _spread([loss.repeated for loss in losses], 0)
        ratio = _median(losses) / _median(ours)
        lines.append(f"{side:18}{len(losses):7}{columns}{repeated:>10}{ratio:8.1f}")
    return "\n".join(lines)


def _median(losses: Sequence[Loss]) -> float:
    return statistics.median(loss.next_step for loss in losses)


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def lose(side: str, losses: int, hidden: int, every: int) -> list[Loss]:
    """Train on this side, and kill that many workers one after the other."""
    with tempfile.TemporaryDirectory(prefix="rec-", dir="/tmp") as name:  # short, because Ray puts Unix sockets into it
        folder = Path(name)
        (folder / "marks").mkdir()
        begin = _ours if side == SIDES[-1] else _ray_train(fast=side == SIDES[1])
        with begin(folder, hidden, every, losses) as process:
            return [_lose_one(process, folder / "marks") for _ in range(losses)]


def first_step_of_ray_train(hidden: int) -> float:
    """Seconds from the command to the first completed step."""
    with tempfile.TemporaryDirectory(prefix="rec-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "marks").mkdir()
        began = time.monotonic()
        with _ray_train(fast=False)(folder, hidden, 1_000_000, 0) as process:
            return wait(process, lambda: _first(read(folder / "marks", process.pid))) - began


def _first(marks: Marks) -> float | None:
    return min((at for own in marks.values() for at, _ in own), default=None)


def _lose_one(process: subprocess.Popen[str], marks: Path) -> Loss:
    victim, others = wait(process, lambda: _victim(read(marks, process.pid)))
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    return wait(process, lambda: judge(read(marks, process.pid), killed, victim, others))


def _victim(marks: Marks) -> tuple[int, set[int]] | None:
    """The youngest of two living workers that have both done some steps since the younger one came; and all others so far."""
    living = sorted((pid for pid in marks if lives(pid)), key=lambda pid: marks[pid][0])
    if len(living) < 2 or min(len(marks[pid]) for pid in living) < QUIET_STEPS:
        return None
    return living[-1], set(marks) - {living[-1]}


def judge(marks: Marks, killed: float, victim: int, others: set[int]) -> Loss | None:
    """The consequences of a loss; None as long as not all of them are seen. others: processes that had come before it."""
    before = {pid: [step for at, step in marks[pid] if at <= killed] for pid in {victim, *others}}
    best = max(step for steps in before.values() for step in steps)
    after = sorted((at, step, pid) for pid, own in marks.items() for at, step in own if at > killed and pid != victim)
    last = max(before[victim])
    without = [at for at, step, pid in after if pid not in others or step >= last + 2]
    progress = [at for at, step, pid in after if step > best and (pid not in others or step >= last + 2)]
    new = [at for at, _, pid in after if pid not in others]
    if not (without and progress and new):
        return None
    again = {step for _, step, pid in after if step <= best and (pid not in others or step in before[pid])}
    step = statistics.median(b - a for (a, _), (b, _) in itertools.pairwise(marks[victim][-QUIET_STEPS:]))
    return Loss(without[0] - killed, progress[0] - killed, new[0] - killed, len(again), step)


def read(folder: Path, driver: int) -> Marks:
    """driver: a process whose marks do not count: a launch tries the optimizer by some steps of its own."""
    marks: Marks = {}
    for path in (each for each in folder.iterdir() if each.name != str(driver)):
        lines = path.read_text().split("\n")[:-1]  # the last one may be on its way
        if lines:
            marks[int(path.name)] = [(float(at), int(step)) for at, step in map(str.split, lines)]
    return marks


def lives(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


def wait(process: subprocess.Popen[str], look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while (seen := look()) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"it ended or stands still: {' '.join(map(str, process.args))}")  # type: ignore[arg-type]
        time.sleep(0.005)
    return seen


def _ray_train(*, fast: bool) -> Begin:
    @contextmanager
    def begin(folder: Path, hidden: int, every: int, losses: int) -> Iterator[subprocess.Popen[str]]:
        environment = {**_environment(), "RAY_AUTH_MODE": "disabled"}
        if fast:
            environment["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.1"
        command = ray_train({"folder": str(folder), "hidden": hidden, "every": every, "losses": losses})
        with _command(command, REPOSITORY, environment, folder) as process:
            yield process
            newest = max(step for own in read(folder / "marks", process.pid).values() for _, step in own)
            (folder / "stop.new").write_text(str(newest + 2 * QUIET_STEPS))
            (folder / "stop.new").rename(folder / "stop")

    return begin


def ray_train(told: Mapping[str, Any]) -> list[str]:
    """The command of `trainer.main`."""
    return [sys.executable, "-m", "benchmarks.trainer", json.dumps(told)]


@contextmanager
def _ours(folder: Path, hidden: int, every: int, losses: int) -> Iterator[subprocess.Popen[str]]:  # noqa: ARG001
    command = ours(folder, {"hidden": hidden, "marks": f"{folder}/marks"}, 1_000_000, every, {"workers": WORKERS})
    environment = {**_environment(), "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(folder)}
    with _command(command, folder, environment, folder) as process:
        yield process
        process.send_signal(signal.SIGTERM)


def ours(place: Path, told: Mapping[str, Any], steps: int, every: int, cluster: Mapping[str, Any]) -> list[str]:
    """The command of a launch in `place`, which becomes a project. told: to the pipeline. As many shards as workers, at
    most."""
    workers = cluster["workers"]
    shards = workers["max"] if isinstance(workers, Mapping) else workers
    settings = {
        "run": {"steps": steps, "seed": 1},
        "pipeline": {"target": "wide:Wide", "args": told},
        "data": {"shards": shards, "batch_size": ROWS * shards},
        "checkpoint": {"every": every},
        "cluster": cluster,
    }
    shutil.copy2(REPOSITORY / "benchmarks" / "wide.py", place)
    (place / "wide.yaml").write_text(json.dumps(settings))
    return [sys.executable, "-m", "orchestrator", "conf=wide.yaml"]


@contextmanager
def _command(
    command: Sequence[str], place: Path, environment: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[str]]:
    """Its output goes to a file; whoever yields has asked it to end before this waits for that."""
    with telling(folder / "output.txt") as output:
        process = subprocess.Popen(command, cwd=place, env=environment, stdout=output, stderr=output, text=True)
        try:
            yield process
            process.wait(PATIENCE_S)
        except BaseException:
            process.kill()
            raise


@contextmanager
def telling(path: Path) -> Iterator[TextIO]:
    """A file for output, whose end is shown where something goes wrong."""
    with path.open("w") as output:
        try:
            yield output
        except BaseException:
            print(path.read_text()[-4000:], file=sys.stderr)
            raise


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**inherited, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    sys.exit(main())
