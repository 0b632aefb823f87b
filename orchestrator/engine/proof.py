"""Admission by proof (rule B4): a worker shows that it computes the bits of the others before it may take part.

Each proof computes batch 0, then batch 1, then batch 0 again, where a pipeline that keeps state would betray itself. For the
same reason the pipeline is asked for its metrics before anything is trained.
"""

from __future__ import annotations

import hashlib
import struct
import sys

from orchestrator.engine import evaluation
from orchestrator.engine.replica import Replica
from orchestrator.engine.work import Work
from orchestrator.errors import Inconsistent, OrchestratorError, PipelineRaised
from orchestrator.numerics.digests import update


def reference(work: Work, replica: Replica) -> str:
    """A digest of the gradient of the first micro-batch. Raises Inconsistent; PipelineRaised for what may not be changed or
    used, and for a fault in the metrics."""
    compiled = _compiled()
    first, *_, last = prints = [_fingerprint(work, replica, shard) for shard in (0, 1, 0)]
    if last != first:
        raise Inconsistent(
            "micro-batch (step 0, shard 0) came out differently when it was computed again behind another one",
            "a pipeline must keep no state between batches and draw randomness only from torch, numpy or random",
        )
    if None not in prints:  # else the step's own words come first
        _prove_metrics(work, replica)
    if _compiled() != compiled:
        raise PipelineRaised(
            "a part of the pipeline was compiled while a batch was computed",
            "leave torch.compile out: its kernels are not checked for exactness",
        )
    return first or ""


def _fingerprint(work: Work, replica: Replica, shard: int) -> str | None:
    """Of all that micro-batch (step 0, shard) would put into the sum; None where it fails, as its step will. Raises
    PipelineRaised where it changes what has to stay."""
    replica.begin_shard()
    digest = hashlib.sha256()
    try:
        computed = work.loss(0, shard) if shard < work.order.shards else None
        tensors = replica.contribution() if computed is not None else []
    except OrchestratorError:
        replica.begin_shard()
        return None
    replica.check_unchanged()
    for slot, tensor in zip(replica.layout.slots, tensors, strict=False):
        if tensor is not None:
            update(digest, slot.name, tensor)
    replica.begin_shard()
    return digest.hexdigest()


def _prove_metrics(work: Work, replica: Replica) -> None:
    """Raises PipelineRaised, also where training would come first; Inconsistent."""
    told = [_evaluated(work, replica, batch) for batch in (0, 1, 0) if batch < len(work.evaluation_batches)]
    if told and told[-1] != told[0]:
        name = min(told[-1].items() ^ told[0].items())[0]
        raise Inconsistent(
            f"{name} of validation batch 0 came out differently when it was computed again behind another one",
            "metrics() returns the means over its own batch (they are put together here), and keeps nothing between batches; "
            "a validation set draws randomness only from torch, numpy or random",
        )


def _evaluated(work: Work, replica: Replica, batch: int) -> dict[str, bytes]:
    results = evaluation.compute(work, replica, [batch], len(work.evaluation_batches), -1, lambda: None)
    if results.fault is not None:
        raise results.fault[1]
    names, values = ["loss", "weight", "rows", *(results.names or [])], results.rows[batch]
    return {name: struct.pack("<d", value) for name, value in zip(names, values, strict=True)}


def _compiled() -> int:
    """How many pieces of code torch has compiled in this process. To import its compiler takes seconds, so it is not."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return 0 if compiler is None else compiler.counters["frames"]["total"]
