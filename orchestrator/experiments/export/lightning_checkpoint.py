"""The trained model of a run as a checkpoint of Lightning."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from orchestrator.adapters.lightning import checkpoints
from orchestrator.driver.folders import project_folder
from orchestrator.driver.recording import artifacts, trust, unsent
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.terminal.progress import for_stream
from orchestrator.errors import ConfigurationError, PipelineRaised, UsageError
from orchestrator.experiments.export.exported import Exported, require_free, writing


@dataclass(frozen=True)
class ExportedCheckpoint(Exported):
    """A trained model that was written as a checkpoint of Lightning. digest: of the model."""

    digest: str | None

    def as_text(self) -> str:
        return f"the model of run {self.run_id} is in {self.to}\n  load_from_checkpoint of its module reads it"


def export(name: str, to: Path, uri: str | None, *, trusted: bool) -> ExportedCheckpoint:
    """trusted: whether the code that makes its model may be somebody else's. Raises UsageError, ConfigurationError and
    NotRerunnable."""
    require_free(to)
    folder = project_folder(Path.cwd())
    store = unsent.opened(uri, folder, name, for_stream().say)
    original = Recorded.find(store, folder, name)
    run_id = original.past.run_id
    packages_there = original.environments[0].get("packages", {}) if original.environments else {}
    version = next((packages_there[each] for each in checkpoints.PACKAGES if each in packages_there), None)
    if version is None:
        raise UsageError(
            f"to={to}: Lightning was not among the packages of run {run_id}",
            f"its weights are {original.files.weights}, or leave the ending {checkpoints.ENDING} out for a crate",
            code="export.not-of-lightning",
        )
    trust.require_own(original.past, trusted, "its model", lambda: trust.examine(original, ()))
    file = artifacts.weights(store, original.past, original.files)
    source = original.held.pipeline
    weights = _whole(load_file(file), original.files.model)
    with writing(to, "make room, or name another place"):
        checkpoints.write(to, weights, source.args, original.past.steps or 0, version)
    return ExportedCheckpoint(run_id, str(to), original.past.best or original.past.digest)


def _whole(weights: dict[str, Tensor], place: Path) -> dict[str, Tensor]:
    """The weights under all of their names, of which tied tensors have several. If the project makes another model by now, as
    they were recorded: tied tensors once. place: of the logged model."""
    from orchestrator.worker.serving import served

    if not place.is_dir():
        return weights
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how it answers does not count here
            model = served.load(place).get_raw_model()
    except (PipelineRaised, ConfigurationError):
        return weights
    return {name: each for name, each in model.state_dict().items() if isinstance(each, Tensor)}
