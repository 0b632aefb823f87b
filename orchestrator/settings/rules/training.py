"""What goes together of samples, batches, learning rates, evaluations and compression, and what does not: each refusal with its
remedy."""

from __future__ import annotations

from orchestrator.settings.rules.rule import Rule, two_lengths
from orchestrator.updates.compressions import COMPRESSIONS
from orchestrator.updates.compressions.quantize import most_shards
from orchestrator.values import Every, Span, Steps


def _length_is_given_once(steps: int | None, epochs: int | None) -> str | None:
    if steps is None and epochs is None:
        return "run.steps or run.epochs: one is required"
    if steps is not None and epochs is not None:
        return two_lengths("run")
    return None


def _shards_have_rows(batch_size: Steps, shards: int) -> str | None:
    if batch_size.least >= shards:
        return None
    return (
        f"data.batch_size: {batch_size.least} rows for {shards} shards; a shard computes at least one row: "
        "raise data.batch_size or lower data.shards"
    )


def _sizes_are_reached(batch_size: Steps, steps: int | None) -> str | None:
    last, rows = batch_size.changes[-1]
    if steps is None or last < steps:
        return None
    return f"data.batch_size: {rows} rows from step {last} on, but the run has {steps} steps: lower {last}, or leave it out"


def _epochs_are_alike(batch_size: Steps, span: Span | None, key: str) -> str | None:
    """What counts epochs counts the steps of the first one."""
    if batch_size.is_constant or span is None or span.epochs is None:
        return None
    return f"{key}: {span} is no number of steps where data.batch_size changes with the step; give it in steps"


def _every_needs_alike_epochs(batch_size: Steps, every: Span | None) -> str | None:
    return _epochs_are_alike(batch_size, every, "schedule.every")


def _end_needs_alike_epochs(batch_size: Steps, end: Span | None) -> str | None:
    return _epochs_are_alike(batch_size, end, "schedule.end")


def _shards_have_clients(clients: int | None, shards: int) -> str | None:
    if clients is None or clients >= shards:
        return None
    return (
        f"data.partition.clients: {clients} clients for {shards} shards; in each step a shard plays a client of its own: raise "
        f"data.partition.clients, or set data.shards={clients} (which changes the result)"
    )


def _clients_keep_nothing(clients: int | None, shards: int, contribution: str) -> str | None:
    if clients is None or clients <= shards or contribution == "gradient":
        return None
    return (
        f"contribution: {contribution} may keep a state for each shard, but of {clients} clients a shard plays another one in "
        "each step; leave contribution out"
    )


def _scale_has_a_base(scale: str, base: int | None) -> str | None:
    if (scale == "none") == (base is None):
        return None
    if base is not None:
        return "schedule.base_batch: it counts for schedule.scale=linear or sqrt only; set one of them, or leave it out"
    return (
        f"schedule.scale: {scale} needs schedule.base_batch, the batch size that optimizer.lr was chosen for, such as "
        "schedule.base_batch=64"
    )


def _compression_is_exact(compression: str, reduction: str) -> str | None:
    if compression == "none" or reduction == "exact":
        return None
    return f"compression: {compression} needs sums that are free of order; set reduction=exact, or leave one of the two out"


def _levels_are_left(compression: str, bits: int | None, shards: int) -> str | None:
    if compression != "quantize":
        return None
    bits = bits or COMPRESSIONS.resolve(compression, {})["bits"]
    if shards <= most_shards(bits):
        return None
    wider = "set compression.bits=16, or " if shards <= most_shards(16) else ""
    return (
        f"compression.bits: the sum of {shards} shards has to fit {bits} bits, which leaves too few levels for each (at most "
        f"{most_shards(bits)} shards): {wider}lower data.shards"
    )


def _exact_steps_end(compression: str, warmup: int | None, steps: int | None) -> str | None:
    if compression != "powersgd" or steps is None or (warmup or 0) < steps:
        return None
    return (
        f"compression.warmup: {warmup} steps of exact sums, but the run has {steps}, so nothing would be compressed: lower it, "
        "or leave compression out"
    )


def _end_is_behind_warmup(end: Span | None, warmup: int) -> str | None:
    """Of epochs nobody knows the steps yet."""
    if end is None or end.steps is None or end.steps > warmup:
        return None
    return f"schedule.end: {end} is not behind the warm-up, whose last step is {warmup - 1}; raise it above schedule.warmup"


def _watching_needs_steps(watching: str | None, every: Every | None) -> str | None:
    """What depends on evaluations has to know their steps beforehand, or the result would depend on the clock."""
    if watching is None or (every is not None and every.steps is not None):
        return None
    return f"{watching} needs evaluation.every in steps, such as evaluation.every=100"


def _stopping_needs_steps(patience: int | None, every: Every | None) -> str | None:
    return _watching_needs_steps(None if patience is None else "early_stopping.patience", every)


def _plateau_needs_steps(schedule: str, every: Every | None) -> str | None:
    return _watching_needs_steps("schedule=plateau" if schedule == "plateau" else None, every)


def _digest_has_a_model(digest: str | None, name: str | None) -> str | None:
    if digest is None or name is not None:
        return None
    return "initial.digest: it is the digest of a model's weights; set initial, such as initial=models:/NAME@ALIAS"


RULES: tuple[Rule, ...] = (
    Rule(("run.steps", "run.epochs"), _length_is_given_once),
    Rule(("data.batch_size", "data.shards"), _shards_have_rows),
    Rule(("data.batch_size", "run.steps"), _sizes_are_reached),
    Rule(("data.batch_size", "schedule.every"), _every_needs_alike_epochs),
    Rule(("data.batch_size", "schedule.end"), _end_needs_alike_epochs),
    Rule(("data.partition.clients", "data.shards"), _shards_have_clients),
    Rule(("data.partition.clients", "data.shards", "contribution.name"), _clients_keep_nothing),
    Rule(("schedule.scale", "schedule.base_batch"), _scale_has_a_base),
    Rule(("compression.name", "reduction"), _compression_is_exact),
    Rule(("compression.name", "compression.bits", "data.shards"), _levels_are_left),
    Rule(("compression.name", "compression.warmup", "run.steps"), _exact_steps_end),
    Rule(("initial.digest", "initial.name"), _digest_has_a_model),
    Rule(("schedule.end", "schedule.warmup"), _end_is_behind_warmup),
    Rule(("early_stopping.patience", "evaluation.every"), _stopping_needs_steps),
    Rule(("schedule.name", "evaluation.every"), _plateau_needs_steps),
)
