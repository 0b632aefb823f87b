"""An ensemble as a folder, which holds no pickle:

    ensemble.json         pipeline, combination, form, digest: all that it takes to build it
    model.safetensors     the parameters and persistent buffers of all members, and their weights

To load it, the class of the pipeline has to be importable, as for a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from orchestrator.adapters import table
from orchestrator.adapters.source import Source
from orchestrator.common.registry import is_reference
from orchestrator.errors import UsageError
from orchestrator.numerics.digests import distinct_state, model_digest
from orchestrator.pipeline import Pipeline, naming, outside_of_runs
from orchestrator.worker.ensemble.combinations import COMBINATIONS
from orchestrator.worker.ensemble.model import EnsembleModel, Form
from orchestrator.worker.model import construction

DESCRIPTION, WEIGHTS = "ensemble.json", "model.safetensors"


@dataclass(frozen=True)
class Blueprint:
    """All that it takes to build an ensemble, beside its weights."""

    target: str  # the pipeline's class, by reference
    args: Mapping[str, Any]  # of the pipeline's constructor
    seeds: Sequence[int]  # of the members, in order
    combine: str  # the name of the combination
    options: Mapping[str, Any]  # of the combination
    output: Any  # the form's: "logits" or "values"
    classes: int  # the dimension in which the classes of logits lie
    data: str | None = None  # what gives an adapter its data; None where the pipeline does
    data_args: Mapping[str, Any] = field(default_factory=dict)  # of the constructor of `data`

    @property
    def source(self) -> Source:
        return Source(self.target, self.args, self.data, self.data_args)

    def build(self, pipeline: Pipeline | None = None) -> EnsembleModel:
        """With members as they are before training, in evaluation mode. Raises ConfigurationError, PipelineRaised."""
        number = len(self.seeds)
        own = pipeline
        if own is None:
            own = construction.make_pipeline(table.find(self.source), self.args, self.seeds[0])
        members = construction.with_data(
            own, self.seeds[0], lambda: [construction.make_model(own, seed) for seed in self.seeds]
        )
        with naming(f"building {self.combine}"):
            combination = COMBINATIONS[self.combine](number, **COMBINATIONS.resolve(self.combine, self.options))
        model = EnsembleModel(members, combination, Form(self.output, self.classes), [1.0 / number] * number)
        with naming("eval() of the model"):
            model.eval()
        return model


def save(model: EnsembleModel, blueprint: Blueprint, folder: Path) -> str:
    """Returns the digest of the whole."""
    from safetensors.torch import save_file

    digest = model_digest(model)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().contiguous().clone() for name, tensor in distinct_state(model).items()}
    save_file(state, str(folder / WEIGHTS))
    description = {**asdict(blueprint), "digest": digest}
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return digest


def load(folder: Path, combine: str | None = None, *, trusted: bool = False) -> EnsembleModel:
    """The ensemble of a folder, in evaluation mode. combine: the combination that the caller names, required where the folder
    names code and is not trusted. Raises UsageError where there is no ensemble, or it is damaged, or not combined so;
    ConfigurationError where its pipeline cannot be imported."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        digest = description.pop("digest")
        blueprint = Blueprint(**description)
        state = load_file(str(folder / WEIGHTS))
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise UsageError(
            f"{folder} holds no ensemble: {type(error).__name__}: {error}",
            "name the folder model/ of an ensemble, .orchestrator/ENSEMBLE_ID/model",
            code="ensemble.not-an-ensemble",
        ) from None
    if not trusted:
        _require_named(blueprint.combine, folder, combine)
    with outside_of_runs():
        model = blueprint.build()
    fill(model, state, str(folder))
    if model_digest(model) != digest:
        raise UsageError(
            f"{folder} is damaged: its digest is not {digest[:12]}",
            "fetch it from MLflow again",
            code="ensemble.damaged",
        )
    return model


def _require_named(found: str, folder: Path, combine: str | None) -> None:
    if combine is None and is_reference(found):
        raise UsageError(
            f"{folder} names code as the combination, {found!r}, which only the caller may do",
            f"if it is one of yours: load_ensemble({str(folder)!r}, combine={found!r})",
            code="ensemble.names-code",
        )
    if combine not in (None, found):
        raise UsageError(
            f"{folder} is combined by {found!r}, not by {combine!r}",
            "name that of the folder",
            code="ensemble.other-combination",
        )


def fill(model: torch.nn.Module, state: Mapping[str, torch.Tensor], where: str) -> None:
    """Raises UsageError for weights that are not this model's. Tied tensors are stored once."""
    own = distinct_state(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if shapes != found:
        name = next(name for name in sorted({*shapes, *found}) if shapes.get(name) != found.get(name))
        raise UsageError(
            f"{where} does not fit the pipeline: {name} is {found.get(name, 'missing')} there and "
            f"{shapes.get(name, 'missing')} in the model",
            "load it with the code and the arguments of the pipeline that it was trained with",
            code="ensemble.unfit",
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])
