"""A recorded run: the files of its folder, fetched from MLflow's artifacts where they are not on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.comm.synchronization import build_mode
from orchestrator.common.registry import is_reference
from orchestrator.config.settings import InitialSettings, Settings, determining, flat, kept, shown
from orchestrator.driver import copies
from orchestrator.driver.folders import RunFolder, has_begun
from orchestrator.driver.preflight.private import COMMITMENT, commitment_in, of_record
from orchestrator.errors import ConfigurationError, NotRerunnable, UsageError, few
from orchestrator.optim.privacy.secret import Secret
from orchestrator.provenance.data.versions import Input, from_dict
from orchestrator.provenance.tracking import Past, Store, names
from orchestrator.records import barriers, bounded_json, lines
from orchestrator.records.comparison import LISTING, Run
from orchestrator.records.identity import same
from orchestrator.records.input_audit import InputAudit
from orchestrator.records.input_audit import from_dict as from_reads

_SHOWN = 3  # changed settings in a sentence
_FIRST = "train/loss"  # the metric of a run that has done a step
_RESULTS = ("train/", "validation/")  # metrics of the execution differ from run to run


@dataclass(frozen=True)
class Recorded:
    """A recorded run. past: what MLflow knows of it; files: of its folder here."""

    past: Past
    files: RunFolder

    @classmethod
    def find(cls, store: Store, folder: Path, name: str) -> Recorded:
        """The run of this name in the project whose `.orchestrator` is `folder`. Raises UsageError for a name that
        names no run, ConfigurationError."""
        past = store.find(name)
        if past.kind != "run":
            raise UsageError(
                f"{past.run_id} is not a run: {past.kind}",
                "name one of its runs; list them with: runs",
                code="record.not-a-run",
            )
        return cls.of(store, folder, past)

    @classmethod
    def named(cls, uri: str | None, folder: Path, name: str) -> Recorded:
        """As `find`, in the store that has it. uri: of that store, None for the project's. Raises also UsageError where nothing
        was recorded yet."""
        return cls.find(Store.with_run(uri, folder, name), folder, name)

    @classmethod
    def of(cls, store: Store, folder: Path, past: Past) -> Recorded:
        found = cls(past, RunFolder(folder, past.run_id))
        copies.bring(store, past, found.files, "run", [*found._needed.values()])
        return found

    def settings(self, overrides: Sequence[str] = ()) -> Settings:
        """The settings of the run, with overrides that do not change the result. Raises ConfigurationError for others, and
        for a credential that is not given again."""
        overrides = self.completed(overrides)
        again = kept.given_again(self.files.settings, overrides)
        settings = kept.as_recorded(self.files.settings, overrides)
        before, after = determining(kept.as_recorded(self.files.settings, again)), determining(settings)
        changed = sorted(key for key in {*before, *after} if not same(before.get(key), after.get(key)))
        if changed:
            raise ConfigurationError(
                [f"{key}: it determines the result, and here it has to stay as it was" for key in changed],
                "leave these out, or launch a new run with conf=",
                code="record.determines-result",
            )
        return settings

    def completed(self, overrides: Sequence[str]) -> list[str]:
        """The overrides, with those that name the variables from which credentials came. By them it may begin with a
        checkpoint of another run, but with no other state. Raises ConfigurationError."""
        overrides = [*kept.from_variables(self.files.settings, overrides), *overrides]
        if all(each.partition("=")[0] not in ("begin", "begin.name") for each in overrides):
            return list(overrides)
        digest = self.held.begin.digest
        if digest is None:
            raise ConfigurationError(
                ["begin: this run began with no state of another one"],
                "leave it out, or launch a new run with conf=",
                code="begin.not-begun",
            )
        return [*overrides, f"begin.digest={digest}"]

    @property
    def held(self) -> Settings:
        """The settings as far as the record has them."""
        return kept.as_held(self.files.settings)

    @property
    def initial(self) -> InitialSettings:
        """The model that the run began with; none where it has no name."""
        return self.held.initial

    def secret(self, overrides: Sequence[str] = ()) -> Secret | None:
        """The one that it began with; None of a run without noise. Raises NotRerunnable where it is not here, and
        ConfigurationError."""
        return of_record(self.settings(overrides), self.files, self.past.run_id)

    def require(self) -> None:
        """Raises NotRerunnable, naming everything that is missing for a rerun."""
        self._require_here(is_elsewhere=not self.files.settings.exists())
        missing = [f"{what} ({path.name})" for what, path in self._needed.items() if not path.exists()]
        if not missing:
            with self.readable():
                self._require_whole()
                self._require_own_settings()
        if missing:
            why = "" if self.files.bundle.exists() else self.code.get("unrecorded", "")
            git = (
                "" if why or self.files.bundle.exists() else " from a project in a git repository, on a disk with room"
            )
            raise NotRerunnable(
                f"the record of run {self.past.run_id} ({self.past.status}) is not complete: it lacks {', '.join(missing)}"
                + (f": {why}" if why else ""),
                f"launch it again{git}",
                code="record.incomplete",
            )

    def require_readable(self, *, takes_over: bool = False) -> None:
        """Raises NotRerunnable where a file that a run which goes on reads and writes is damaged, or there are no settings.
        takes_over: from a driver that nobody hears any more, whose process may live on this machine all the same."""
        files = self.files
        is_copy = files.fetched.exists() and self.past.is_driven_here and not takes_over
        self._require_here(is_elsewhere=not files.settings.exists() or is_copy)
        if not files.settings.exists():
            raise NotRerunnable(
                f"run {self.past.run_id} ({self.past.status}) ended before its settings were recorded, as on a full disk",
                "launch it again",
                code="record.no-settings",
            )
        self._require_own_settings()
        for file in (files.environment, files.code, files.data, files.input_audit, files.identity, files.privacy):
            _read(file)

    def _require_here(self, *, is_elsewhere: bool) -> None:
        """Raises NotRerunnable for a run that still runs somewhere else, and for one that has done steps, whose files MLflow
        has not got: the advice to launch it again may cost thousands of steps."""
        if is_elsewhere and self.past.status == "RUNNING" and not self.past.is_orphan:
            raise NotRerunnable(
                f"run {self.past.run_id} is still running, and its files are elsewhere, as those of a rerun",
                "wait for its end, or name another run",
                code="record.still-running",
            )
        if not self.files.settings.exists() and _FIRST in self.past.metrics:
            raise NotRerunnable(
                f"run {self.past.run_id} ({self.past.status}) has its files where it was launched: MLflow has not got them",
                "type the command there, in the folder of its project, or launch it again",
                code="record.elsewhere",
            )

    def _require_own_settings(self) -> None:
        """Raises NotRerunnable where somebody has changed what determines the result since the run began: its steps would seem
        to come of other settings than they do."""
        recorded, then = self.past.settings_sha256, self.past.settings
        if recorded is None or not then or hashlib.sha256(self.files.settings.read_bytes()).hexdigest() == recorded:
            return
        now = {key: names.parameter(value) for key, value in shown(self.held).items()}
        keys = sorted({*determining(self.held), *({*then} - {*now})})
        changed = [
            f"{key} was {then.get(key, 'not there')} and is {now.get(key, 'not there')}"
            for key in keys
            if now.get(key) != then.get(key)
        ]
        if changed:
            raise NotRerunnable(
                f"{self.files.settings} was changed after the run began: {few(changed, _SHOWN)}",
                "put that back; begin=RUN_ID@STEP begins a new run with other settings, at a checkpoint of this one",
                code="record.settings-changed",
            )

    def require_begun(self) -> None:
        """Raises NotRerunnable for a run that ended before its code was kept: nothing was computed, and whoever went on with it
        would have a run that cannot be repeated."""
        if not has_begun(self.files.path):
            raise NotRerunnable(
                f"run {self.past.run_id} ({self.past.status}) ended before its code was recorded, and before its first step",
                "launch it again",
                code="record.no-code",
            )

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Within, plain data of another form than a launch writes are a NotRerunnable: a record may be made by hand."""
        try:
            yield
        except (TypeError, AttributeError, KeyError, ValueError, RecursionError) as error:
            raise NotRerunnable(
                f"the record of run {self.past.run_id} has another form than that of a launch: {type(error).__name__}: {error}",
                "ask who made it for another one",
                code="record.form",
            ) from None

    def _require_whole(self) -> None:
        """Raises NotRerunnable for an incomplete record, with which no comparison can be called exact."""
        steps, found = self.past.steps or 0, self.held.begin.step + sum(1 for _ in self._steps())
        if self.past.status == "FINISHED" and found < steps:
            raise _damaged(self.files.trace, f"it has {found} of {steps} steps")
        reached = max((each["steps"] for each in self._rests()), default=-1) if self._is_asynchronous else steps
        if self.past.status == "FINISHED" and reached < steps:
            raise _damaged(self.files.barriers, f"it ends before step {steps}")
        if not self.environments:
            raise _damaged(self.files.environment, "it tells of no node")
        if "inputs" not in _read(self.files.data):
            raise _damaged(self.files.data, "it tells of no inputs")
        if not all(isinstance(part, Mapping) for node in self.environments for part in (node, node.get("bits", {}))):
            raise _damaged(self.files.environment, "its nodes are no nodes")
        self.inputs, self.input_audit, self.obstacles, self.evaluations()  # each is read whole

    @property
    def inputs(self) -> list[Input]:
        return [from_dict(item) for item in _read(self.files.data).get("inputs", [])]

    @property
    def code(self) -> Mapping[str, Any]:
        return _read(self.files.code)

    @property
    def input_audit(self) -> InputAudit:
        """The audit of what the user's code read, beside code and inputs; empty for older versions, which had none."""
        return from_reads(_read(self.files.input_audit))

    @property
    def obstacles(self) -> list[str]:
        """The obstacles to an exact rerun, as its launch said."""
        return [*self.code.get("obstacles", []), *_read(self.files.input_audit).get("obstacles", [])]

    @property
    def environments(self) -> list[Mapping[str, Any]]:
        """The recorded environments, one per node."""
        return list(_read(self.files.environment).get("nodes", {}).values())

    @property
    def profile(self) -> Mapping[str, Any] | None:
        """The profile of the training data; None if the run came to none, or was private."""
        found = _read(self.files.data).get("profile")
        return found if isinstance(found, dict) else None

    def trace(self) -> list[dict[str, Any]]:
        """The lines of the trace. Raises NotRerunnable for a damaged one."""
        return list(self._steps())

    def has_steps(self) -> bool:
        """Raises as `trace`."""
        return next(self._steps(), None) is not None

    def _steps(self) -> Iterator[dict[str, Any]]:
        """The same, one after the other."""
        try:
            for line in lines.written(self.files.trace):
                if not (isinstance(line, dict) and "step" in line):
                    raise _damaged(self.files.trace, "not every line is a step")
                yield line
        except ValueError as error:
            raise _damaged(self.files.trace, str(error)) from None

    def barriers(self) -> list[dict[str, Any]] | None:
        """The records of the sync barriers of an asynchronous run, as far as there are any; None of a run in lockstep. Raises
        NotRerunnable for damaged ones."""
        return list(self._rests()) if self._is_asynchronous else None

    def _rests(self) -> Iterator[dict[str, Any]]:
        """The same, one after the other."""
        try:
            yield from barriers.checked(lines.written(self.files.barriers))
        except ValueError as error:
            raise _damaged(self.files.barriers, str(error)) from None

    def evaluations(self) -> dict[int, Mapping[str, Any]]:
        """The metrics of each evaluation by the last step before it, those of one that was made again as they came out last.
        Raises NotRerunnable for a damaged journal."""
        if not self.files.journal.exists():
            return {}
        try:
            told = [each for each in lines.read(self.files.journal, b'"evaluated"') if each["event"] == "evaluated"]
            return {int(each["step"]): dict(each["metrics"]) for each in told}
        except (ValueError, TypeError, KeyError) as error:
            raise _damaged(self.files.journal, str(error)) from None

    @property
    def _is_asynchronous(self) -> bool:
        if not self.files.settings.exists():
            return False
        sync = self.held.sync
        if is_reference(sync.name):  # code of the run, which is not imported here
            return self.files.barriers.exists()
        return build_mode(sync.name, sync.options).execution != "lockstep"

    @property
    def is_private(self) -> bool:
        return self.files.settings.exists() and self.held.is_private

    @property
    def _needed(self) -> dict[str, Path]:
        """The files that a rerun needs, by what they are."""
        files = self.files
        return {
            "its settings": files.settings,
            "the snapshot of its code": files.bundle,
            "the versions of its data": files.data,
            "its environment": files.environment,
            "its trace": files.trace,
            **({"the commitment to its secret": files.privacy} if self.is_private else {}),
            **({"the order of its updates": files.barriers} if self._is_asynchronous else {}),
        }

    def as_run(self) -> Run:
        """The run as a value for comparisons; what the record does not hold is left out."""
        metrics = {name: value for name, value in self.past.metrics.items() if name.startswith(_RESULTS)}
        found: Run = {"digest": self.past.digest, "best": self.past.best, "metrics": metrics, "trace": _Trace(self)}
        if self.files.settings.exists():
            settings = self.held
            commitment = commitment_in(self.files)
            bound = {} if commitment is None else {COMMITMENT: commitment}
            found["settings"], found["determining"] = {**flat(settings), **bound}, [*determining(settings), *bound]
        barriers_read = self.barriers()
        if barriers_read is not None:
            found["rests"] = barriers_read
        recorded = _read(self.files.data)
        listing = recorded.get("listing")
        found["inputs"] = recorded.get("inputs", []) + [{"path": LISTING, "md5": listing}] * (listing is not None)
        if self.files.journal.exists():
            found["evaluations"] = self.evaluations()
        if recorded.get("profile"):
            found["profiles"] = {"training": recorded["profile"]}
        found["environments"] = self.environments
        found["reads"] = self.input_audit.identity()
        found["code_tree"] = self.code.get("tree")
        found["modules"] = self.code.get("modules", {})
        parts = _read(self.files.identity).get("parts", {})
        found["initial_parameters"] = parts.get("initial_parameters")
        return found


@dataclass(frozen=True)
class _Trace:
    """The trace of a run, read anew each time: of a long run it is too much to be held. Raises NotRerunnable for a damaged one,
    when it gets there."""

    recorded: Recorded

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.recorded._steps()


def _read(path: Path) -> dict[str, Any]:
    """Raises NotRerunnable for a damaged file."""
    if not path.exists():
        return {}
    try:
        found = bounded_json.read(path)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(found, dict):
        raise _damaged(path, "it is no JSON object")
    return found


def _damaged(path: Path, why: str) -> NotRerunnable:
    return NotRerunnable(
        f"{path} is damaged: {why}", "remove it, and it is taken from the run's artifacts again", code="record.damaged"
    )
