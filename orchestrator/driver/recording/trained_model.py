"""The model in the record of a run: the folder that MLflow gets, the name in its registry, the lines of the card.

No weights are held here. They lie in the run's folder, where a worker has written them. `initial` finds those that the run
began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.adapters.source import Source
from orchestrator.checkpoint.state import TrainingState
from orchestrator.config.settings import Settings
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.recording import model_folder
from orchestrator.driver.report import card
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.provenance.code import worktree
from orchestrator.provenance.tracking import Tracker, models
from orchestrator.records.redaction import Redactor

# The answers of a model that no worker could try, in the form of `worker.between_steps.serving_trial`.
UNTRIED: Mapping[str, Any] = {"rows": None, "why": "no worker could try it", "detail": None}


def answering(answers: Mapping[str, Any]) -> str:
    """How the model answers when it is served, and why not otherwise, in words."""
    detail = "" if answers["detail"] is None else f" ({answers['detail']})"
    if answers["rows"] is None:
        return f"a whole request at once: {answers['why']}{detail}"
    return "row by row" if answers["why"] is None else f"row by row, one at a time: {answers['why']}{detail}"


def when_served(answers: Mapping[str, Any]) -> str:
    """The same for whoever trains it."""
    return f"when it is served, the model answers {answering(answers)}"


@dataclass(frozen=True)
class MadeOf:
    """The parts that a model was made of. packages: name -> version, of the workers; work: None where the code was not
    recorded; modules: as in `code.json`; state: of its training, None where no checkpoint of the last step holds it."""

    packages: Mapping[str, str]
    work: worktree.WorkTree | None
    modules: Mapping[str, Mapping[str, Any]]
    state: TrainingState | None


class TrainedModel:
    """The model of one run. In its methods, parameters: their number; layers: the model in words, None before a worker told
    them; began: the state of other runs that it began with, in words; registered: the URI of its version."""

    def __init__(self, settings: Settings, files: RunFolder, redactor: Redactor) -> None:
        self._settings = settings
        self._files = files
        self._redactor = redactor
        self._folder: models.ModelFolder | None = None

    def keep(
        self, outcome: RunOutcome, parameters: int, layers: str | None, answers: Mapping[str, Any], made_of: MadeOf
    ) -> str | None:
        """Put the folder together as MLflow is to have it; what of that could not be done, or None."""
        source, model = self._settings.pipeline, outcome.model
        architecture = {
            **Source(source.target, self._arguments, source.data, self._data_arguments).as_dict(),
            "seed": self._settings.run.seed,
            "digest": model.digest,
            "parameters": parameters,
            "layers": self._words(layers),
            "arithmetic": self._settings.run.arithmetic,
            "answers": {**answers, "detail": self._words(answers["detail"])},
        }
        work, state = made_of.work, made_of.state
        code = {} if work is None else model_folder.code_of(work.root, work.tree, made_of.modules)
        try:
            model_folder.write(self._files.model, self._files.weights, architecture, made_of.packages, code, state)
        except OSError as error:
            return f"MLflow gets no model of this run: {error}"
        params = {"target": source.target, "parameters": str(parameters)}
        tags = {models.DIGEST: model.digest}
        self._folder = models.ModelFolder(self._files.model, model.step, params, tags, code=model_folder.CODE)
        if state is not None:
            return None
        return "the model is logged without the state of its training: there is no checkpoint of the last step"

    def log(self, tracker: Tracker) -> None:
        """Log the model in MLflow, if there is one, and register it where the settings say so. A registered model is sent at
        once, where MLflow answers, since the card names its version."""
        if self._folder is None:
            return
        tracker.model(self._folder, self._registration)
        if self._registration is not None and tracker.trouble is None:
            tracker.flush()

    def on_card(
        self,
        parameters: int | None,
        layers: str | None,
        answers: Mapping[str, Any],
        began: str | None,
        registered: str | None,
    ) -> card.Trained:
        settings, is_kept = self._settings, self._folder is not None
        begins = settings.initial
        return card.Trained(
            settings.pipeline.target,
            self._arguments,
            parameters,
            self._words(layers),
            model_folder.tensors_of(self._files.weights) if is_kept else {},
            registered,
            began if begins.name is None else f"{begins.name}, digest {begins.digest}",
            self._words(answering(answers)) if is_kept else None,
        )

    @property
    def _arguments(self) -> dict[str, Any]:
        """The arguments of the pipeline, without credentials."""
        return self._without_credentials("pipeline.args", self._settings.pipeline.args)

    @property
    def _data_arguments(self) -> dict[str, Any]:
        return self._without_credentials("pipeline.data_args", self._settings.pipeline.data_args)

    def _without_credentials(self, section: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._redactor.setting(f"{section}.{key}", value) for key, value in given.items()}

    def _words(self, layers: str | None) -> str | None:
        return None if layers is None else self._redactor.text(layers)

    @property
    def _registration(self) -> models.Registration | None:
        name = self._settings.tracking.register
        return None if name is None else models.Registration.parse(name)
