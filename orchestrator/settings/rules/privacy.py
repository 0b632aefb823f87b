"""What goes with clipped, noisy and masked contributions, and what does not: each refusal with its remedy."""

from __future__ import annotations

from orchestrator.settings.rules.rule import Rule
from orchestrator.values import Steps

MOST_CLIENTS = 1 << 19  # of `privacy.lattice`, which needs torch


def _masks_have_a_scale(masked: object, clipping_norm: float | None) -> str | None:
    if not masked or clipping_norm is not None:
        return None
    return (
        "secure_aggregation: masks need integers on a lattice that never changes; set privacy.clipping_norm, the largest norm "
        "of a contribution"
    )


def _noise_has_a_scale(multiplier: float, clipping_norm: float | None, delta: float | None) -> str | None:
    if multiplier == 0:
        if delta is None:
            return None
        return "privacy.delta: without noise nothing is promised; set privacy.noise_multiplier, or leave it out"
    if clipping_norm is None:
        return "privacy.noise_multiplier: noise is measured in clipping norms; set privacy.clipping_norm"
    if delta is None:
        return "privacy.delta: required by privacy.noise_multiplier; for example 1e-4, less than 1 in so many clients"
    return None


def _unfit_for_clipping(
    clipping_norm: float | None, reduction: str, compression: str, contribution: str, weight: str, *local: int | None
) -> str | None:
    if clipping_norm is None:
        return None
    if reduction == "fast":
        return "reduction: with privacy.clipping_norm contributions are added as integers; set reduction=exact"
    if compression != "none":
        return (
            f"compression: {compression} rounds to what all shards have together, and with privacy.clipping_norm the lattice "
            "is fixed; leave one of the two out"
        )
    if contribution != "gradient":
        return f"contribution: {contribution} may keep of a shard what was clipped off; with privacy.clipping_norm leave it out"
    if weight == "rows" and any(local):
        return (
            "local.weight: with privacy.clipping_norm all count the same, whatever they own; set local.weight=uniform"
        )
    return None


def _unfit_for_noise(
    multiplier: float, partition: str, sampling: str, loaders: int, batch_size: Steps, shards: int
) -> str | None:
    if multiplier == 0:
        return None
    if partition == "shared":
        return (
            "data.partition: with privacy.noise_multiplier clients are hidden, and without a partition none has samples of its "
            "own; set data.partition"
        )
    if sampling != "uniform":
        return (
            f"data.sampling: {sampling} may tell of other clients' samples; with privacy.noise_multiplier leave it out"
        )
    if loaders:
        return (
            "data.loaders: which clients play is known to workers alone, round by round; with privacy.noise_multiplier set "
            "data.loaders=0"
        )
    if not batch_size.is_constant or batch_size.least % shards:
        return (
            f"data.batch_size: with privacy.noise_multiplier each client takes as many rows; set a constant multiple of "
            f"data.shards={shards}"
        )
    return None


def _subsets_are_not_private(multiplier: float, subset: str) -> str | None:
    if multiplier == 0 or subset == "all":
        return None
    return (
        f"data.subset: what {subset} leaves to a run tells of other runs on the same clients, whose epsilons would have to be "
        "added up; with privacy.noise_multiplier leave it out"
    )


def _clients_fit_the_sum(
    clipping_norm: float | None, clients: int | None, among: int | None, shards: int
) -> str | None:
    number = clients or among or shards
    if clipping_norm is None or number <= MOST_CLIENTS:
        return None
    key = "privacy.clients" if clients else "data.partition.clients" if among else "data.shards"
    return f"{key}: sums of 64 bits hold {MOST_CLIENTS} clients on the lattice, not {number}; lower it"


def _clients_are_said_once(multiplier: float, clients: int | None, among: int | None, shards: int) -> str | None:
    if clients is None:
        return None
    if multiplier == 0:
        return "privacy.clients: it counts with privacy.noise_multiplier only; leave it out"
    if among is not None and among != clients:
        return f"privacy.clients: data.partition.clients says {among}; leave one of the two out"
    if clients < shards:
        return f"privacy.clients: in each round data.shards={shards} clients play on average; raise it, or lower data.shards"
    return None


RULES: tuple[Rule, ...] = (
    Rule(("secure_aggregation", "privacy.clipping_norm"), _masks_have_a_scale),
    Rule(("privacy.noise_multiplier", "privacy.clipping_norm", "privacy.delta"), _noise_has_a_scale),
    Rule(
        (
            *("privacy.clipping_norm", "reduction", "compression.name", "contribution.name"),
            *("local.weight", "local.steps", "local.epochs"),
        ),
        _unfit_for_clipping,
    ),
    Rule(
        (
            *("privacy.noise_multiplier", "data.partition.name", "data.sampling.name", "data.loaders"),
            *("data.batch_size", "data.shards"),
        ),
        _unfit_for_noise,
    ),
    Rule(("privacy.clipping_norm", "privacy.clients", "data.partition.clients", "data.shards"), _clients_fit_the_sum),
    Rule(
        ("privacy.noise_multiplier", "privacy.clients", "data.partition.clients", "data.shards"), _clients_are_said_once
    ),
    Rule(("privacy.noise_multiplier", "data.subset.name"), _subsets_are_not_private),
)
