"""Settings that others leave without effect, said when a run is described: each refusal with its remedy (`rule.Idle`).

It does not look at what only the model or the data tell, such as a compression that makes no tensor smaller
(`worker.model.construction`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.comm.pipeline_schedules.orders import PIPELINING
from orchestrator.comm.synchronization import SYNCHRONY
from orchestrator.common.registry import is_reference
from orchestrator.common.values import Every, Span
from orchestrator.config.settings.rules.rule import Idle
from orchestrator.config.settings.sections import (
    BY_MEMORY,
    BestSettings,
    ChaosSettings,
    ClusterSettings,
    EarlyStoppingSettings,
    TuningSettings,
)
from orchestrator.optim.schedules import SCHEDULES

_STEPS = ("run.steps",)
ORDER = ClusterSettings().pipeline.name


def _warmup_is_too_long(warmup: int, schedule: str, steps: int | None) -> bool:
    """Behind a warm-up of all steps nothing is left for a schedule that changes the rate."""
    return steps is not None and warmup >= steps and not (warmup == steps and schedule == "constant")


def _never_changed(warmup: int, schedule: str, steps: int) -> str:
    lost = "the learning rate never gets to its value" if warmup > steps else f"schedule={schedule} never begins"
    return (
        f"schedule.warmup: {warmup} steps of warm-up, but the run has {steps}, so {lost}: lower it, or raise run.steps"
    )


def _no_reset(reset: int | None, compression: str, warmup: int | None, steps: int | None) -> bool:
    return compression == "powersgd" and None not in (reset, steps) and (warmup or 0) + (reset or 0) > (steps or 0)


def _never_exact(reset: int, _: str, warmup: int | None, steps: int) -> str:
    after = f", after {warmup} of warm-up" if warmup else ""
    return (
        f"compression.reset: one in {reset} steps is exact{after}, but the run has {steps}, so none is: lower it, or leave it "
        "out"
    )


def _no_reduction(every: Span | None, schedule: str, warmup: int, steps: int | None) -> bool:
    if schedule != "steps" or every is None or every.steps is None or steps is None:
        return False
    return warmup + every.steps >= steps


def _never_reduced(every: Any, _: str, warmup: int, steps: int) -> str:
    return (
        f"schedule.every: the rate is reduced after {warmup + every.steps} steps, but the run has {steps}: lower it, or leave "
        "schedule out"
    )


def _outlasts(patience: int | None, every: Every | None, steps: int | None) -> bool:
    if patience is None or every is None or every.steps is None or steps is None:
        return False
    return patience * every.steps >= steps


def _plateau_outlasts(patience: int | None, schedule: str, every: Every | None, steps: int | None) -> bool:
    return schedule == "plateau" and _outlasts(_plateau(patience), every, steps)


def _plateau(patience: int | None) -> int:
    return int(patience or SCHEDULES.options("plateau")["patience"].default)


def _too_patient(key: str, patience: int, every: Any, steps: int, out: str) -> str:
    return (
        f"{key}: {patience} evaluations, one in {every.steps} steps, are not over before the run is, which has {steps} steps: "
        f"lower it or evaluation.every, or leave {out} out"
    )


def _of_stopping(key: str, default: object) -> Idle:
    return Idle(
        "idle.early-stopping",
        (f"early_stopping.{key}", "early_stopping.patience"),
        lambda value, patience: value != default and patience is None,
        f"early_stopping.{key}: without early_stopping.patience no run is stopped early; set that, or leave "
        f"early_stopping.{key} out",
        ("early_stopping.patience",),
    )


def _of_stages(code: str, key: str, used: Any, sentence: str) -> Idle:
    """used: of the setting's value, whether it asks for something."""
    return Idle(
        code,
        (key, "tuning.auto", "cluster.stages"),
        lambda value, auto, stages: stages == 1 and BY_MEMORY not in auto and used(value),
        sentence,
        ("cluster.stages", "tuning.auto"),
    )


def _of_speeds(code: str, key: str, idle: Callable[[Any], bool], why: str) -> Idle:
    """A key with which declared speeds count for nothing. why: with the value in it."""
    return Idle(
        code,
        ("cluster.speeds", key),
        lambda speeds, value: bool(speeds) and idle(value),
        lambda _, value: f"cluster.speeds: {why.format(value)}, or leave cluster.speeds out",
        (key,),
    )


def _of_best(key: str, default: object) -> Idle:
    return Idle(
        "idle.checkpoint-best",
        (f"checkpoint.best.{key}", "checkpoint.best.metric"),
        lambda value, metric: value != default and metric is None,
        f"checkpoint.best.{key}: without checkpoint.best.metric no checkpoint is kept as one of the best; set that, or leave "
        f"checkpoint.best.{key} out",
        ("checkpoint.best.metric",),
    )


RULES: tuple[Idle, ...] = (
    Idle("idle.warmup", ("schedule.warmup", "schedule.name", *_STEPS), _warmup_is_too_long, _never_changed),
    Idle(
        "idle.compression-warmup",
        ("compression.warmup", "compression.name", *_STEPS),
        lambda warmup, name, steps: name == "topk" and None not in (warmup, steps) and warmup > steps,
        "compression.warmup: the ratio falls to its value in {0} steps, but the run has {2}: lower it, or raise run.steps",
    ),
    Idle(
        "idle.compression-reset",
        ("compression.reset", "compression.name", "compression.warmup", *_STEPS),
        _no_reset,
        _never_exact,
        _STEPS,
    ),
    Idle(
        "idle.schedule-every",
        ("schedule.every", "schedule.name", "schedule.warmup", *_STEPS),
        _no_reduction,
        _never_reduced,
        _STEPS,
    ),
    Idle(
        "idle.stopping-patience",
        ("early_stopping.patience", "evaluation.every", *_STEPS),
        _outlasts,
        lambda patience, every, steps: _too_patient("early_stopping.patience", patience, every, steps, "it"),
        _STEPS,
    ),
    Idle(
        "idle.schedule-patience",
        ("schedule.patience", "schedule.name", "evaluation.every", *_STEPS),
        _plateau_outlasts,
        lambda patience, _, every, steps: _too_patient(
            "schedule.patience", _plateau(patience), every, steps, "schedule"
        ),
        _STEPS,
    ),
    _of_best("mode", BestSettings.mode),
    _of_best("keep", BestSettings.keep),
    Idle(
        "idle.archive",
        ("checkpoint.archive", *_STEPS),
        lambda every, steps: every is not None and steps is not None and every > steps,
        "checkpoint.archive: one checkpoint in {0} steps is kept for ever, but the run has {1}: lower it, or leave it out",
        _STEPS,
    ),
    _of_stopping("metric", EarlyStoppingSettings.metric),
    _of_stopping("mode", EarlyStoppingSettings.mode),
    _of_stopping("min_change", EarlyStoppingSettings.min_change),
    Idle(
        "idle.local-weight",
        ("local.weight", "local.steps", "local.epochs"),
        lambda weight, steps, epochs: weight != "rows" and steps is None and epochs is None,
        "local.weight: it counts for local steps only; set local.steps or local.epochs, or leave it out",
        ("local.steps", "local.epochs"),
    ),
    Idle(
        "idle.secret",
        ("privacy.secret", "privacy.noise_multiplier"),
        lambda secret, multiplier: secret is not None and not multiplier > 0,
        "privacy.secret: noise comes from it, and this run has none; set privacy.noise_multiplier, or leave it out",
        ("privacy.noise_multiplier",),
    ),
    Idle(
        "idle.tensors-every",
        ("trace.tensors_every", *_STEPS),
        lambda every, steps: steps is not None and every > steps,
        "trace.tensors_every: {0} steps, but the run has {1}, so no digests of tensors are taken: lower it",
        _STEPS,
    ),
    *(
        Idle(
            "idle.chaos",
            (f"chaos.{key}", "chaos.every"),
            lambda value, every, default=default: value != default and every is None,
            f"chaos.{key}: without chaos.every nobody is disturbed; set that, such as 60s, or leave chaos.{key} out",
            ("chaos.every",),
        )
        for key, default in (("kinds", ChaosSettings.kinds), ("seed", ChaosSettings.seed))
    ),
    Idle(
        "idle.check-every",
        ("check.every", *_STEPS),
        lambda every, steps: every is not None and steps is not None and every > steps,
        "check.every: one step in {0} is checked, but the run has {1}, so perhaps none is: lower it",
        _STEPS,
    ),
    Idle(
        "idle.tls",
        ("transport.tls", "transport.name", "cluster.address"),
        lambda tls, transport, address: tls and transport == "auto" and address is None,
        "transport.tls: a private Ray has one node, whose workers share memory, so nothing is encrypted; set cluster.address "
        "or transport=tcp, or leave it out",
        ("transport.name", "cluster.address"),
    ),
    Idle(
        "idle.tuning-seconds",
        ("tuning.seconds", "tuning.auto"),
        lambda seconds, auto: seconds != TuningSettings.seconds and not set(auto) - {BY_MEMORY},
        "tuning.seconds: nothing is measured; leave something to a measurement, as topology=auto, or leave it out",
        ("tuning.auto",),
    ),
    Idle(
        "idle.environment",
        ("environment.name",),
        lambda environment: environment != "check",
        "environment={0}: it is said with rerun=; a launch computes in the environment that is here: leave it out",
    ),
    _of_speeds(
        "idle.speeds-of-private-ray",
        "cluster.address",
        lambda address: address is None,
        "a private Ray is this machine, on which all workers are equally fast; set cluster.address",
    ),
    _of_speeds(
        "idle.speeds-dealt-equally",
        "cluster.deal",
        lambda deal: deal == "equal",
        "with cluster.deal=equal nobody asks for speeds",
    ),
    _of_speeds(
        "idle.speeds-fast",
        "reduction",
        lambda reduction: reduction == "fast",
        "with reduction=fast the layout determines the result, so shards are dealt equally; set reduction=exact",
    ),
    _of_speeds(
        "idle.speeds-sync",
        "sync.name",
        lambda sync: sync in SYNCHRONY and sync != "bsp",
        "under sync={} who hosts a shard is part of the record, so shards are dealt equally; set sync=bsp",
    ),
    *(
        _of_speeds(
            "idle.speeds-local",
            key,
            lambda length: length is not None,
            "with local steps shards differ in size, and are dealt by that",
        )
        for key in ("local.steps", "local.epochs")
    ),
    Idle(
        "site.absent-without",
        ("data.absent", "data.sites"),
        lambda absent, sites: absent is not None and not sites,
        "data.absent: {0} is about sites that are away; set data.sites, or leave it out",
        ("data.sites",),
    ),
    Idle(
        "idle.claims-alone",
        ("cluster.claims", "cluster.workers", "tuning.auto"),
        lambda claims, workers, auto: claims is True and workers.most == 1 and "cluster.workers" not in auto,
        "cluster.claims: one worker computes all shards, and nobody else claims one; raise cluster.workers, or leave it out",
        ("cluster.workers", "tuning.auto"),
    ),
    _of_stages(
        "idle.recompute",
        "run.recompute",
        bool,
        "run.recompute: it counts for a model in stages only; set cluster.stages to 2 or more, or leave it out",
    ),
    _of_stages(
        "idle.pipeline-order",
        "cluster.pipeline.name",
        lambda name: name != ORDER and (name in PIPELINING or is_reference(name)),
        f"cluster.pipeline: the order {{0}} counts for a model in stages only; set cluster.stages to 2 or more, or leave it "
        f"out (cluster.pipeline={ORDER})",
    ),
)
