"""Rules for a model that is cut into stages (`cluster.stages` above 1): each refusal with its remedy.

They look neither at the model nor at the pipeline. A topology and a mode of the user's own are known once they are imported;
then `driver.preflight` holds the settings to the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.comm.synchronization import SYNCHRONY
from orchestrator.comm.topologies import TOPOLOGIES
from orchestrator.common.registry import is_reference
from orchestrator.common.values import Workers
from orchestrator.config.settings.rules.rule import Case, Rule

_STAGES = Case(("cluster.stages",), lambda stages: stages > 1)


def _requires(code: str, key: str, fit: Any, because: str, instead: str, shown: str = "{0}") -> Rule:
    sentence = f"with cluster.stages {because}, so {shown} is not on offer; set {instead}, or cluster.stages=1"
    return _STAGES.requires(code, key, fit, f"{key.removesuffix('.name')}: {sentence}")


def _too_few_workers(workers: Workers, stages: int) -> str:
    return (
        f"cluster.workers: {workers.start} worker{'s' * (workers.start > 1)} for {stages} stages; a worker hosts one stage: "
        f"raise it to {stages} or more, or lower cluster.stages"
    )


def without_servers(has_servers: Callable[[str], bool]) -> Rule:
    """The rule that stages have no servers. has_servers: of the topology with this name."""
    return _requires(
        "stages.topology",
        "topology.name",
        lambda name: not has_servers(name),
        "a stage is added up by the workers that host it, without servers",
        "topology=ring",
    )


def in_lockstep(is_free: Callable[[str], bool]) -> Rule:
    """The rule that stages take each step together. is_free: whether replicas run free in the mode with this name."""
    return _requires(
        "stages.sync",
        "sync.name",
        lambda name: not is_free(name),
        "all stages of a model take a step together",
        "sync=bsp",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "stages.workers",
        ("cluster.workers", "tuning.auto", "cluster.stages"),
        lambda workers, auto, stages: (
            workers.start < stages and "cluster.workers" not in auto
        ),  # refused as no number yet
        lambda workers, _, stages: _too_few_workers(workers, stages),
    ),
    without_servers(lambda name: name in TOPOLOGIES and "servers" in TOPOLOGIES.options(name)),
    in_lockstep(lambda name: name in SYNCHRONY and name != "bsp"),
    Rule(
        "stages.local-steps",
        ("local.steps", "local.epochs", "cluster.stages"),
        lambda steps, epochs, stages: stages > 1 and (steps or epochs),
        "local: with cluster.stages no worker has a whole model to train by itself; leave local out, or set cluster.stages=1",
    ),
    _requires(
        "stages.compression",
        "compression.name",
        "none",
        "a worker has a gradient of its stage only",
        "compression=none",
    ),
    _requires(
        "stages.contribution",
        "contribution.name",
        "gradient",
        "a worker has a gradient of its stage only",
        "contribution=gradient",
    ),
    _requires(
        "stages.clipping",
        "privacy.clipping_norm",
        None,
        "no worker has a whole contribution to clip",
        "privacy.clipping_norm=null",
        shown="{0:g}",
    ),
    _requires("stages.fast", "reduction", "exact", "a stage's gradient is added up exactly", "reduction=exact"),
    _requires(
        "stages.compile",
        "run.compile",
        False,
        "a worker computes a part of the model, which is not found in compiled code",
        "run.compile=false",
        shown="true",
    ),
    _requires(
        "stages.optimizer",
        "optimizer.name",
        lambda name: name is None or not is_reference(name),
        "an optimizer of your own may look at all parameters",
        "one of torch's, as optimizer=adamw",
    ),
)
