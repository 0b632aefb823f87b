"""Rules for workers that check each other (`check.every`): each refusal with its remedy."""

from __future__ import annotations

from typing import Any

from orchestrator.config.settings.rules.rule import Case, Rule

_CHECKS = Case(("check.every",), lambda every: every is not None)


def _require(code: str, key: str, fit: Any, because: str, instead: str) -> Rule:
    return _CHECKS.requires(code, key, fit, f"check.every: {because}; set {instead}, or leave check.every out")


RULES: tuple[Rule, ...] = (
    _require(
        "check.sync",
        "sync.name",
        "bsp",
        "under sync={0} each replica is another one, so no other worker has its answer",
        "sync=bsp",
    ),
    _require(
        "check.stages",
        "cluster.stages",
        1,
        "a worker with a stage of the model cannot compute a micro-batch alone",
        "cluster.stages=1",
    ),
    _require(
        "check.clipping",
        "privacy.clipping_norm",
        None,
        "with privacy.clipping_norm nothing is told of what a single shard contributes",
        "privacy.clipping_norm=null",
    ),
    _require(
        "check.sites",
        "data.sites",
        lambda sites: not sites,
        "with data.sites nobody else may read a shard's samples",
        "data.sites={{}}",
    ),
)
