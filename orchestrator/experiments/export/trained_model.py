"""The trained model of a run alone, in the form of its own framework."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.driver.folders import project_folder
from orchestrator.driver.recording import unsent
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import UsageError
from orchestrator.experiments import trained
from orchestrator.experiments.export.exported import Exported, require_free


@dataclass(frozen=True)
class ExportedModel(Exported):
    """A trained model that was written in the form of its own framework."""

    def as_text(self) -> str:
        return f"the model of run {self.run_id} is in {self.to}"


def export(name: str, to: Path, uri: str | None, *, trusted: bool) -> ExportedModel:
    """By the pipeline as it was recorded. Raises UsageError, PipelineRaised, ConfigurationError and NotRerunnable."""
    require_free(to)
    folder = project_folder(Path.cwd())
    store = unsent.opened(uri, folder, name, for_stream().say)
    original = Recorded.find(store, folder, name)
    run_id = original.past.run_id
    model = trained.load(original, store, trusted=trusted)
    if not model.has_form:
        raise UsageError(
            f"the pipeline of run {run_id} has no save(), so its model has no form but that of {original.files.model}",
            "write save(self, model, to) in the pipeline, or load it by mlflow.pyfunc.load_model",
            code="export.no-form",
        )
    model.save(to)
    return ExportedModel(run_id, str(to))
