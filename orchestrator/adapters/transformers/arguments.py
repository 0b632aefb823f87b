"""`pipeline.args.training`: those arguments of transformers' TrainingArguments that say how a model is trained, by their names.

Those that say how long, on how many rows and on what machine are settings of a run; `config.settings.training_arguments` says
which.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from orchestrator.errors import ConfigurationError, coded


@dataclass(frozen=True)
class Training:
    """Their names and, but for the fused optimizer, their defaults are those of transformers."""

    gradient_checkpointing: bool = False  # whether activations are computed anew in the backward pass
    label_smoothing_factor: float = 0.0  # 0: none
    label_names: Sequence[str] | None = None  # None: those that the model's class has
    remove_unused_columns: bool = True  # whether columns that the model does not take are left out
    optim: str = "adamw_torch"  # one of `training.OPTIMIZERS`
    learning_rate: float = 5e-5  # where the schedule has its factor 1
    weight_decay: float = 0.0  # of all parameters but biases and norms
    adam_beta1: float = 0.9  # of AdamW
    adam_beta2: float = 0.999  # of AdamW
    adam_epsilon: float = 1e-8  # of AdamW
    lr_scheduler_type: str = "linear"  # of transformers' get_scheduler
    lr_scheduler_kwargs: Mapping[str, Any] = field(default_factory=dict)  # its options
    warmup_steps: float = 0  # below 1: the part of all steps
    max_steps: int | None = None  # of the run, "${run.steps}"; None where it counts epochs
    num_train_epochs: int | None = None  # of the run, "${run.epochs}"
    batch_size: Any = None  # of the run, "${data.batch_size}": with epochs it tells how many steps there are

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Training:
        """Raises ConfigurationError with every problem."""
        values, known = dict(given or {}), {each.name: each for each in fields(cls)}
        problems = [_unknown(name, known) for name in values if name not in known]
        problems += [
            coded(
                "transformers.training-number",
                f"pipeline.args.training.{name}: expected a number, got {value!r}; leave quotation marks out",
            )
            for name, value in values.items()
            if name in known and isinstance(known[name].default, float) and not isinstance(value, int | float)
        ]
        if problems:
            raise ConfigurationError(problems)
        return cls(**{name: value for name, value in values.items() if value is not None})

    def require_length(self) -> None:
        """Raises ConfigurationError where it is not known how many steps the schedule has."""
        if self.max_steps is None and not (self.num_train_epochs and isinstance(self.batch_size, int)):
            raise ConfigurationError(
                ["pipeline.args.training: the schedule has to know how many steps the run has"],
                'add max_steps: "${run.steps}", num_train_epochs: "${run.epochs}" and batch_size: "${data.batch_size}"',
                code="transformers.length",
            )

    def steps(self, samples: int) -> int:
        """The steps of the run. samples: of the training set."""
        if self.max_steps is not None:
            return self.max_steps
        assert self.num_train_epochs is not None
        return self.num_train_epochs * -(-samples // int(self.batch_size))


OF_THE_LOSS = ("gradient_checkpointing", "label_smoothing_factor", "label_names", "remove_unused_columns")


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return coded(
        "transformers.training-key",
        f"pipeline.args.training: there is no {name!r} here"
        + (f"; did you mean {near[0]}?" if near else "")
        + "; what says how long, on what and where a run trains is in the sections run, data, gradient, evaluation",
    )
