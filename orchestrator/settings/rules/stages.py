"""What goes with a model that is cut into stages (`cluster.stages` above 1), and what does not: each refusal with its remedy.

What it does not do: look at the model, at the pipeline, or at variants of the user's own (`driver.record.preflight`).
"""

from __future__ import annotations

from orchestrator.pipeline_orders.orders import PIPELINING
from orchestrator.settings.rules.rule import Rule
from orchestrator.settings.sections import BY_MEMORY, OrderSettings
from orchestrator.synchrony import SYNCHRONY
from orchestrator.table import is_reference
from orchestrator.topologies import TOPOLOGIES
from orchestrator.values import Workers


def _workers(workers: Workers, auto: tuple[str, ...], stages: int) -> str | None:
    if workers.start >= stages or "cluster.workers" in auto:  # which is no number yet, and is refused as that
        return None
    return (
        f"cluster.workers: {workers.start} worker{'s' * (workers.start > 1)} for {stages} stages; a worker hosts one stage: "
        f"raise it to {stages} or more, or lower cluster.stages"
    )


def _recompute(recompute: bool, auto: tuple[str, ...], stages: int) -> str | None:
    if not recompute or _may_be_cut(stages, auto):
        return None
    return "run.recompute: it counts for a model in stages only; set cluster.stages to 2 or more, or leave it out"


def _pipeline(name: str, auto: tuple[str, ...], stages: int) -> str | None:
    is_known = name in PIPELINING or is_reference(name)
    if name == OrderSettings().name or not is_known or _may_be_cut(stages, auto):
        return None
    return (
        f"cluster.pipeline: the order {name} counts for a model in stages only; set cluster.stages to 2 or more, or leave it "
        f"out (cluster.pipeline={OrderSettings().name})"
    )


def _may_be_cut(stages: int, auto: tuple[str, ...]) -> bool:
    return stages > 1 or BY_MEMORY in auto


def _topology(name: str, stages: int) -> str | None:
    if stages == 1 or name not in TOPOLOGIES or "servers" not in TOPOLOGIES.options(name):
        return None
    return _unfit("topology", name, "a stage is added up by the workers that host it, without servers", "topology=ring")


def _sync(name: str, stages: int) -> str | None:
    if stages == 1 or name not in SYNCHRONY or name == "bsp":
        return None
    return _unfit("sync", name, "all stages of a model take a step together", "sync=bsp")


def _local(steps: int | None, epochs: int | None, stages: int) -> str | None:
    if stages == 1 or (steps is None and epochs is None):
        return None
    return "local: with cluster.stages no worker has a whole model to train by itself; leave local out, or set cluster.stages=1"


def _compression(name: str, stages: int) -> str | None:
    if stages == 1 or name == "none":
        return None
    return _unfit("compression", name, "a worker has a gradient of its stage only", "compression=none")


def _contribution(name: str, stages: int) -> str | None:
    if stages == 1 or name == "gradient":
        return None
    return _unfit("contribution", name, "a worker has a gradient of its stage only", "contribution=gradient")


def _privacy(norm: float | None, stages: int) -> str | None:
    if stages == 1 or norm is None:
        return None
    because = "no worker has a whole contribution to clip"
    return _unfit("privacy.clipping_norm", f"{norm:g}", because, "privacy.clipping_norm=null")


def _reduction(reduction: str, stages: int) -> str | None:
    if stages == 1 or reduction == "exact":
        return None
    return _unfit("reduction", reduction, "a stage's gradient is added up exactly", "reduction=exact")


def _device(device: str, stages: int) -> str | None:
    if stages == 1 or device == "cpu":
        return None
    return _unfit("run.device", device, "activations travel between CPUs", "run.device=cpu")


def _gpus(gpus: float, stages: int) -> str | None:
    if stages == 1 or gpus == 0:
        return None
    return _unfit("cluster.gpus_per_worker", f"{gpus:g}", "stages are computed on CPUs", "cluster.gpus_per_worker=0")


def _optimizer(name: str | None, stages: int) -> str | None:
    if stages == 1 or name is None or not is_reference(name):
        return None
    because = "an optimizer of your own may look at all parameters"
    return _unfit("optimizer", name, because, "one of torch's, as optimizer=adamw")


def _unfit(key: str, value: str, because: str, instead: str) -> str:
    return f"{key}: with cluster.stages {because}, so {value} is not on offer; set {instead}, or cluster.stages=1"


RULES: tuple[Rule, ...] = tuple(
    Rule((*keys, "cluster.stages"), broken)
    for keys, broken in (
        (("cluster.workers", "tuning.auto"), _workers),
        (("run.recompute", "tuning.auto"), _recompute),
        (("cluster.pipeline.name", "tuning.auto"), _pipeline),
        (("topology.name",), _topology),
        (("sync.name",), _sync),
        (("local.steps", "local.epochs"), _local),
        (("compression.name",), _compression),
        (("contribution.name",), _contribution),
        (("privacy.clipping_norm",), _privacy),
        (("reduction",), _reduction),
        (("run.device",), _device),
        (("cluster.gpus_per_worker",), _gpus),
        (("optimizer.name",), _optimizer),
    )
)
