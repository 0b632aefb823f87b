"""The pipelines of Hugging Face models. Their arguments are plain values, so that a configuration can hold them."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from orchestrator.adapters.adapted import Course, Told
from orchestrator.adapters.transformers import batch_facts, collating, data, measuring, models
from orchestrator.adapters.transformers import training as trainers
from orchestrator.adapters.transformers.arguments import OF_THE_LOSS, Training
from orchestrator.adapters.transformers.library import own, package
from orchestrator.errors import ConfigurationError, PipelineRaised

_IGNORED = -100  # the label of what counts nothing
_LABELS = "labels"
_SHIFTED = "prepare_decoder_input_ids_from_labels"  # a method of models whose decoder is given the labels before


class Model(Told):
    """A model of transformers with its data and collator, and the loss that it computes itself. Optimizer and schedule are
    those of the configuration."""

    _others: Sequence[str] = ()  # the splits of the data, where none of them is evaluated

    def __init__(
        self,
        model: Any,  # a folder with weights, or {class, folder | config, options}
        data: Any,  # a folder of `datasets`, a file, module:function, or {train, validation} of folders and files
        tokenizer: str | None = None,  # a folder
        collator: Any = None,  # a name, {name, ARGUMENT...} or module:function; None: as Trainer chooses
        metrics: str | None = None,  # module:function, as Trainer's compute_metrics
        peft: Any = None,  # the configuration of an adapter: a mapping, a folder or a file
        training: Mapping[str, Any] | None = None,  # the arguments of `Training`
    ) -> None:
        self._given = Training.of(training)
        self._require(training or {})
        self._wanted, self._data, self._peft = models.DescribedModel(model), data, peft
        self.tokenizer = collating.tokenizer_of(tokenizer)
        self._collator = collating.collator_of(collator, self.tokenizer)
        self._compute_metrics: Callable[[Any], Mapping[str, float]] | None = None
        if metrics is not None:
            self._compute_metrics = own("metrics", metrics)
        kind = self._wanted.concrete()
        find_labels = package("transformers.utils").find_labels
        self._label_names = tuple(self._given.label_names or find_labels(kind) or (_LABELS,))
        self._taken = collating.taken_by(kind, self._label_names) if self._given.remove_unused_columns else None

    def _require(self, training: Mapping[str, Any]) -> None:
        """Raises ConfigurationError for what the configuration says."""
        if strange := [name for name in training if name not in OF_THE_LOSS]:
            raise ConfigurationError(
                [
                    f"pipeline.args.training: Model has the optimizer of the configuration, and is told {', '.join(strange)}"
                ],
                "take the target orchestrator.adapters.transformers:Trainable, or the sections optimizer and schedule",
                code="transformers.model-optimizer",
            )

    def model(self) -> torch.nn.Module:
        made = self._wanted.make()
        made.config.use_cache = False
        if self._peft is not None:
            made = models.with_adapter(made, self._peft)
            if self._is_merged(made):
                models.require_merge(made)
        if self._given.gradient_checkpointing:
            made.activation_checkpointing_enable({"use_reentrant": False})
            if self._peft is not None:
                made.enable_input_require_grads()
        found: torch.nn.Module = made
        return found

    def datasets(self) -> tuple[Any, Any]:
        train, validation, self._others = data.load(self._data)
        self._samples = operator.length_hint(train)  # 0: it has no length, as a Stream
        return train, validation

    def begin(self, course: Course) -> list[str]:  # noqa: ARG002
        if not self._others:
            return []
        source = self._data.get("from") if isinstance(self._data, Mapping) else self._data
        return [
            f"the data have no split 'validation', so nothing is evaluated; they have {', '.join(self._others)}: name one, as "
            f"pipeline.args.data: {{from: {source}, validation: {self._others[0]}}}"
        ]

    def collate(self, items: Sequence[Any]) -> Any:
        batch = collating.batch_of(items, self._collator, self._taken)
        # A class that has one of these itself gives the model the batch as it finds it.
        is_own = any(getattr(type(self), name) is not getattr(Model, name) for name in ("loss", "metrics", "example"))
        return batch if is_own or not isinstance(batch, Mapping) else batch_facts.noted(batch)

    def example(self, batch: Any) -> Any:
        """Without the labels of the model's class, such as the places where answers to questions begin and end."""
        found = super().example(batch_facts.plain(batch))
        known = self._label_names if isinstance(found, Mapping) else ()
        return {key: part for key, part in found.items() if key not in known} if known else found

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        """With the number of labels that count as its weight, where the loss is a mean over these."""
        inputs, inner = dict(batch), models.unwrapped(model)
        facts = batch_facts.of(inputs)
        counted = self._counted(inner, inputs)
        passed = counted / 1 if counted is not None and _takes_more(inner) else None
        smoothed = inputs.pop(_LABELS) if self._smooths(inner) and _LABELS in inputs else None
        if smoothed is not None and hasattr(inner, _SHIFTED) and "decoder_input_ids" not in inputs:
            # Without labels a decoder would be given what the encoder is, or nothing. Trainer leaves this to the collator.
            inputs["decoder_input_ids"] = getattr(inner, _SHIFTED)(smoothed)
        if passed is not None:
            inputs["num_items_in_batch"] = passed
        with facts.told():
            outputs = model(**inputs)
        if smoothed is not None:
            smoother = package("transformers.trainer_pt_utils").LabelSmoother(
                epsilon=self._given.label_smoothing_factor
            )
            loss = smoother(outputs, smoothed, shift_labels=_is_causal(inner), num_items_in_batch=passed)
        else:
            loss = _loss_in(outputs, batch, inner)
        return loss if counted is None or batch[_LABELS].is_floating_point() else (loss, counted)

    def _smooths(self, model: Any) -> bool:
        """Whether labels are smoothed. As in Trainer several labels of one row never are."""
        several = getattr(model.config, "problem_type", None) == "multi_label_classification"
        return bool(self._given.label_smoothing_factor) and not several

    def _counted(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """How many labels count, as Trainer finds it; None where there are none of the usual name."""
        given = batch.get("shift_labels", batch.get(_LABELS))
        if given is None or not hasattr(given, "ne"):
            return None
        shifts = "shift_labels" not in batch and _shifts(model)
        return (given[..., 1:] if shifts else given).ne(_IGNORED).sum()

    def save(self, model: torch.nn.Module, to: Path) -> None:
        """A folder for `from_pretrained`. An adapter is written alone, and names the folder of its model. A model whose weights
        were drawn, or changed by chance, is written with the adapter merged into it."""
        written: Any = model
        if self._peft is not None and self._is_merged(written):
            written = models.merged(written)
        written.save_pretrained(to)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(to)

    def _is_merged(self, model: Any) -> bool:
        """Whether the model is written with its adapter in it."""
        return self._wanted.folder is None or models.is_changed_by_chance(model)

    def metrics(self, model: torch.nn.Module, batch: Any) -> Mapping[str, torch.Tensor]:
        if self._compute_metrics is None:
            return {}
        inputs = dict(batch)
        with batch_facts.of(inputs).told():
            outputs = model(**inputs)
        values = outputs.items() if isinstance(outputs, dict) else enumerate(outputs)
        found = tuple(value for key, value in values if key not in ("loss", 0) and hasattr(value, "detach"))
        labels = tuple(batch[name] for name in self._label_names if name in batch)
        return measuring.measured(
            self._compute_metrics, found[0] if len(found) == 1 else found, labels[0] if len(labels) == 1 else labels
        )


class Trainable(Model):
    """The same with the optimizer and the schedule of transformers' Trainer, by the names of its TrainingArguments: no decay
    for biases and norms, and learning rates from its own functions."""

    _steps: int | None = None  # of the run; None outside of one

    def _require(self, training: Mapping[str, Any]) -> None:  # noqa: ARG002
        trainers.require_optimizer(self._given.optim)
        trainers.require_schedule(self._given.lr_scheduler_type)
        self._given.require_length()

    def begin(self, course: Course) -> list[str]:
        self._steps = course.steps
        return super().begin(course)

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return trainers.optimizer(model, self._given)

    def rate(self, step: int) -> float:
        return float(self._factors(step))

    @functools.cached_property
    def _factors(self) -> Callable[[int], float]:
        given = self._given
        return trainers.factors(given, given.max_steps or self._steps or given.steps(self._samples))


def _loss_in(outputs: Any, batch: Mapping[str, Any], model: Any) -> Any:
    """The loss among what a model returns. Raises PipelineRaised where there is none."""
    if not isinstance(outputs, dict):
        return outputs[0]
    if "loss" not in outputs:
        raise PipelineRaised(
            f"{type(model).__name__} returns {', '.join(outputs)} for {', '.join(batch_facts.plain(batch))}, and no loss",
            "give each row its labels, in the data or by a collator, as DataCollatorForLanguageModeling does; the class is one "
            "with a loss, such as AutoModelForCausalLM",
            code="transformers.no-loss",
        )
    return outputs["loss"]


def _takes_more(model: Any) -> bool:
    """Whether it is told how many labels count, as Trainer finds that out."""
    if hasattr(model, "accepts_loss_kwargs"):
        return bool(model.accepts_loss_kwargs)
    parameters = inspect.signature(model.forward).parameters.values()
    return any(each.kind == inspect.Parameter.VAR_KEYWORD for each in parameters)


def _is_causal(model: Any) -> bool:
    """Whether Trainer compares each position with the next label where labels are smoothed. It finds that out by the name."""
    names = package("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return type(model).__name__ in names.values()


def _shifts(model: Any) -> bool:
    """Whether its loss compares each position with the next label."""
    loss = package("transformers.loss.loss_utils")
    found = loss.LOSS_MAPPING.get(getattr(model, "loss_type", None))
    return found is loss.ForCausalLMLoss and not getattr(model.config, "is_encoder_decoder", False)
