"""Rules for samples, batches, learning rates, evaluations and compression: each refusal with its remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.common.values import Steps
from orchestrator.config.settings.rules.rule import SPANS, Case, Rule, two_lengths
from orchestrator.optim.compressions import COMPRESSIONS
from orchestrator.optim.compressions.quantize import most_shards


def _in_steps(key: str) -> Rule:
    """A key in epochs counts the steps of the first one."""
    return Case(("data.batch_size",), lambda batch_size: not batch_size.is_constant).requires(
        "schedule.span-in-steps",
        key,
        lambda span: span is None or span.epochs is None,
        f"{key}: {{0}} is no number of steps where data.batch_size changes with the step; give it in steps",
    )


def _evaluated_in_steps(what: str, key: str, monitors: Callable[[Any], bool]) -> Rule:
    """A setting that depends on evaluations has to know their steps beforehand, or the result would depend on the clock."""
    return Rule(
        "evaluation.in-steps",
        (key, "evaluation.every"),
        lambda value, every: monitors(value) and (every is None or every.seconds is not None),
        f"{what} needs evaluation.every in steps or epochs, such as evaluation.every=100",
    )


def _unreached(batch_size: Steps, steps: int) -> str:
    last, rows = batch_size.changes[-1]
    return f"data.batch_size: {rows} rows from step {last} on, but the run has {steps} steps: lower {last}, or leave it out"


def _bits(bits: int | None) -> int:
    given: int = bits or COMPRESSIONS.resolve("quantize", {})["bits"]
    return given


def _feeds_back(compression: str, feedback: bool | None) -> bool:
    given = {} if feedback is None else {"error_feedback": feedback}
    return compression in COMPRESSIONS and bool(COMPRESSIONS.resolve(compression, given).get("error_feedback"))


def _too_few_levels(_: str, bits: int | None, shards: int) -> str:
    wider = "set compression.bits=16, or " if shards <= most_shards(16) else ""
    return (
        f"compression.bits: the sum of {shards} shards has to fit {_bits(bits)} bits, which leaves too few levels for each (at "
        f"most {most_shards(_bits(bits))} shards): {wider}lower data.shards"
    )


def _order_of_all(key: str, fit: str) -> Rule:
    """If shards draw from something else than all samples in turn, no order of these is followed."""
    return Case(("data.order.name",), lambda order: order != "shuffled").requires(
        "data.order-of-all",
        f"{key}.name",
        fit,
        f"data.order: {{1}} orders all training samples, and with {key}={{0}} shards have others; leave one of the two out",
    )


def _mixture_of_all(key: str, fit: str) -> Rule:
    return Case(("data.mixture",), bool).requires(
        "data.mixture-of-all",
        f"{key}.name",
        fit,
        f"data.mixture: sources are mixed in each shard, and {key}={{0}} chooses samples of one; leave one of the two out",
    )


RULES: tuple[Rule, ...] = (
    _mixture_of_all("data.partition", "shared"),
    _mixture_of_all("data.sampling", "uniform"),
    _mixture_of_all("data.subset", "all"),
    _order_of_all("data.partition", "shared"),
    _order_of_all("data.sampling", "uniform"),
    _order_of_all("data.subset", "all"),
    Rule(
        "settings.no-length",
        ("run.steps", "run.epochs"),
        lambda steps, epochs: steps is None and epochs is None,
        "run.steps or run.epochs: one is required",
    ),
    Rule("run.two-lengths", ("run.steps", "run.epochs"), lambda steps, epochs: steps and epochs, two_lengths("run")),
    Rule(
        "batch.rows-of-shards",
        ("data.batch_size", "data.shards"),
        lambda batch_size, shards: batch_size.least < shards,
        "data.batch_size: {0.least} rows for {1} shards; a shard computes at least one row: raise data.batch_size or lower "
        "data.shards",
    ),
    Rule(
        "batch.change-unreached",
        ("data.batch_size", "run.steps"),
        lambda batch_size, steps: steps is not None and batch_size.changes[-1][0] >= steps,
        _unreached,
    ),
    *map(_in_steps, SPANS),
    Rule(
        "data.clients-of-shards",
        ("data.partition.clients", "data.shards"),
        lambda clients, shards: clients is not None and clients < shards,
        "data.partition.clients: {0} clients for {1} shards; in each step a shard plays a client of its own: raise "
        "data.partition.clients, or set data.shards={0} (which changes the result)",
    ),
    Rule(
        "contribution.of-clients",
        ("data.partition.clients", "data.shards", "contribution.name"),
        lambda clients, shards, contribution: clients and clients > shards and contribution != "gradient",
        "contribution: {2} may keep a state for each shard, but of {0} clients a shard plays another one in each step; leave "
        "contribution out",
    ),
    Rule(
        "schedule.scale-without-base",
        ("schedule.scale", "schedule.base_batch"),
        lambda scale, base: scale != "none" and base is None,
        "schedule.scale: {0} needs schedule.base_batch, the batch size that optimizer.lr was chosen for, such as "
        "schedule.base_batch=64",
    ),
    Rule(
        "schedule.base-without-scale",
        ("schedule.base_batch", "schedule.scale"),
        lambda base, scale: base is not None and scale == "none",
        "schedule.base_batch: it counts for schedule.scale=linear or sqrt only; set one of them, or leave it out",
    ),
    Rule(
        "compression.fast",
        ("compression.name", "reduction"),
        lambda compression, reduction: compression != "none" and reduction == "fast",
        "compression: {0} needs sums that are free of order; set reduction=exact, or leave one of the two out",
    ),
    Rule(
        "compression.bits",
        ("compression.name", "compression.bits", "data.shards"),
        lambda compression, bits, shards: compression == "quantize" and shards > most_shards(_bits(bits)),
        _too_few_levels,
    ),
    Rule(
        "compression.feedback-of-clients",
        ("compression.error_feedback", "compression.name", "data.partition.clients", "data.shards"),
        lambda feedback, name, clients, shards: (clients or 0) > shards and _feeds_back(name, feedback),
        "compression.error_feedback: what a shard's compression drops belongs to the client that it plays, and the next round "
        "has another; set compression.error_feedback=false",
    ),
    Rule(
        "compression.all-warmup",
        ("compression.warmup", "compression.name", "run.steps"),
        lambda warmup, compression, steps: compression == "powersgd" and steps and (warmup or 0) >= steps,
        "compression.warmup: {0} steps of exact sums, but the run has {2}, so nothing would be compressed: lower it, or leave "
        "compression out",
    ),
    Rule(
        "initial.digest-alone",
        ("initial.digest", "initial.name"),
        lambda digest, name: digest is not None and name is None,
        "initial.digest: it is the digest of a model's weights; set initial, such as initial=models:/NAME@ALIAS",
    ),
    _evaluated_in_steps("checkpoint.best", "checkpoint.best.metric", lambda metric: metric is not None),
    Rule(
        "checkpoint.best-of-nothing",
        ("checkpoint.model", "checkpoint.best.metric"),
        lambda model, metric: model == "best" and metric is None,
        "checkpoint.model: best needs to know what is better; set checkpoint.best, such as "
        "checkpoint.best.metric=validation/loss",
    ),
    Rule(
        "begin.digest-alone",
        ("begin.digest", "begin.name"),
        lambda digest, name: digest is not None and name is None,
        "begin.digest: it is the digest of a run's state; set begin, such as begin=RUN_ID@STEP",
    ),
    Rule(
        "begin.and-initial",
        ("begin.name", "initial.name"),
        lambda run, model: run is not None and model is not None,
        "begin and initial: both say with which parameters training begins; leave one of them out",
    ),
    Rule(
        "begin.with-noise",
        ("begin.name", "privacy.noise_multiplier"),
        lambda run, multiplier: run is not None and multiplier > 0,
        "begin: the epsilon of this run would leave out what run {0} has told of its clients already; leave begin out, or "
        "train without noise",
    ),
    Rule(  # of epochs nobody knows the steps yet
        "schedule.end-in-warmup",
        ("schedule.end", "schedule.warmup"),
        lambda end, warmup: end is not None and end.steps is not None and end.steps <= warmup,
        lambda end, warmup: (
            f"schedule.end: {end} is not behind the warm-up, whose last step is {warmup - 1}; raise it above schedule.warmup"
        ),
    ),
    _evaluated_in_steps("early_stopping.patience", "early_stopping.patience", lambda patience: patience is not None),
    _evaluated_in_steps("schedule=plateau", "schedule.name", lambda name: name == "plateau"),
)
