"""Rules for shards that train by themselves in rounds: each refusal with its remedy."""

from __future__ import annotations

from orchestrator.config.settings.rules.rule import SPANS, Case, Rule, two_lengths

_LOCAL = Case(("local.steps", "local.epochs"), lambda steps, epochs: steps or epochs)


def _only_locally(key: str, off: object) -> Rule:
    return _LOCAL.is_required_by(
        "local.needs-steps",
        key,
        off,
        f"{key}: it counts for local steps only; set local.steps or local.epochs, or leave it out",
    )


def _in_steps(key: str) -> Rule:
    """A step of the run is a round, of which nobody knows how many make an epoch."""
    sentence = f"{key}: {{0}} is no number of rounds, which steps are with local; give it in steps"
    return _LOCAL.requires("local.span-in-rounds", key, lambda span: span is None or span.epochs is None, sentence)


RULES: tuple[Rule, ...] = (
    Rule(
        "local.two-lengths",
        ("local.steps", "local.epochs"),
        lambda steps, epochs: steps and epochs,
        two_lengths("local"),
    ),
    _LOCAL.requires(
        "local.optimizer-required",
        "local.optimizer.name",
        lambda name: name is not None,
        "local.optimizer: required by local steps; for example local.optimizer={{name: sgd, lr: 0.05}}",
    ),
    _LOCAL.is_required_by(
        "local.optimizer-unused",
        "local.optimizer.name",
        None,
        "local.optimizer: {0} has nothing to do without local.steps or local.epochs; set one of them, or leave it out",
    ),
    _only_locally("local.proximal_mu", 0),
    _only_locally("local.clip", None),
    Rule(
        "local.epochs-of-shared",
        ("local.epochs", "data.partition.name"),
        lambda epochs, partition: epochs and partition == "shared",
        "local.epochs: without data.partition a shard has no samples of its own to go through; set local.steps, or "
        "data.partition",
    ),
    _LOCAL.requires(
        "local.fast",
        "reduction",
        "exact",
        "reduction: with local steps changes of parameters are added exactly; set reduction=exact",
    ),
    _LOCAL.requires(
        "local.clip",
        "gradient.clip",
        None,
        "gradient.clip: with local steps there is no gradient of a step; set local.clip={0:g} instead",
    ),
    _LOCAL.requires(
        "local.batch-changes",
        "data.batch_size",
        lambda batch_size: batch_size.is_constant,
        "data.batch_size: with local steps it cannot change with the step; set data.batch_size={0.least}",
    ),
    _LOCAL.requires(
        "local.contribution",
        "contribution.name",
        "gradient",
        "contribution: with local steps a shard contributes no gradient for {0}; leave contribution out",
    ),
    _LOCAL.requires(
        "local.run-epochs",
        "run.epochs",
        None,
        "run.epochs: with local steps a step of the run is a round; set run.steps, the number of rounds",
    ),
    *map(_in_steps, SPANS),
)
