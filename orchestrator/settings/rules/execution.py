"""What goes together of workers, devices and arithmetic, and what does not: each refusal with its remedy."""

from __future__ import annotations

from orchestrator.settings.rules.rule import Rule
from orchestrator.settings.sections import BY_MEMORY
from orchestrator.values import Workers


def _workers_have_shards(workers: Workers, shards: int, number_of_stages: int) -> str | None:
    if workers.most <= shards * number_of_stages:
        return None
    if number_of_stages > 1:
        return (
            f"cluster.workers: {workers.most} workers for {shards} shards in each of {number_of_stages} stages; a worker hosts "
            "at least one shard: lower cluster.workers or raise data.shards (which changes the result)"
        )
    return (
        f"cluster.workers: {workers.most} workers for {shards} shards; a worker hosts at least one shard: "
        "lower cluster.workers or raise data.shards (which changes the result)"
    )


def _unfit_for_tuning(
    auto: tuple[str, ...], reduction: str, sync: str, number_of_stages: int, compression: str, multiplier: float
) -> str | None:
    measured = [key for key in auto if key != BY_MEMORY]
    if not measured:
        return None
    keys = " and ".join(measured)
    if reduction == "fast" and set(measured) != {"data.loaders"}:
        return (
            f"{keys}: with reduction=fast the layout determines the result, and a measurement may not; give it, or set "
            "reduction=exact"
        )
    if sync != "bsp":
        return f"{keys}: what is chosen by measuring is the layout of lockstep, not of sync={sync}; give it"
    if number_of_stages > 1:
        return (
            f"{keys}: what is chosen by measuring is the layout of whole models; give it, or leave cluster.stages out"
        )
    if compression != "none":
        return f"{keys}: what is chosen by measuring is the layout of dense sums, not of compression={compression}; give it"
    if multiplier:
        return f"{keys}: a measurement would train with the noise of the run; give it"
    return None


def _fast_needs_a_number(reduction: str, workers: Workers) -> str | None:
    if reduction == "exact" or workers.start == workers.most:
        return None
    return (
        "cluster.workers: reduction=fast adds up in the order of the layout, so a range of workers would give any of several "
        "results; give a number of workers, or reduction=exact"
    )


def _cuda_needs_gpus(device: str, gpus: float) -> str | None:
    if device == "cpu" or gpus > 0:
        return None
    return (
        "run.device: with cluster.gpus_per_worker=0 all GPUs are hidden from the workers; set cluster.gpus_per_worker=1, or "
        "less where workers are to share one"
    )


def _tf32_needs_cuda(tf32: object, device: str) -> str | None:
    if not tf32 or device == "cuda":
        return None
    return "run.tf32: only GPUs have TF32; set run.device=cuda, or leave run.tf32 out"


def _portable_needs_cpu(arithmetic: str, device: str) -> str | None:
    if arithmetic == "native" or device == "cpu":
        return None
    return (
        "run.arithmetic: portable is for CPUs, whose operators are known; set run.device=cpu, or run.arithmetic=native"
    )


def _portable_needs_one_thread(arithmetic: str, threads: int) -> str | None:
    if arithmetic == "native" or threads == 1:
        return None
    return (
        "run.threads: portable is known for one thread, as torch divides sums among more of them (docs/portable.md); set "
        "run.threads=1 and cluster.workers higher, which changes no bit"
    )


RULES: tuple[Rule, ...] = (
    Rule(("cluster.workers", "data.shards", "cluster.stages"), _workers_have_shards),
    Rule(("reduction", "cluster.workers"), _fast_needs_a_number),
    Rule(
        ("tuning.auto", "reduction", "sync.name", "cluster.stages", "compression.name", "privacy.noise_multiplier"),
        _unfit_for_tuning,
    ),
    Rule(("run.device", "cluster.gpus_per_worker"), _cuda_needs_gpus),
    Rule(("run.tf32", "run.device"), _tf32_needs_cuda),
    Rule(("run.arithmetic", "run.device"), _portable_needs_cpu),
    Rule(("run.arithmetic", "run.threads"), _portable_needs_one_thread),
)
