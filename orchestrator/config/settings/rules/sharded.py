"""Rules for an update that the workers of a host divide: each refusal with its remedy."""

from __future__ import annotations

from typing import Any, Final

from orchestrator.config.settings.rules.rule import Case, Rule

_SHARDED = Case(("update.sharded",), lambda sharded: sharded)
BY_TENSOR: Final = (
    "adafactor",
    "lamb",
    "lars",
)  # of the table; others are judged by `optim.by_element` as workers prepare


def _require(code: str, key: str, fit: Any, because: str, instead: str) -> Rule:
    return _SHARDED.requires(code, key, fit, f"update.sharded: {because}; set {instead}, or update.sharded=false")


RULES: tuple[Rule, ...] = (
    _require(
        "optimizer.sharded-by-tensor",
        "optimizer.name",
        lambda name: name not in BY_TENSOR,
        "{0} looks at more than one element at a time, so its step cannot be divided",
        "another optimizer, such as adamw",
    ),
    _require(
        "optimizer.sharded-sync", "sync.name", "bsp", "with sync={0} each worker applies updates of its own", "sync=bsp"
    ),
    _require(
        "optimizer.sharded-stages",
        "cluster.stages",
        1,
        "a stage of a model is not on every worker of a host",
        "cluster.stages=1",
    ),
    _require(
        "optimizer.sharded-fast",
        "reduction",
        "exact",
        "with reduction=fast a step that is done again has another gradient",
        "reduction=exact",
    ),
    _require(
        "optimizer.sharded-device",
        "run.device",
        "cpu",
        "workers on one GPU share the speed of its memory, which bounds the update, and a state divided among GPUs is lost "
        "with one that fails (docs/gpu.md); run.device is {0}",
        "run.device=cpu",
    ),
    _require(
        "optimizer.sharded-tcp",
        "transport.name",
        lambda name: name != "tcp",
        "workers that are connected by TCP share no memory",
        "transport=auto",
    ),
)
