"""What goes with shards that train by themselves in rounds, and what does not: each refusal with its remedy."""

from __future__ import annotations

from orchestrator.settings.rules.rule import Rule, two_lengths
from orchestrator.values import Span, Steps

_LOCAL = ("local.steps", "local.epochs")


def _local_length_is_given_once(steps: int | None, epochs: int | None) -> str | None:
    if steps is None or epochs is None:
        return None
    return two_lengths("local")


def _local_steps_have_an_optimizer(name: str | None, steps: int | None, epochs: int | None) -> str | None:
    if (name is None) == (steps is None and epochs is None):
        return None
    if name is None:
        return "local.optimizer: required by local steps; for example local.optimizer={name: sgd, lr: 0.05}"
    return f"local.optimizer: {name} has nothing to do without local.steps or local.epochs; set one of them, or leave it out"


def _proximity_needs_local_steps(mu: float, steps: int | None, epochs: int | None) -> str | None:
    return None if mu == 0 else _needs_local_steps("local.proximal_mu", steps, epochs)


def _local_clip_needs_local_steps(clip: float | None, steps: int | None, epochs: int | None) -> str | None:
    return None if clip is None else _needs_local_steps("local.clip", steps, epochs)


def _needs_local_steps(key: str, steps: int | None, epochs: int | None) -> str | None:
    if steps is not None or epochs is not None:
        return None
    return f"{key}: it counts for local steps only; set local.steps or local.epochs, or leave it out"


def _local_epochs_need_parts(epochs: int | None, partition: str) -> str | None:
    if epochs is None or partition != "shared":
        return None
    return (
        "local.epochs: without data.partition a shard has no samples of its own to go through; set local.steps, or "
        "data.partition"
    )


def _unfit_for_local_steps(
    steps: int | None,
    epochs: int | None,
    reduction: str,
    clip: float | None,
    batch_size: Steps,
    contribution: str,
    run_epochs: int | None,
) -> str | None:
    if steps is None and epochs is None:
        return None
    if reduction == "fast":
        return "reduction: with local steps changes of parameters are added exactly; set reduction=exact"
    if clip is not None:
        return f"gradient.clip: with local steps there is no gradient of a step; set local.clip={clip:g} instead"
    if not batch_size.is_constant:
        return (
            f"data.batch_size: with local steps it cannot change with the step; set data.batch_size={batch_size.least}"
        )
    if contribution != "gradient":
        return (
            f"contribution: with local steps a shard contributes no gradient for {contribution}; leave contribution out"
        )
    if run_epochs is not None:
        return "run.epochs: with local steps a step of the run is a round; set run.steps, the number of rounds"
    return None


def _span_fits_rounds(steps: int | None, epochs: int | None, span: Span | None, key: str) -> str | None:
    if (steps is None and epochs is None) or span is None or span.epochs is None:
        return None
    return f"{key}: {span} is no number of rounds, which steps are with local; give it in steps"


def _every_fits_rounds(steps: int | None, epochs: int | None, every: Span | None) -> str | None:
    return _span_fits_rounds(steps, epochs, every, "schedule.every")


def _end_fits_rounds(steps: int | None, epochs: int | None, end: Span | None) -> str | None:
    return _span_fits_rounds(steps, epochs, end, "schedule.end")


RULES: tuple[Rule, ...] = (
    Rule(("local.steps", "local.epochs"), _local_length_is_given_once),
    Rule(("local.optimizer.name", *_LOCAL), _local_steps_have_an_optimizer),
    Rule(("local.proximal_mu", *_LOCAL), _proximity_needs_local_steps),
    Rule(("local.clip", *_LOCAL), _local_clip_needs_local_steps),
    Rule(("local.epochs", "data.partition.name"), _local_epochs_need_parts),
    Rule(
        (*_LOCAL, "reduction", "gradient.clip", "data.batch_size", "contribution.name", "run.epochs"),
        _unfit_for_local_steps,
    ),
    Rule((*_LOCAL, "schedule.every"), _every_fits_rounds),
    Rule((*_LOCAL, "schedule.end"), _end_fits_rounds),
)
