"""True launches of the program for `benchmarks.gpu`, and what their records say."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, NamedTuple

from benchmarks.gpu.kept import Kept

REPOSITORY: Final = Path(__file__).resolve().parents[2]
WARM_UP: Final = 3  # steps that are not counted: the grid is fitted, graphs are captured, the device takes its memory
_SEVERAL: Final = 8  # steps of a sample
_AROUND: Final = ("evaluate", "checkpoint", "connect")  # what is not a step
_GRACE_S: Final = 8.0  # for a command that is asked to end
Windows = Sequence[Mapping[str, Any]]


class Place(NamedTuple):
    """The place at which a command is started."""

    before: tuple[str, ...] = ()  # what starts a process there, such as `ip netns exec <name>`
    variables: Mapping[str, str] = MappingProxyType({})  # of its environment, beside those of every command


HERE: Final = Place()


class RunFailed(Exception):
    """The message says of what. details: all that the command said."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class OutOfTime(RunFailed):
    """It was ended before it was done."""


@dataclass(frozen=True)
class Run:
    """outcome: the JSON object; windows: of times.jsonl."""

    outcome: Mapping[str, Any]
    windows: Windows

    @property
    def losses(self) -> list[float]:
        return losses(self.outcome["recoveries"])


def losses(recoveries: Iterable[Mapping[str, Any]]) -> list[float]:
    """Seconds from a worker's loss to the next step, of recoveries in an outcome or of events in a journal. Pure."""
    return [each["seconds"] for each in recoveries if each.get("kind") == "lost" and "seconds" in each]


def step_ms(windows: Windows, until: int | None = None) -> list[float]:
    """Milliseconds of a step of rank 0, over several steps each, without the warm-up, what lies between steps, and the last
    window, in which the run ends; unless it is the only one. until: steps after that one are not looked at. Pure. Raises
    RunFailed."""
    of_rank = [window for window in windows if window.get("rank") == 0]
    end = max((place for place, window in enumerate(of_rank, 1) if window["steps"] > 0), default=0)
    own = of_rank[:end]  # a window without the end of a step belongs to the steps around it
    whole = [window for window in own if until is None or window["first"] + window["steps"] <= until]
    found = [
        (window["wall"] - sum(window["seconds"].get(kind, 0.0) for kind in _AROUND), int(window["steps"]))
        for window in whole
        if window["first"] >= WARM_UP
    ]
    if not any(steps for _, steps in found):
        raise RunFailed(f"its record has no window of time after the first {WARM_UP} steps")
    before_end = found[:-1] if whole[-1] is own[-1] else found
    ended = before_end if any(steps for _, steps in before_end) else found
    return [1e3 * seconds / steps for seconds, steps in joined(ended)]


def joined(windows: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """(seconds, steps) of windows that follow each other, joined until each has several steps, the last with what is left. A
    step counts in the window in which it ends, so a window has one too few or too many: of three, that is a third. Pure."""
    found: list[tuple[float, int]] = []
    seconds, steps = 0.0, 0
    for more_seconds, more_steps in windows:
        seconds, steps = seconds + more_seconds, steps + more_steps
        if steps >= _SEVERAL:
            found.append((seconds, steps))
            seconds, steps = 0.0, 0
    if found:
        before = found.pop()
        seconds, steps = seconds + before[0], steps + before[1]
    return [*found, (seconds, steps)] if steps else []


def checkpoint_ms(windows: Windows, journal: Iterable[Mapping[str, Any]]) -> list[float]:
    """Milliseconds for which the steps of rank 0 wait for a checkpoint: a mean, without the last window, in which the run waits
    for its last checkpoint. Pure. Raises RunFailed."""
    own = [window for window in windows if window.get("rank") == 0][:-1]
    end = max((window["first"] + window["steps"] for window in own), default=0)
    saved = sum(event["event"] == "checkpoint_saved" and event["step"] < end for event in journal)
    if not saved:
        raise RunFailed("it saved no checkpoint between its steps")
    return [1e3 * sum(window["seconds"].get("checkpoint", 0.0) for window in own) / saved]


def bytes_per_parameter(journal: Iterable[Mapping[str, Any]]) -> list[float]:
    """Device memory beside activations, as workers count it; empty for a run without a card. Pure."""
    return [event["per_parameter"] for event in journal if event["event"] == "memory" and "per_parameter" in event]


def slower_ways(journal: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines of members on what a card could do faster, such as a pass that no graph holds. Each comes once. Pure."""
    return [*dict.fromkeys(event["why"] for event in journal if event["event"] == "device")]


def has_setting(section: str, name: str) -> bool:
    """Whether this version has `section.name`."""
    from orchestrator.config.settings.schema import Settings

    part = next(each for each in fields(Settings) if each.name == section)
    assert callable(part.default_factory)
    return hasattr(part.default_factory(), name)


def environment() -> dict[str, str]:
    """The environment of a command: with the packages on PYTHONPATH, since they may be nowhere else."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    return {**inherited, "PYTHONPATH": path, "DVC_NO_ANALYTICS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@contextmanager
def project(kept: Kept, name: str, failed: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """A folder of its own, in a repository of its own, for runs of the models of two files beside this one. kept: takes the
    records of its runs where the block or something else failed; name: under which they lie there."""
    with tempfile.TemporaryDirectory(prefix="gpu-", dir="/tmp", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        for module in ("models", "zoo"):
            shutil.copy2(Path(__file__).with_name(f"{module}.py"), folder / f"gpu_{module}.py")
        shutil.copytree(REPOSITORY / "pipelines", folder / "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / ".gitignore").write_text(".orchestrator/\n__pycache__/\n/*.yaml\n")
        if shutil.which("git"):  # without it, no run can be repeated
            who = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@benchmark.invalid"]
            for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "as it is"]):
                subprocess.run(["git", *who, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        try:
            yield folder
        except BaseException:
            kept.records(folder, name)
            raise
        if failed():
            kept.records(folder, name)


def launched(
    project: Path, settings: Mapping[str, Any], timeout_s: float, *, where: str = "run.yaml", place: Place = HERE
) -> Run:
    """A run by these settings to its end. Raises RunFailed."""
    (project / where).write_text(json.dumps(settings))
    outcome = said(project, timeout_s, f"conf={where}", place=place)
    folder = project / ".orchestrator" / str(outcome["run_id"])
    return Run(outcome, list(_lines(folder / "times.jsonl")))


def journal_of(project: Path, run: Run) -> Iterator[Mapping[str, Any]]:
    return _lines(project / ".orchestrator" / str(run.outcome["run_id"]) / "journal.jsonl")


def recorded(project: Path) -> tuple[Windows, list[Mapping[str, Any]]]:
    """(times.jsonl, journal.jsonl) of the newest run of a project, which may have been ended: it has recorded its steps all the
    same."""
    folders = [file.parent for file in project.glob(".orchestrator/*/journal.jsonl")]
    if not folders:
        return [], []
    newest = max(folders, key=lambda folder: folder.stat().st_mtime_ns)
    return list(_lines(newest / "times.jsonl")), list(_lines(newest / "journal.jsonl"))


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    yield from map(json.loads, path.read_text().splitlines() if path.exists() else [])


def said(project: Path, timeout_s: float, *command: str, place: Place = HERE) -> dict[str, Any]:
    """The JSON object that a command prints. Raises RunFailed where it fails, OutOfTime where it takes longer."""
    code, output, errors = executed(["-m", "orchestrator", *command, "output=json"], project, timeout_s, place)
    if code is None:
        raise OutOfTime(f"`{' '.join(command)}` was not done after {timeout_s:.0f} s", f"{output}\n{errors}")
    try:
        told: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        raise RunFailed(
            f"`{' '.join(command)}` exited with {code}: {errors.strip()[-600:]}", f"{output}\n{errors}"
        ) from None
    if code != 0:
        raise RunFailed(f"`{' '.join(command)}` exited with {code}: {_why(told)}", f"{output}\n{errors}")
    return told


def _why(told: Mapping[str, Any]) -> str:
    """From the JSON object of a command that failed, or of a repetition that is not exact."""
    error = told.get("error") or {}
    said = [each for each in (error.get("message"), error.get("remedy")) if each]
    return ("; ".join(said) or str(told.get("verdict") or told.get("status")))[:900]


def executed(
    arguments: Sequence[str], folder: Path, timeout_s: float, place: Place = HERE
) -> tuple[int | None, str, str]:
    """(exit code, output, errors) of Python with these arguments; the code is None where it was ended after that time."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:  # a pipe others may hold open
        process = subprocess.Popen(
            [*place.before, sys.executable, *arguments],
            cwd=folder,
            env={**environment(), **place.variables},
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout_s)
        finally:
            if process.returncode is None:
                _end(process)
        return code, _text(output), _text(errors)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """A launch is asked first, so that it ends its workers; then its whole group is killed."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def spread(samples: Sequence[float]) -> str:
    """Least and median."""
    return f"{number(min(samples))} / {number(statistics.median(samples))}"


def number(value: float) -> str:
    """Three digits, or all before the point, and no exponent: 0.0616, 84.2, 1,750."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - (len(str(int(abs(value)))) - 1)) if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"
