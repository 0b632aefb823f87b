"""One run repeated, as often as it takes, each time in a clean checkout of its code with its data.

A repetition is a run of its own, launched by the public command line in a disposable work tree, since the code may bring an
older `orchestrator` along. Its store, its files and its DVC cache are those of the folder where the command was typed
(rule F5); its tree is gone when it has ended, so a second repetition finds nothing that the first one left.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.driver.preflight import begin, initial
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.report import description
from orchestrator.driver.terminal import child_process, mlflow_ui, signals
from orchestrator.driver.terminal.progress import ProgressDisplay
from orchestrator.errors import Interrupted, NotRerunnable, OrchestratorError, RunFailed, ending, from_dict
from orchestrator.experiments.rerun.rebuild import Rebuilt
from orchestrator.provenance.code import checkout
from orchestrator.provenance.data import restoring
from orchestrator.provenance.data.versions import Input
from orchestrator.provenance.environment import node, region
from orchestrator.provenance.tracking import Store, is_server, store_errors
from orchestrator.records.input_audit import differing, settable

_EXIT = {"exact": 0, "audited": 0, "diverged": 3, "inputs-differ": 4, None: 1}


@dataclass(frozen=True)
class Repeater:
    """Repeats one run, each time in a clean checkout."""

    project: Path  # folder where the command was typed
    folder: Path  # its `.orchestrator`
    store: Store  # the MLflow store of original and repetitions
    original: Recorded  # the run to repeat
    overrides: Sequence[str]  # of the settings, those that leave the result as it is
    display: ProgressDisplay  # shows what goes on
    # path -> place of the data that came with the record; None of a record that did not travel
    carried: Mapping[str, Path] | None = None
    rebuilt: Rebuilt | None = None  # environment to repeat it in; None for the one that runs here
    made: Mapping[str, Path] = field(default_factory=dict)  # path -> place of the data that its stages made again
    # runs in the store that did not get all of the outcome, which was told
    unwritten: set[str] = field(default_factory=set)

    def repeat(self, tags: Mapping[str, str], last: int | None = None) -> dict[str, Any]:
        """A run in a clean checkout of its own, ended after step `last`; the object that it reports."""
        with self._restored() as restored:
            runs = restored.project / self.folder.name
            enough = child_process.never if last is None else Reached(runs, last, self.original.held.begin.step)
            what = f"conf={self.original.files.settings.resolve()}"
            report = self._launch(what, restored, enough)
            run_id = report["run_id"]
            if run_id is not None:
                if (runs / run_id).is_dir():
                    checkout.bring_home(runs / run_id, self.folder)
                self.tag({run_id: tags})
        return report

    def repeat_sweep(self, command: str, settings: Path, tags: Mapping[str, str]) -> dict[str, Any]:
        """A sweep or an ensemble (`command`) with all its trials, in a clean checkout of its own; the object that it reports.
        settings: its file."""
        with self._restored() as restored:
            report = self._launch(f"{command}={settings.resolve()}", restored, child_process.never)
            self._bring_all_home(restored)
            if report["sweep_id"] is not None:
                self.tag({report["sweep_id"]: tags})
        return report

    @contextmanager
    def _restored(self) -> Iterator[checkout.Restored]:
        """The code and the data of the original, as long as the block lasts."""
        with self.code() as restored:
            self.bring(restored, self.original.inputs)
            restoring.lend_listed(restored.project, self.original.inputs, self.project, restored.root)
            restoring.lend_storage(restored.project, self.project, restored.root)
            initial.lend(self.original.initial.digest, self.folder, restored.project)
            begin.lend(self.original.held.begin, self.folder, restored.project)
            self._tell_variables()
            yield restored

    @contextmanager
    def code(self) -> Iterator[checkout.Restored]:
        """The code of the original and the environment for it, as long as the block lasts."""
        original = self.original
        with checkout.disposable(
            original.files.bundle, self.folder / checkout.FOLDER, original.code.get("tree")
        ) as restored:
            self.display.say(f"the code of run {original.past.run_id} is restored: tree {restored.tree[:12]}")
            if self.rebuilt is not None:
                self.rebuilt.build_above(restored)
            yield restored

    def bring(self, restored: checkout.Restored, inputs: Sequence[Input]) -> None:
        """Recorded data into the restored tree. Raises NotRerunnable."""
        for item in self._restore_data(restored, inputs):
            self.display.say(f"  {item.path}: from the {item.source}")
            for note in item.notes:
                self.display.say(f"  note: {note}")

    def _declared(self) -> list[str]:
        """Overrides that bring the variables to workers on other nodes too."""
        names = list(self.original.input_audit.variables)
        return [f"environment.variables={json.dumps(names)}"] if names else []

    def _tell_variables(self) -> None:
        """Tell which variables that the user's code read are set otherwise here, and which are in no record."""
        set_again, other = differing(self.original.input_audit, os.environ)
        for sentence in set_again:
            self.display.say(f"  {sentence}")
        for sentence in other:
            self.display.say(f"  note: {sentence}")

    def environment(self, restored: checkout.Restored) -> tuple[str, dict[str, str]]:
        """The interpreter for the restored code, and the variables of its process."""
        python, variables = sys.executable, dict(os.environ)
        if self.rebuilt is not None:
            python, variables = self.rebuilt.python(restored), self.rebuilt.variables(variables, restored)
        return python, _variables(self.original, restored.root, variables)

    def _launch(self, what: str, restored: checkout.Restored, enough: Callable[[], bool]) -> dict[str, Any]:
        """Run it again as a command in the restored tree until it ends or there is enough of it; the object that it reports."""
        python, variables = self.environment(restored)
        with self._store() as uri:
            command = [
                *(python, "-m", "orchestrator", what),
                *self.overrides,
                *self._declared(),
                *("strict=false", f"tracking.uri={uri}", "output=json"),
            ]
            if uri != self.store.uri:
                variables |= mlflow_ui.without_proxy(variables)
            with signals.posted() as pending_signal:
                done = child_process.run(command, restored.project, variables, pending_signal, enough)
        try:
            return dict(json.loads(done.out.splitlines()[-1]))
        except (IndexError, ValueError):
            self._bring_all_home(restored)  # the checkpoints of one that was killed are there alone
            if pending_signal.signal is not None:  # it came before that process listened to signals
                raise Interrupted(
                    f"the repetition was interrupted: {pending_signal.signal}", code="rerun.interrupted"
                ) from None
            raise RunFailed(
                f"the repetition ended with code {done.code} and no report",
                "its output stands above",
                code="rerun.no-report",
            ) from None

    def _bring_all_home(self, restored: checkout.Restored) -> None:
        for files in (restored.project / self.folder.name).glob("*/"):
            if (files / "lock").exists():
                checkout.bring_home(files, self.folder)

    @contextmanager
    def _store(self) -> Iterator[str]:
        """The address of the store for the repetition: of a server, where its MLflow is not this one. Raises RunFailed."""
        rebuilt = self.rebuilt
        if rebuilt is None or rebuilt.has_this_mlflow or is_server(self.store.uri):
            yield self.store.uri
            return
        self.store.experiment(self.original.settings(self.overrides).run.experiment)  # with the place of its artifacts
        with mlflow_ui.served(self.store.uri) as address:
            yield address

    def _restore_data(self, restored: checkout.Restored, inputs: Sequence[Input]) -> list[restoring.Restored]:
        """If the record has travelled, the folder of the command need not know of the data: then the remotes that the
        restored code names are asked. Raises NotRerunnable."""
        places = {path: ("crate", place) for path, place in (self.carried or {}).items()}
        places |= {path: ("stages", place) for path, place in self.made.items()}
        try:
            return restoring.restore(restored.project, inputs, self.project, top=restored.root, places=places)
        except NotRerunnable:
            if self.carried is None:
                raise
            return restoring.restore(restored.project, inputs, restored.project, top=restored.root, places=places)

    def tag(self, tags: Mapping[str, Mapping[str, str]]) -> None:
        """run id -> its new tags."""
        for run_id, new in tags.items():
            with self._written(run_id):
                self.store.tag(run_id, new)

    def describe(self, sentences: Mapping[str, str]) -> None:
        """run id -> what the rerun has shown of it, for its description."""
        for run_id, sentence in sentences.items():
            with self._written(run_id):
                before = self.store.client.get_run(run_id).data.tags.get(description.TAG, "")
                self.store.tag(run_id, {description.TAG: description.reproduced(before, sentence)})

    def keep(self, places: Mapping[str, str], file: Path) -> None:
        """Log a file as an artifact: run id -> the folder of its artifacts."""
        for run_id, place in places.items():
            with self._written(run_id):
                self.store.client.log_artifact(run_id, str(file), place)

    @contextmanager
    def _written(self, run_id: str) -> Iterator[None]:
        """Inside the block, the rerun is noted at this run in the store. If that fails, such as at a run of others that may be
        read alone, it is told once, and the other run gets its part."""
        try:
            yield
        except Exception as error:  # MLflow's, requests': the verdict stands in the folder
            if run_id not in self.unwritten:
                self.unwritten.add(run_id)
                self.display.say(
                    f"warning: MLflow did not take all of the rerun's outcome for run {run_id}: {store_errors.reason(error)}"
                )


class Reached:
    """Whether the only run below `runs` has completed step `last`: its trace has a line per step, from `first` on."""

    def __init__(self, runs: Path, last: int, first: int = 0) -> None:
        self._runs = runs
        self._missing = last + 1 - first
        self._read = 0  # bytes

    def __call__(self) -> bool:
        for trace in self._runs.glob("*/trace.jsonl"):
            with trace.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            self._read += len(new)
            self._missing -= new.count(b"\n")
        return self._missing <= 0


def _variables(original: Recorded, root: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of the repetition: the variables that may change bits as they were, language and time zone, too; the
    snapshot before anything else on the search path."""
    first = next(iter(original.environments), {})
    place = region.as_recorded(first)
    recorded = {name: value for name, value in place.items() if value is not None}
    recorded |= first.get("bits", {}).get("variables", {})
    now = {name: value for name, value in inherited.items() if name not in {*node.variables(), *place}}
    path = [str(root / entry) for entry in original.code.get("search_path", [])]
    before = [now["PYTHONPATH"]] if now.get("PYTHONPATH") else []
    for name, value in settable(original.input_audit).items():
        now.pop(name, None)
        recorded = {**recorded, **({} if value is None else {name: value})}
    return {**now, **recorded, **({"PYTHONPATH": os.pathsep.join([*path, *before])} if path else {})}


def exit_code(error: OrchestratorError | None, verdict: str | None) -> int:
    return _EXIT[verdict] if error is None else error.exit_code


def failure(report: dict[str, Any]) -> OrchestratorError:
    error = report.get("error") or ending(RunFailed("it failed", code="rerun.failed"))["error"]
    if report["status"] == "killed":
        return Interrupted(f"the repetition was interrupted: {error['message']}", code="rerun.interrupted")
    return from_dict({**error, "details": ""})
