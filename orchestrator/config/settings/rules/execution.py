"""Rules for workers, devices and arithmetic: each refusal with its remedy."""

from __future__ import annotations

from typing import Any

from orchestrator.comm.topologies import TOPOLOGIES, asks_for_nodes
from orchestrator.common.values import Workers
from orchestrator.config.settings.rules.rule import Case, Rule
from orchestrator.config.settings.sections import BY_MEMORY
from orchestrator.optim.compressions import COMPRESSIONS

_LEAST_OF_A_GPU = 0.0001
_PORTABLE = Case(("run.arithmetic",), lambda arithmetic: arithmetic == "portable")


def _too_many_workers(workers: Workers, shards: int, stages: int) -> str:
    return (
        f"cluster.workers: {workers.most} workers for {shards} shards{f' in each of {stages} stages' * (stages > 1)}; a worker "
        "hosts at least one shard: lower cluster.workers or raise data.shards (which changes the result)"
    )


def _measured(auto: tuple[str, ...]) -> list[str]:
    return [key for key in auto if key != BY_MEMORY]


def _not_measured(code: str, key: str, fit: Any, why: str) -> Rule:
    """A rule for a key that a launch cannot choose by measuring layouts. why: with the value in it."""
    case = Case(("tuning.auto",), _measured)
    return case.requires(code, key, fit, lambda value, auto: f"{' and '.join(_measured(auto))}: {why.format(value)}")


def _layout_of_fast(auto: tuple[str, ...], _: str) -> str:
    return (
        f"{' and '.join(_measured(auto))}: with reduction=fast the layout determines the result, and a measurement may not; "
        "give it, or set reduction=exact"
    )


_KEEPING = {*COMPRESSIONS} - {"none"}  # unless told otherwise


def _keeps(compression: str, feedback: bool | None) -> bool:
    return compression in _KEEPING and feedback is not False


_CLAIMS = Case(("cluster.claims",), lambda claims: claims is True)


def _claims_require(code: str, key: str, fit: Any, because: str, instead: str) -> Rule:
    def sentence(value: Any, _: bool) -> str:
        return f"cluster.claims: {because.format(value)}; set {instead}, or leave cluster.claims out"

    return _CLAIMS.requires(code, key, fit, sentence)


RULES: tuple[Rule, ...] = (
    Rule(
        "worker.more-than-shards",
        ("cluster.workers", "data.shards", "cluster.stages"),
        lambda workers, shards, stages: workers.most > shards * stages,
        _too_many_workers,
    ),
    Rule(
        "worker.range-with-fast",
        ("cluster.workers", "reduction"),
        lambda workers, reduction: reduction == "fast" and workers.start != workers.most,
        "cluster.workers: reduction=fast adds up in the order of the layout, so a range of workers would give any of several "
        "results; give a number of workers, or reduction=exact",
    ),
    Rule(
        "topology.fast-layout",
        ("topology.name", "reduction"),
        lambda name, reduction: reduction == "fast" and name in TOPOLOGIES and asks_for_nodes(name),
        "topology: with reduction=fast the layout determines the result, and that of {} depends on which workers share a host; "
        "set reduction=exact, or topology=ring",
    ),
    Rule(
        "tuning.fast-layout",
        ("tuning.auto", "reduction"),
        lambda auto, reduction: reduction == "fast" and not {*_measured(auto)} <= {"data.loaders"},
        _layout_of_fast,
    ),
    _not_measured(
        "tuning.sync",
        "sync.name",
        "bsp",
        "measuring chooses the layout of lockstep, not of sync={}; give it",
    ),
    _not_measured(
        "tuning.stages",
        "cluster.stages",
        1,
        "measuring chooses the layout of whole models; give it, or leave cluster.stages out",
    ),
    _not_measured(
        "tuning.compression",
        "compression.name",
        "none",
        "measuring chooses the layout of dense sums, not of compression={}; give it",
    ),
    _not_measured(
        "tuning.noise", "privacy.noise_multiplier", 0, "a measurement would train with the noise of the run; give it"
    ),
    Rule(
        "ray.metrics-of-joined",
        ("tracking.metrics_port", "cluster.address"),
        lambda port, address: port is not None and address is not None,
        "tracking.metrics_port: the Ray at {1} shows metrics at its own port (ray start --metrics-export-port); leave "
        "tracking.metrics_port out",
    ),
    Case(("transport.tls",), bool).requires(
        "transport.tls-in-memory",
        "transport.name",
        lambda name: name != "shared_memory",
        "transport.tls: with transport=shared_memory nothing travels that could be encrypted; leave transport.tls out, or set "
        "transport=auto",
    ),
    Case(("run.device",), lambda device: device == "cuda").requires(
        "gpu.none-for-workers",
        "cluster.gpus_per_worker",
        lambda gpus: gpus > 0,
        "run.device: with cluster.gpus_per_worker=0 all GPUs are hidden from the workers; set cluster.gpus_per_worker=1, or "
        "less where workers are to share one",
    ),
    Rule(
        "gpu.part-of-several",
        ("cluster.gpus_per_worker",),
        lambda gpus: gpus > 1 and not float(gpus).is_integer(),
        "cluster.gpus_per_worker: Ray gives a worker a part of one GPU or several whole ones, not {0:g}; set 1, or less than 1 "
        "where workers are to share one",
    ),
    Rule(
        "gpu.part-too-small",
        ("cluster.gpus_per_worker",),
        lambda gpus: 0 < gpus < _LEAST_OF_A_GPU,
        "cluster.gpus_per_worker: Ray counts GPUs in ten-thousandths, and {0:g} is less; set 0.0001 or more",
    ),
    Rule(
        "gpu.type-without-gpus",
        ("cluster.accelerator_type", "cluster.gpus_per_worker"),
        lambda kind, gpus: kind is not None and gpus == 0,
        "cluster.accelerator_type: with cluster.gpus_per_worker=0 workers have no GPU, and so none of type {0}; set "
        "cluster.gpus_per_worker=1, or leave cluster.accelerator_type out",
    ),
    Case(("run.device",), lambda device: device == "cuda").is_required_by(
        "gpu.limit-on-cpu",
        "cluster.gpu_gb",
        None,
        "cluster.gpu_gb: with run.device=cpu no worker takes memory of a GPU; set run.device=cuda, or leave cluster.gpu_gb out",
    ),
    Case(("run.device",), lambda device: device == "cuda").is_required_by(
        "gpu.tf32-on-cpu",
        "run.tf32",
        False,
        "run.tf32: only GPUs have TF32; set run.device=cuda, or leave run.tf32 out",
    ),
    _PORTABLE.requires(
        "portable.on-gpu",
        "run.device",
        "cpu",
        "run.arithmetic: portable is for CPUs, whose operators are known; set run.device=cpu, or run.arithmetic=native",
    ),
    _PORTABLE.requires(
        "portable.threads",
        "run.threads",
        1,
        "run.threads: portable is known for one thread, as torch divides sums among more of them (docs/portable.md); set "
        "run.threads=1 and cluster.workers higher, which changes no bit",
    ),
    Case(("run.compile",), bool).requires(
        "portable.compile",
        "run.arithmetic",
        "native",
        "run.compile: the compiler's kernels are made for one processor, so nobody knows their bits on others; set "
        "run.arithmetic=native, or leave run.compile out",
    ),
    _claims_require(
        "claims.sync",
        "sync.name",
        "bsp",
        "shards are claimed step by step, and under sync={} each has its own pace",
        "sync=bsp",
    ),
    _claims_require(
        "claims.stages", "cluster.stages", 1, "a stage of a model is not on every worker", "cluster.stages=1"
    ),
    _claims_require(
        "claims.fast",
        "reduction",
        "exact",
        "reduction=fast adds up in the order of the layout, which claims change",
        "reduction=exact",
    ),
    _claims_require(
        "claims.tcp", "transport.name", lambda name: name != "tcp", "workers claim in shared memory", "transport=auto"
    ),
    _claims_require(
        "claims.clipping",
        "privacy.clipping_norm",
        None,
        "with privacy.clipping_norm it is fixed who computes whom",
        "privacy.clipping_norm=null",
    ),
    Rule(
        "claims.feedback",
        ("cluster.claims", "compression.name", "compression.error_feedback"),
        lambda claims, compression, feedback: claims is True and _keeps(compression, feedback),
        "cluster.claims: with compression={1} a shard keeps on its worker what was left out; set compression.error_feedback="
        "false, which changes the result, or leave cluster.claims out",
    ),
    Rule(
        "check.feedback",
        ("check.every", "compression.name", "compression.error_feedback"),
        lambda every, compression, feedback: every is not None and _keeps(compression, feedback),
        "check.every: with compression={1} a shard keeps on its worker what was left out, so no other one can compute it; set "
        "compression.error_feedback=false, which changes the result, or leave check.every out",
    ),
)
