"""Settings that others leave without effect, said when a run is described: each refusal with its remedy (`rule.Idle`).

What it does not do: look at what only the model or the data tell, such as a compression that makes no tensor smaller
(`engine.compute.construction`).
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.settings.rules.rule import Idle
from orchestrator.settings.sections import BY_MEMORY, EarlyStoppingSettings, TuningSettings
from orchestrator.updates.schedules import SCHEDULES
from orchestrator.values import Every, Span


def _warmup_ends(warmup: int, schedule: str, steps: int | None) -> str | None:
    """Behind a warm-up of all steps nothing is left for a schedule that changes the rate."""
    if steps is None or warmup < steps or (warmup == steps and schedule == "constant"):
        return None
    return (
        f"schedule.warmup: {warmup} steps of warm-up, but the run has {steps}, so "
        + ("the learning rate never gets to its value" if warmup > steps else f"schedule={schedule} never begins")
        + ": lower it, or raise run.steps"
    )


def _ratio_is_reached(warmup: int | None, compression: str, steps: int | None) -> str | None:
    if compression != "topk" or warmup is None or steps is None or warmup <= steps:
        return None
    return (
        f"compression.warmup: the ratio falls to its value in {warmup} steps, but the run has {steps}: lower it, or raise "
        "run.steps"
    )


def _reset_is_reached(reset: int | None, compression: str, warmup: int | None, steps: int | None) -> str | None:
    if compression != "powersgd" or reset is None or steps is None or (warmup or 0) + reset <= steps:
        return None
    after = f", after {warmup} of warm-up" if warmup else ""
    return (
        f"compression.reset: one in {reset} steps is exact{after}, but the run has {steps}, so none is: lower it, or leave it "
        "out"
    )


def _reduction_is_reached(every: Span | None, schedule: str, warmup: int, steps: int | None) -> str | None:
    if schedule != "steps" or every is None or every.steps is None or steps is None or warmup + every.steps < steps:
        return None
    return (
        f"schedule.every: the rate is reduced after {warmup + every.steps} steps, but the run has {steps}: lower it, or leave "
        "schedule out"
    )


def _runs_out(key: str, patience: int | None, every: Every | None, steps: int | None, else_: str) -> str | None:
    if patience is None or every is None or every.steps is None or steps is None or patience * every.steps < steps:
        return None
    return (
        f"{key}: {patience} evaluations, one in {every.steps} steps, are not over before the run is, which has {steps} steps: "
        f"lower it or evaluation.every, or leave {else_} out"
    )


def _stopping_can_happen(patience: int | None, every: Every | None, steps: int | None) -> str | None:
    return _runs_out("early_stopping.patience", patience, every, steps, "it")


def _plateau_can_happen(patience: int | None, schedule: str, every: Every | None, steps: int | None) -> str | None:
    if schedule != "plateau":
        return None
    patience = patience or SCHEDULES.options(schedule)["patience"].default
    return _runs_out("schedule.patience", patience, every, steps, "schedule")


def _stopping(key: str, value: object, default: object, patience: int | None) -> str | None:
    if value == default or patience is not None:
        return None
    return f"{key}: without early_stopping.patience no run is stopped early; set that, or leave {key} out"


def _metric_stops(metric: str, patience: int | None) -> str | None:
    return _stopping("early_stopping.metric", metric, EarlyStoppingSettings.metric, patience)


def _mode_stops(mode: str, patience: int | None) -> str | None:
    return _stopping("early_stopping.mode", mode, EarlyStoppingSettings.mode, patience)


def _change_stops(change: float, patience: int | None) -> str | None:
    return _stopping("early_stopping.min_change", change, EarlyStoppingSettings.min_change, patience)


def _weight_is_of_local_steps(weight: str, steps: int | None, epochs: int | None) -> str | None:
    if weight == "rows" or steps is not None or epochs is not None:
        return None
    return "local.weight: it counts for local steps only; set local.steps or local.epochs, or leave it out"


def _secret_is_used(secret: str | None, multiplier: float) -> str | None:
    if secret is None or multiplier > 0:
        return None
    return "privacy.secret: noise comes from it, and this run has none; set privacy.noise_multiplier, or leave it out"


def _tensors_are_told(every: int, steps: int | None) -> str | None:
    if steps is None or every <= steps:
        return None
    return f"trace.tensors_every: {every} steps, but the run has {steps}, so no digests of tensors are taken: lower it"


def _seconds_are_measured(seconds: float, auto: Sequence[str]) -> str | None:
    if seconds == TuningSettings.seconds or set(auto) - {BY_MEMORY}:
        return None
    return "tuning.seconds: nothing is measured; leave something to a measurement, as topology=auto, or leave it out"


def _environment_is_of_reruns(environment: str) -> str | None:
    if environment == "check":
        return None
    return f"environment={environment}: it is said with rerun=; a launch computes in the environment that is here: leave it out"


_STEPS = ("run.steps",)
_STOPPING = ("early_stopping.patience",)
_LOCAL = ("local.steps", "local.epochs")
_NOISE = ("privacy.noise_multiplier",)
_AUTO = ("tuning.auto",)

RULES: tuple[Idle, ...] = (
    Idle(("schedule.warmup", "schedule.name", *_STEPS), _warmup_ends),
    Idle(("compression.warmup", "compression.name", *_STEPS), _ratio_is_reached),
    Idle(("compression.reset", "compression.name", "compression.warmup", *_STEPS), _reset_is_reached, _STEPS),
    Idle(("schedule.every", "schedule.name", "schedule.warmup", *_STEPS), _reduction_is_reached, _STEPS),
    Idle(("early_stopping.patience", "evaluation.every", *_STEPS), _stopping_can_happen, _STEPS),
    Idle(("schedule.patience", "schedule.name", "evaluation.every", *_STEPS), _plateau_can_happen, _STEPS),
    Idle(("early_stopping.metric", *_STOPPING), _metric_stops, _STOPPING),
    Idle(("early_stopping.mode", *_STOPPING), _mode_stops, _STOPPING),
    Idle(("early_stopping.min_change", *_STOPPING), _change_stops, _STOPPING),
    Idle(("local.weight", *_LOCAL), _weight_is_of_local_steps, _LOCAL),
    Idle(("privacy.secret", *_NOISE), _secret_is_used, _NOISE),
    Idle(("trace.tensors_every", *_STEPS), _tensors_are_told, _STEPS),
    Idle(("tuning.seconds", *_AUTO), _seconds_are_measured, _AUTO),
    Idle(("environment",), _environment_is_of_reruns),
)
