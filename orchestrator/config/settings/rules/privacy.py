"""Rules for clipped, noisy and masked contributions: each refusal with its remedy."""

from __future__ import annotations

from orchestrator.config.settings.rules.rule import Case, Rule

MOST_CLIENTS = 1 << 19  # with more, sums of `optim.privacy.quantization_grid` could exceed 64 bits
_CLIPPED = Case(("privacy.clipping_norm",), lambda norm: norm is not None)
_NOISY = Case(("privacy.noise_multiplier",), lambda multiplier: multiplier > 0)


def _number_of_clients(clients: int | None, among: int | None, shards: int) -> tuple[str, int]:
    """The key that says it, and what it says."""
    if clients:
        return "privacy.clients", clients
    return ("data.partition.clients", among) if among else ("data.shards", shards)


def _too_many_clients(clients: int | None, among: int | None, shards: int, _: float) -> str:
    key, number = _number_of_clients(clients, among, shards)
    return f"{key}: sums of 64 bits hold {MOST_CLIENTS} clients on the lattice, not {number}; lower it"


RULES: tuple[Rule, ...] = (
    _CLIPPED.is_required_by(
        "privacy.masks-need-clipping",
        "secure_aggregation",
        False,
        "secure_aggregation: masks need integers on a lattice that never changes; set privacy.clipping_norm, the largest norm "
        "of a contribution",
    ),
    _CLIPPED.is_required_by(
        "privacy.noise-needs-clipping",
        "privacy.noise_multiplier",
        0,
        "privacy.noise_multiplier: noise is measured in clipping norms; set privacy.clipping_norm",
    ),
    _NOISY.is_required_by(
        "privacy.delta-without-noise",
        "privacy.delta",
        None,
        "privacy.delta: without noise nothing is promised; set privacy.noise_multiplier, or leave it out",
    ),
    _NOISY.requires(
        "privacy.delta-required",
        "privacy.delta",
        lambda delta: delta is not None,
        "privacy.delta: required by privacy.noise_multiplier; for example 1e-4, less than 1 in so many clients",
    ),
    _CLIPPED.requires(
        "privacy.fast",
        "reduction",
        "exact",
        "reduction: with privacy.clipping_norm contributions are added as integers; set reduction=exact",
    ),
    _CLIPPED.requires(
        "privacy.compression",
        "compression.name",
        "none",
        "compression: {0} rounds to what all shards have together, and with privacy.clipping_norm the lattice is fixed; leave "
        "one of the two out",
    ),
    _CLIPPED.requires(
        "privacy.contribution",
        "contribution.name",
        "gradient",
        "contribution: {0} may keep of a shard what was clipped off; with privacy.clipping_norm leave it out",
    ),
    Rule(
        "privacy.local-weight",
        ("local.weight", "privacy.clipping_norm", "local.steps", "local.epochs"),
        lambda weight, norm, steps, epochs: norm is not None and weight == "rows" and (steps or epochs),
        "local.weight: with privacy.clipping_norm all count the same, whatever they own; set local.weight=uniform",
    ),
    _NOISY.requires(
        "privacy.partition",
        "data.partition.name",
        lambda partition: partition != "shared",
        "data.partition: with privacy.noise_multiplier clients are hidden, and without a partition none has samples of its "
        "own; set data.partition",
    ),
    _NOISY.requires(
        "privacy.sampling",
        "data.sampling.name",
        "uniform",
        "data.sampling: {0} may tell of other clients' samples; with privacy.noise_multiplier leave it out",
    ),
    _NOISY.requires(
        "privacy.loaders",
        "data.loaders",
        0,
        "data.loaders: which clients play is known to workers alone, round by round; with privacy.noise_multiplier set "
        "data.loaders=0",
    ),
    Rule(
        "privacy.batch",
        ("data.batch_size", "privacy.noise_multiplier", "data.shards"),
        lambda size, multiplier, shards: multiplier and (not size.is_constant or size.least % shards),
        "data.batch_size: with privacy.noise_multiplier each client takes as many rows; set a constant multiple of "
        "data.shards={2}",
    ),
    _NOISY.requires(
        "privacy.subset",
        "data.subset.name",
        "all",
        "data.subset: what {0} leaves to a run tells of other runs on the same clients, whose epsilons would have to be "
        "added up; with privacy.noise_multiplier leave it out",
    ),
    Rule(
        "privacy.too-many-clients",
        ("privacy.clients", "data.partition.clients", "data.shards", "privacy.clipping_norm"),
        lambda clients, among, shards, norm: (
            norm is not None and _number_of_clients(clients, among, shards)[1] > MOST_CLIENTS
        ),
        _too_many_clients,
    ),
    _NOISY.is_required_by(
        "privacy.clients-without-noise",
        "privacy.clients",
        None,
        "privacy.clients: it counts with privacy.noise_multiplier only; leave it out",
    ),
    Rule(
        "privacy.clients-twice",
        ("privacy.clients", "data.partition.clients", "privacy.noise_multiplier"),
        lambda clients, among, multiplier: multiplier and None not in (clients, among) and clients != among,
        "privacy.clients: data.partition.clients says {1}; leave one of the two out",
    ),
    Rule(
        "privacy.clients-of-shards",
        ("privacy.clients", "data.shards", "privacy.noise_multiplier"),
        lambda clients, shards, multiplier: multiplier and clients is not None and clients < shards,
        "privacy.clients: in each round data.shards={1} clients play on average; raise it, or lower data.shards",
    ),
)
