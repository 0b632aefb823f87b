"""Admission by proof (rule B4): a worker shows that it computes the bits of the others before it may take part."""

from __future__ import annotations

import hashlib

from orchestrator.engine.replica import Replica
from orchestrator.engine.work import Work
from orchestrator.errors import Inconsistent, OrchestratorError
from orchestrator.numerics.digests import update


def reference(work: Work, replica: Replica) -> str:
    """A digest of the gradient of the first micro-batch. Computed again behind the second one, where a pipeline that keeps
    state would betray itself. Raises Inconsistent."""
    first = _fingerprint(work, replica, 0)
    _fingerprint(work, replica, 1)
    if _fingerprint(work, replica, 0) != first:
        raise Inconsistent(
            "micro-batch (step 0, shard 0) came out differently when it was computed again behind another one",
            "a pipeline must keep no state between batches and draw randomness only from torch, numpy or random",
        )
    return first


def _fingerprint(work: Work, replica: Replica, shard: int) -> str:
    """Of all that micro-batch (step 0, shard) would put into the sum; empty where it has nothing or fails, as its step will.
    Raises PipelineRaised where it changes what has to stay."""
    replica.begin_shard()
    digest = hashlib.sha256()
    try:
        computed = work.loss(0, shard) if shard < work.order.shards else None
        tensors = replica.contribution() if computed is not None else []
    except OrchestratorError:
        tensors = []
    replica.check_unchanged()
    for slot, tensor in zip(replica.layout.slots, tensors, strict=False):
        if tensor is not None:
            update(digest, slot.name, tensor)
    replica.begin_shard()
    return digest.hexdigest()
