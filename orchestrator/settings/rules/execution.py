"""What goes together of workers, devices and arithmetic, and what does not: each refusal with its remedy."""

from __future__ import annotations

from typing import Any

from orchestrator.settings.rules.rule import Case, Rule
from orchestrator.settings.sections import BY_MEMORY
from orchestrator.values import Workers

_PORTABLE = Case(("run.arithmetic",), lambda arithmetic: arithmetic == "portable")


def _too_many_workers(workers: Workers, shards: int, stages: int) -> str:
    return (
        f"cluster.workers: {workers.most} workers for {shards} shards{f' in each of {stages} stages' * (stages > 1)}; a worker "
        "hosts at least one shard: lower cluster.workers or raise data.shards (which changes the result)"
    )


def _measured(auto: tuple[str, ...]) -> list[str]:
    return [key for key in auto if key != BY_MEMORY]


def _not_measured(key: str, fit: Any, why: str) -> Rule:
    """What a launch cannot choose by measuring layouts. why: with the value in it."""
    case = Case(("tuning.auto",), _measured)
    return case.requires(key, fit, lambda value, auto: f"{' and '.join(_measured(auto))}: {why.format(value)}")


def _layout_of_fast(auto: tuple[str, ...], _: str) -> str:
    return (
        f"{' and '.join(_measured(auto))}: with reduction=fast the layout determines the result, and a measurement may not; "
        "give it, or set reduction=exact"
    )


RULES: tuple[Rule, ...] = (
    Rule(
        ("cluster.workers", "data.shards", "cluster.stages"),
        lambda workers, shards, stages: workers.most > shards * stages,
        _too_many_workers,
    ),
    Rule(
        ("cluster.workers", "reduction"),
        lambda workers, reduction: reduction == "fast" and workers.start != workers.most,
        "cluster.workers: reduction=fast adds up in the order of the layout, so a range of workers would give any of several "
        "results; give a number of workers, or reduction=exact",
    ),
    Rule(
        ("tuning.auto", "reduction"),
        lambda auto, reduction: reduction == "fast" and not {*_measured(auto)} <= {"data.loaders"},
        _layout_of_fast,
    ),
    _not_measured("sync.name", "bsp", "what is chosen by measuring is the layout of lockstep, not of sync={}; give it"),
    _not_measured(
        "cluster.stages",
        1,
        "what is chosen by measuring is the layout of whole models; give it, or leave cluster.stages out",
    ),
    _not_measured(
        "compression.name",
        "none",
        "what is chosen by measuring is the layout of dense sums, not of compression={}; give it",
    ),
    _not_measured("privacy.noise_multiplier", 0, "a measurement would train with the noise of the run; give it"),
    Case(("transport.tls",), bool).requires(
        "transport.name",
        lambda name: name != "shared_memory",
        "transport.tls: with transport=shared_memory nothing travels that could be encrypted; leave transport.tls out, or set "
        "transport=auto",
    ),
    Case(("run.device",), lambda device: device == "cuda").requires(
        "cluster.gpus_per_worker",
        lambda gpus: gpus > 0,
        "run.device: with cluster.gpus_per_worker=0 all GPUs are hidden from the workers; set cluster.gpus_per_worker=1, or "
        "less where workers are to share one",
    ),
    Case(("run.device",), lambda device: device == "cuda").is_required_by(
        "run.tf32", False, "run.tf32: only GPUs have TF32; set run.device=cuda, or leave run.tf32 out"
    ),
    _PORTABLE.requires(
        "run.device",
        "cpu",
        "run.arithmetic: portable is for CPUs, whose operators are known; set run.device=cpu, or run.arithmetic=native",
    ),
    _PORTABLE.requires(
        "run.threads",
        1,
        "run.threads: portable is known for one thread, as torch divides sums among more of them (docs/portable.md); set "
        "run.threads=1 and cluster.workers higher, which changes no bit",
    ),
)
