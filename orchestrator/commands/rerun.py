"""`rerun=RUN_ID [key=value ...]`: repeat a run exactly in a clean checkout of its code, and prove it, or say where and why not.

Code comes from the snapshot, data from DVC's cache or remote, settings from the record; only how the run is executed may be
changed. The repetition is a run of its own, launched by the public command line in the disposable work tree, since the code
may bring an older `orchestrator` along. Its store, its files and its DVC cache are those of the folder where the command was
typed (rule F5). Of the differences it reports those that bear on exactness: what determines the result, then the outcome.
Execution settings, hosts and places may differ as they like; `compare=` shows them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.commands.compare import between
from orchestrator.driver import children, signals
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.driver.progress import Progress, for_stream
from orchestrator.driver.recorded import Recorded
from orchestrator.errors import Interrupted, OrchestratorError, RunFailed, from_dict
from orchestrator.provenance import code_restore, data_restore, environment
from orchestrator.records.verdict import Verdict, judge
from orchestrator.tracking import Store

_OWN = ("environment", "output", "tracking.uri")  # settings of this command, not of the repeated run
_SURROUNDINGS = ("environment", "package", "hardware")
EXIT = {"exact": 0, "diverged": 3, "inputs-differ": 4}


@dataclass(frozen=True)
class Rerun:
    """run_id: of the repetition, None where it came to none; rerun_of: the original, or what was given as its name where that
    names none; verdict: None without one."""

    run_id: str | None
    rerun_of: str
    verdict: Verdict | None
    differences: list[dict[str, Any]] = field(default_factory=list)
    error: OrchestratorError | None = None

    @property
    def exit_code(self) -> int:
        if self.error is not None or self.verdict is None:
            return self.error.exit_code if self.error is not None else 1
        return EXIT[self.verdict.word]

    def as_dict(self) -> dict[str, Any]:
        status = "finished" if self.error is None else "killed" if isinstance(self.error, Interrupted) else "failed"
        report: dict[str, Any] = {
            "run_id": self.run_id,
            "rerun_of": self.rerun_of,
            "status": status,
            "verdict": None if self.verdict is None else self.verdict.word,
            "first_divergence": None if self.verdict is None else self.verdict.first_divergence,
            "differences": self.differences,
        }
        if self.error is not None:
            error = self.error.as_dict()
            report["error"] = {key: error[key] for key in ("kind", "message", "remedy")}
        return report


def rerun(name: str, overrides: Sequence[str], uri: str | None, *, check_environment: bool) -> Rerun:
    """The whole story. check_environment: another environment leaves no run exact.

    Raises UsageError, ConfigurationError and NotRerunnable before anything is started.
    """
    project = Path.cwd()
    folder = project_folder(project)
    store = Store(uri, folder)
    original = Recorded.find(store, folder, name)
    original.require()
    passed = [override for override in overrides if override.partition("=")[0] not in _OWN]
    original.settings(passed)
    display = for_stream()
    with code_restore.disposable(original.files.bundle, folder / "worktrees") as restored:
        display.say(f"the code of run {original.past.run_id} is restored: tree {restored.tree[:12]}")
        for item in data_restore.restore(restored.project, original.inputs, project, top=restored.root):
            display.say(f"  {item.path}: from the {item.source}")
            for note in item.notes:
                display.say(f"  note: {note}")
        data_restore.lend_storage(restored.project, project, restored.root)
        report = _launch(original, restored, passed, store.uri)
        run_id = report["run_id"]
        if run_id is not None:
            _bring_home(restored.project / folder.name / run_id, folder)
            _tag(store, {run_id: {"rerun_of": original.past.run_id}}, display)
    if report["status"] != "finished":
        return Rerun(run_id, original.past.run_id, None, error=_error(report))
    return _judge(store, folder, original, run_id, display, check_environment=check_environment)


def _launch(original: Recorded, restored: code_restore.Restored, overrides: Sequence[str], uri: str) -> dict[str, Any]:
    """Run it again, as a command in the restored tree; the object that it reports."""
    command = [
        *(sys.executable, "-m", "orchestrator", f"conf={original.files.settings.resolve()}"),
        *overrides,
        *("strict=false", f"tracking.uri={uri}", "output=json"),
    ]
    with signals.posted() as mailbox:
        done = children.run(command, restored.project, _variables(original, restored.root), mailbox)
    try:
        return dict(json.loads(done.out.splitlines()[-1]))
    except (IndexError, ValueError):
        raise RunFailed(
            f"the repetition ended with code {done.code} and no report", "what it said stands above"
        ) from None


def _variables(original: Recorded, root: Path) -> dict[str, str]:
    """The environment of the repetition: the variables that may change bits as they were, the snapshot before anything else on
    the search path."""
    recorded = next(iter(original.environments), {}).get("bits", {}).get("variables", {})
    now = {name: value for name, value in os.environ.items() if name not in environment.variables()}
    path = [str(root / entry) for entry in original.code.get("search_path", [])]
    before = [now["PYTHONPATH"]] if now.get("PYTHONPATH") else []
    return {**now, **recorded, **({"PYTHONPATH": os.pathsep.join([*path, *before])} if path else {})}


def _bring_home(files: Path, folder: Path) -> None:
    """The files of the repetition, out of the disposable tree."""
    if files.is_dir():
        shutil.move(files, folder / files.name)


def _judge(
    store: Store, folder: Path, original: Recorded, run_id: str, display: Progress, *, check_environment: bool
) -> Rerun:
    repeated = Recorded(store.find(run_id), RunFolder(folder, run_id))
    found, _ = between(original, repeated)
    counted = [each for each in found.determining if check_environment or each.kind not in _SURROUNDINGS]
    verdict = judge(
        original.trace(),
        repeated.trace(),
        original.past.digest,
        repeated.past.digest,
        [f"{each.kind} {each.name}: {each.text}" for each in counted],
    )
    bearing = [each.as_dict() for each in found.differences if each.share != "execution"]
    result = Rerun(run_id, original.past.run_id, verdict, bearing)
    repeated.files.verdict.write_text(json.dumps({**result.as_dict(), "text": verdict.text}, indent=1) + "\n")
    first = original.past.run_id
    _tag(store, {run_id: {"verdict": verdict.word}, first: {"verdict": verdict.word, "verdict_by": run_id}}, display)
    _keep(store, {run_id: "run", first: f"reruns/{run_id}"}, repeated.files.verdict, display)
    return result


def _tag(store: Store, tags: Mapping[str, Mapping[str, str]], display: Progress) -> None:
    """run id -> its new tags."""
    try:
        for run_id, new in tags.items():
            store.tag(run_id, new)
    except Exception as error:  # MLflow's, requests': the verdict stands in the folder
        display.say(f"warning: MLflow did not take the tags of the rerun: {error}")


def _keep(store: Store, places: Mapping[str, str], file: Path, display: Progress) -> None:
    """Log a file as an artifact: run id -> the folder of its artifacts."""
    try:
        for run_id, place in places.items():
            store.client.log_artifact(run_id, str(file), place)
    except Exception as error:
        display.say(f"warning: MLflow did not take the verdict: {error}")


def _error(report: dict[str, Any]) -> OrchestratorError:
    error = report.get("error") or {"kind": "RunFailed", "message": "it failed", "remedy": ""}
    if report["status"] == "killed":
        return Interrupted(f"the repetition was interrupted: {error['message']}")
    return from_dict({**error, "details": ""})
