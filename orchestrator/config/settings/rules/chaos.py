"""Rules for a run that is disturbed on purpose (`chaos`): each refusal with its remedy."""

from __future__ import annotations

from orchestrator.common.values import Every, Workers
from orchestrator.config.settings.rules.rule import Rule


def _alone(every: Every | None, workers: Workers, stages: int, kinds: tuple[str, ...]) -> bool:
    return every is not None and "kill" in kinds and workers.start < 2 * stages


def _lost(_: Every, workers: Workers, stages: int, kinds: tuple[str, ...]) -> str:  # noqa: ARG001
    alone = "a stage has one worker" if stages > 1 else "there is one worker"
    return (
        f"chaos.kinds: {alone}, and all steps since the last checkpoint would be lost with it; set cluster.workers="
        f"{2 * stages} or more, chaos.kinds=[pause], or chaos.every=null for no faults, as in a rerun"
    )


RULES: tuple[Rule, ...] = (
    Rule("chaos.alone", ("chaos.every", "cluster.workers", "cluster.stages", "chaos.kinds"), _alone, _lost),
)
