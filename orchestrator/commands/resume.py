"""`resume=RUN_ID [key=value ...]`: go on with a run from its last good checkpoint, in the same MLflow run.

What determines the result stays as it was; how the run is executed, such as the number of workers, may change. Steps that
were done after the checkpoint are computed again and compared with what the trace says of them: a free check.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.checkpoints.catalog import Catalog
from orchestrator.checkpoints.storage import open_storage
from orchestrator.driver import preflight, signals
from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.driver.job import Job, storage_of, terms
from orchestrator.driver.outcome import Outcome
from orchestrator.driver.progress import Progress, for_stream
from orchestrator.driver.record import reopen_record
from orchestrator.driver.recorded import Recorded
from orchestrator.driver.session import Beginning
from orchestrator.errors import CheckpointDamaged, UsageError
from orchestrator.records import lines
from orchestrator.settings import Settings
from orchestrator.tracking import Store


def resume(name: str, overrides: Sequence[str], uri: str | None) -> tuple[str, Outcome]:
    """The whole story; returns the run's id and what it came to. name: of the run, see `Store.find`; uri: of the MLflow store.

    Raises UsageError and ConfigurationError before anything is started; an error of the run itself is in the outcome.
    """
    project = Path.cwd()
    folder = project_folder(project)
    store = Store(uri, folder)
    past = store.find(name)
    if past.status == "FINISHED":
        raise UsageError(
            f"run {past.run_id} has finished", "there is nothing to go on with; launch another one with conf="
        )
    recorded = Recorded.of(store, folder, past)
    files = recorded.files
    files.lease()
    settings = recorded.settings(overrides)
    provenance = preflight.check(settings, project)
    display = for_stream()
    beginning = _beginning(settings, files, display)
    with signals.posted() as mailbox, ThreadPoolExecutor(1) as pool:
        opening = pool.submit(reopen_record, settings, store, files, provenance)
        return Job(settings, project, display, mailbox).complete(opening, beginning)


def _beginning(settings: Settings, files: RunFolder, display: Progress) -> Beginning:
    found = Catalog(open_storage(storage_of(settings, files)), settings.checkpoint.keep).latest()
    for reason in found.reasons:
        display.say(f"warning: {reason}")
    step = None if found.manifest is None else found.manifest.step
    display.say(
        "no checkpoint yet: from the beginning" if step is None else f"going on from the checkpoint of step {step}"
    )
    cut = lines.cut(files.trace, step or 0) if files.trace.exists() else []
    written = sum(1 for _ in lines.read(files.trace)) if files.trace.exists() else 0
    if written < (step or 0):
        raise CheckpointDamaged(
            f"the trace ends at step {written}, before the checkpoint of step {step}",
            f"restore {files.trace} from the artifacts of the run, or launch it again",
        )
    journal = list(lines.read(files.journal)) if files.journal.exists() else []
    generations = [event["number"] for event in journal if event["event"] == "generation_started"]
    # Spares and whoever was lost while it prepared belong to no generation, and an id is never given again (rule F9).
    members = [event[role] for event in journal for role in ("worker", "server") if role in event]
    return Beginning(
        terms(
            settings, checkpoint=step, generation=max(generations, default=-1) + 1, member=max(members, default=-1) + 1
        ),
        written,
        cut,
    )
