"""The optimizer and the learning rates of transformers' Trainer, from its own functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from orchestrator.adapters.transformers.arguments import Training
from orchestrator.adapters.transformers.library import package
from orchestrator.errors import ConfigurationError

# As `Trainer.get_decay_parameter_names` has them.
_NO_DECAY = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
# The name of Trainer -> the class of torch. A fused one is chosen by the run itself, on a GPU.
OPTIMIZERS = {
    "adamw_torch": "AdamW",
    "adamw_torch_fused": "AdamW",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "rmsprop": "RMSprop",
}
BY_METRIC = ("reduce_lr_on_plateau", "greedy")  # schedules that depend on more than the step


def optimizer(model: torch.nn.Module, given: Training) -> torch.optim.Optimizer:
    """As Trainer makes it: without decay for biases and norms."""
    names = frozenset(
        package("transformers.trainer_pt_utils").get_parameter_names(model, [torch.nn.LayerNorm], _NO_DECAY)
    )
    groups: dict[float, list[torch.nn.Parameter]] = {given.weight_decay: [], 0.0: []}
    for each, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[given.weight_decay if each in names else 0.0].append(parameter)
    kind: Any = getattr(torch.optim, OPTIMIZERS[given.optim])
    adam = {"betas": (given.adam_beta1, given.adam_beta2), "eps": given.adam_epsilon}
    parameters = [{"params": each, "weight_decay": weight} for weight, each in groups.items() if each]
    options = adam if kind is torch.optim.AdamW else {}
    made: torch.optim.Optimizer = kind(parameters, lr=given.learning_rate, **options)
    return made


def require_optimizer(name: str) -> None:
    """Raises ConfigurationError."""
    if name not in OPTIMIZERS:
        raise ConfigurationError(
            [f"pipeline.args.training.optim: {name!r} is not on offer; there are {', '.join(OPTIMIZERS)}"],
            "take one of these, or the target orchestrator.adapters.transformers:Model with a section optimizer",
            code="transformers.optim",
        )


def require_schedule(name: str) -> None:
    """Raises ConfigurationError."""
    known = [str(each.value) for each in package("transformers.trainer_utils").SchedulerType]
    if name in BY_METRIC or name not in known:
        why = "depends on a metric, not on the step alone" if name in BY_METRIC else "is no schedule of transformers"
        raise ConfigurationError(
            [f"pipeline.args.training.lr_scheduler_type: {name!r} {why}"],
            "take the target orchestrator.adapters.transformers:Model with schedule: {name: plateau, patience: 3}, or one of "
            + ", ".join(each for each in known if each not in BY_METRIC),
            code="transformers.lr-scheduler-type",
        )


def factors(given: Training, steps: int) -> Callable[[int], float]:
    """The factor on the learning rate at a step, of so many."""
    idle, warmup = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=given.learning_rate), given.warmup_steps
    made = package("transformers").get_scheduler(
        given.lr_scheduler_type,
        idle,
        num_warmup_steps=int(warmup) if warmup >= 1 else math.ceil(steps * warmup),
        num_training_steps=steps,
        scheduler_specific_kwargs=dict(given.lr_scheduler_kwargs),
    )
    found: Callable[[int], float] = made.lr_lambdas[0]
    return found
