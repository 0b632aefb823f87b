"""`environment=rebuild`: the recorded packages and interpreter in a virtual environment of their own, for `rerun=`.

Packages of an index are installed once and kept in `.orchestrator/environments/`, named by the hash of what they are. Code
from the repository of the run, and this package itself, is put above them for each repetition. The installed packages are
compared with the record before anything runs among them. pip is called here and nowhere else.

If the environment was one of conda, its packages, the interpreter among them, are made anew first, by micromamba from the
explicit list of the record. The packages of pip come above them. They are kept in a folder of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.common import locks, temporary
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.terminal import child_process, signals
from orchestrator.driver.terminal.progress import ProgressDisplay, duration
from orchestrator.errors import ConfigurationError, Interrupted, NotRerunnable, OrchestratorError, UsageError, few
from orchestrator.provenance.code import checkout
from orchestrator.provenance.code.checkout import Restored
from orchestrator.provenance.environment import conda, interpreters, layers, lock, own_wheel, packages
from orchestrator.provenance.environment.lock import Lock

FOLDER = "environments"
_MLFLOW = "mlflow"
_SHOWN_LINES = 12
_NAMED = 8


@dataclass(frozen=True)
class Rebuilt:
    """An environment made from a record."""

    lock: Lock  # what the record says of packages
    interpreter: interpreters.Interpreter  # Python that runs in it
    kept: Path  # folder with the packages of an index
    pylock: str  # text of the lock file that names the files which they came from
    as_recorded: bool  # whether all of them are the recorded builds
    wheels: Sequence[Path]  # folders where pip looks besides its index
    of_conda: Path | None = None  # environment of conda below it; None where there is none

    def above(self, restored: Restored) -> Path:
        """The place of the thin environment for code that was restored: beside it, and gone with it."""
        return restored.root.with_name("environment")

    def build_above(self, restored: Restored) -> None:
        """Make it, before there are data in the restored tree. Raises NotRerunnable and Interrupted."""
        place = self.above(restored)
        layers.create(place, self.interpreter)
        layers.put_above(place, self.kept)
        arguments = [self._own(restored, place)]
        for each in self.lock.local:
            arguments += [*(["--editable"] if each.editable else []), str(restored.root / each.path)]
        _pip(place, arguments, self.wheels)
        checkout.tidy(restored)
        if self.lock.own.sha256 not in (None, layers.own_sha256(place)):
            raise self._no_own()

    @property
    def has_this_mlflow(self) -> bool:
        """Whether its MLflow is of the version that runs here, so that both can open one database."""
        recorded = {each.version for each in self.lock.pinned if each.name == _MLFLOW}
        return recorded == {version for name, version in packages.installed()[0].items() if name == _MLFLOW}

    def python(self, restored: Restored) -> str:
        return layers.python_of(self.above(restored))

    def variables(self, environment: Mapping[str, str], restored: Restored) -> dict[str, str]:
        """The variables of a process in there."""
        below = [] if self.of_conda is None else [self.of_conda]
        return layers.variables(environment, [self.above(restored), self.kept, *below])

    def _own(self, restored: Restored, place: Path) -> str:
        """How pip gets this package as it was: made of what runs here where that is the same source, from a folder of wheels,
        out of the restored code, else as it was released. Raises NotRerunnable."""
        own = self.lock.own
        if own.sha256 == packages.own_sha256():
            return str(own_wheel.write(place, own.version))
        made = [wheel for folder in self.wheels if (wheel := folder / own_wheel.name_of(own.version)).is_file()]
        if made:
            return str(made[0])
        if own.path is not None:
            return str(restored.root / own.path)
        if own.indexed and own.version is not None:
            return f"{lock.OWN}=={own.version}"
        raise self._no_own()

    def _no_own(self) -> NotRerunnable:
        own = self.lock.own
        return NotRerunnable(
            f"the environment cannot be rebuilt: the orchestrator of the run ({own.version or 'not installed'}, its source has "
            f"sha256 {str(own.sha256)[:12]}) is neither the one that runs here, nor in the record, nor a released one",
            f"run this with that orchestrator, or put a wheel of it ({own_wheel.name_of(own.version)}) into wheels=FOLDER",
            code="environment.orchestrator",
        )


def rebuild(original: Recorded, folder: Path, wheels: Sequence[Path], display: ProgressDisplay) -> Rebuilt:
    """Build the environment of a run, or take the one that was kept. folder: `.orchestrator`; wheels: folders of wheels.

    Raises ConfigurationError, NotRerunnable for what cannot be had, and Interrupted."""
    file = original.files.pylock
    recorded = lock.of(original.environments, file.read_text(encoding="utf-8") if file.exists() else None)
    below = _of_conda(recorded, folder / FOLDER, display) if recorded.of_conda else None
    found = interpreters.here(recorded.python) if below is None else interpreters.at(layers.python_of(below))
    interpreter = interpreters.choose(recorded.python, recorded.implementation, found)
    if interpreter.version != recorded.python:
        display.say(f"note: {interpreter.path} is another build of Python {interpreter.release}: {interpreter.version}")
    kept = folder / FOLDER / recorded.key(interpreter.version)[:16]
    with _alone(kept, display):
        built = layers.built_in(kept)
        if built is None:
            built = _build(recorded, interpreter, kept, below, wheels, display)
        else:
            display.say(f"the environment of run {original.past.run_id} is the one in {kept}")
    others = lock.other_builds(recorded, built.builds)
    if others:
        display.say(
            f"note: of {few(others, _NAMED)} there are other builds of the recorded versions here than the recorded ones"
        )
    return Rebuilt(recorded, interpreter, kept, built.pylock, not others, wheels, below)


def wheels_in(given: Path | None, *more: Path) -> list[Path]:
    """The folders of wheels: the one that was given, and those of others that there are. Raises UsageError."""
    if given is not None and not given.is_dir():
        raise UsageError(
            f"wheels={given}: there is no such folder",
            "name the folder in which the wheels are",
            code="environment.no-wheels",
        )
    return [*([] if given is None else [given.resolve()]), *(each for each in more if each.is_dir())]


def refuse_cluster(address: str | None) -> None:
    """Raises ConfigurationError."""
    if address is not None:
        raise ConfigurationError(
            [f"environment=rebuild makes an environment on this machine, and the run joins the cluster {address}"],
            "cluster.address=null repeats it on this machine",
            code="environment.joined-cluster",
        )


def _of_conda(recorded: Lock, folder: Path, display: ProgressDisplay) -> Path:
    """The environment of conda with exactly the recorded packages; the one that was kept, where there is one. Raises
    NotRerunnable and Interrupted."""
    place = folder / f"conda-{conda.sha256_of(recorded.of_conda)[:16]}"
    with _alone(place, display):
        if place.is_dir() and not conda.differing(recorded.of_conda, conda.installed(place)):
            display.say(f"the environment of conda is the one in {place}")
            return place
        shutil.rmtree(place, ignore_errors=True)
        display.say(f"making an environment of conda: {len(recorded.of_conda)} packages; this may take minutes")
        try:
            _make_of_conda(recorded.of_conda, place)
        except OrchestratorError:
            shutil.rmtree(place, ignore_errors=True)
            raise
    return place


def _make_of_conda(recorded: Sequence[conda.Package], place: Path) -> None:
    """It is there as a whole, or one of these is raised: NotRerunnable, Interrupted."""
    made = place.with_name(f"{place.name}.txt")
    made.write_text(conda.explicit(recorded), encoding="utf-8")
    tool = conda.command(place, made)
    done = _child(tool, place.parent, os.environ)
    if done.code != 0:
        raise _refused(
            Path(tool[0]).name, done.out, "the channels are those of the list; a private one wants its login"
        )
    others = conda.differing(recorded, conda.installed(place))
    if others:
        raise NotRerunnable(
            f"the environment cannot be rebuilt: of {few(others, _NAMED)} other packages came than the recorded ones",
            "their files in the channel were replaced; look for the recorded ones elsewhere",
            code="environment.conda-packages",
        )


def _build(
    recorded: Lock,
    interpreter: interpreters.Interpreter,
    kept: Path,
    below: Path | None,
    wheels: Sequence[Path],
    display: ProgressDisplay,
) -> layers.Built:
    started = time.monotonic()
    display.say(f"building the environment: {len(recorded.pinned)} packages, {interpreter.path}; this may take minutes")
    layers.create(kept, interpreter)
    if below is not None:
        layers.put_above(kept, below)
    try:
        reports = _install(recorded, kept, wheels)
    except OrchestratorError:
        shutil.rmtree(kept)
        raise
    found, builds = layers.found_in(kept)
    seconds = time.monotonic() - started
    built = layers.Built(found, builds, lock.pylock(reports, interpreter.release), round(seconds, 1))
    layers.mark(kept, built)
    display.say(f"the environment is built in {duration(seconds)}: {kept}")
    return built


def _install(recorded: Lock, kept: Path, wheels: Sequence[Path]) -> list[dict[str, Any]]:
    """The packages that pip says it has installed."""
    reports = []
    with temporary.folder() as place:
        for number, text in enumerate(lock.requirements(recorded)):
            wanted, report = place / f"{number}.txt", place / f"{number}.json"
            wanted.write_text(text, encoding="utf-8")
            _pip(kept, ["--report", str(report), "--requirement", str(wanted)], wheels)
            reports.append(json.loads(report.read_text(encoding="utf-8")))
    wrong = list(layers.damaged(kept))
    if wrong:
        raise NotRerunnable(
            f"the environment cannot be rebuilt: {wrong[0]} and {len(wrong) - 1} more files are not what their wheels say",
            "clear pip's cache (python -m pip cache purge), and look at the folder of wheels",
            code="environment.wheel-files",
        )
    return reports


def _pip(environment: Path, arguments: Sequence[str], wheels: Sequence[Path]) -> None:
    """Raises NotRerunnable with what pip said, and Interrupted."""
    links = [argument for folder in wheels for argument in ("--find-links", str(folder))]
    command = layers.pip(environment, *links, *arguments)
    done = _child(command, environment, layers.variables(os.environ, [environment]))
    if done.code != 0:
        raise _refused(
            "pip",
            done.out,
            "wheels=FOLDER names a folder with wheels; the indexes are those of pip's own settings (python -m pip config list)",
        )


def _child(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> child_process.Done:
    """Raises Interrupted."""
    with signals.posted() as pending_signal:
        done = child_process.run(command, folder, variables, pending_signal, together=True)
        if pending_signal.signal is not None:
            raise Interrupted("the environment is not built: interrupted", code="environment.interrupted")
    return done


def _refused(who: str, out: str, remedy: str) -> NotRerunnable:
    """With what the program said."""
    said = [line for line in out.splitlines() if line.strip()]
    errors = [line for line in said if line.lstrip().startswith(("ERROR:", "error:"))] or said
    reasons = "".join(f"\n  {line}" for line in errors[-_SHOWN_LINES:])
    return NotRerunnable(
        f"the environment cannot be rebuilt; {who} says:{reasons}", remedy, code="environment.tool-refused"
    )


@contextmanager
def _alone(kept: Path, display: ProgressDisplay) -> Iterator[None]:
    """One process at a time builds an environment."""
    folder = kept.parent
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f"{folder.name}.lock")
    if locks.is_held(lock):
        display.say(f"another process is building an environment; waiting for {locks.holder(lock)}")
    with locks.held(lock):
        yield
