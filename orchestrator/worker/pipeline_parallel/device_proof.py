"""The first micro-batch on the device of a run, stage by stage: one stage at a time is there. A worker shows so what its
device computes (rule B4), though the whole model may be larger than that. The micro-batch is computed again after another one.

Activations go through all stages first. Then each stage is computed once more, just before its backward pass. In between all
is in host memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from orchestrator.checkpoint.state import digest as digest_of
from orchestrator.common import nondeterministic
from orchestrator.errors import Inconsistent, OrchestratorError
from orchestrator.numerics.staging import Direct, Staging
from orchestrator.worker.model.calls import Call
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.pipeline_parallel.border_values import Activations, BorderValue, Generators, Gradients, placed
from orchestrator.worker.pipeline_parallel.cuts import Cuts
from orchestrator.worker.pipeline_parallel.replay import Stage


def fingerprint(workload: PipelineAdapter, replica: Replica, cuts: Cuts, staging: Staging) -> str:
    """The fingerprint of the loss, the gradients and the buffers as each stage leaves them, twice, with another micro-batch
    in between. Empty where the micro-batch has no rows, weighs nothing or fails, as its step will. The model is in host
    memory, and is left as it was. Raises PipelineRaised where the device failed of it;
    Inconsistent where it gives other bits the second time."""
    shards = [*range(min(2, workload.samples.order.shards)), 0]
    first, *_, again = (_digests(workload, replica, cuts, staging, shard) for shard in shards)
    differing = next((name for name, bits in first.items() if again.get(name) != bits), None)
    if differing is not None:
        raise Inconsistent(
            f"micro-batch (step 0, shard 0) came out differently when the device computed it again, stage by stage: the first "
            f"to differ is {differing}",
            f"cluster.stages=1 with a smaller model names the operation; {nondeterministic.GENERAL}",
            code="stages.not-repeatable",
        )
    return hashlib.sha256(repr(sorted(first.items())).encode()).hexdigest() if first else ""


def _digests(workload: PipelineAdapter, replica: Replica, cuts: Cuts, staging: Staging, shard: int) -> dict[str, str]:
    """In the order in which they are there; none where there is no fingerprint."""
    replica.begin_shard()
    workload.compute_on(staging)
    try:
        if not workload.batches.rows(0, shard):
            return {}
        with workload.call(0, shard) as call:
            return _OneByOne(workload, replica, cuts, staging).digests(call, takes=shard == 0)
    except OrchestratorError as error:
        if isinstance(error.__context__, torch.AcceleratorError):
            raise
        return {}
    finally:
        workload.compute_on(Direct())
        replica.begin_shard()


class _OneByOne:
    """The stages of a model that is in host memory."""

    def __init__(self, workload: PipelineAdapter, replica: Replica, cuts: Cuts, staging: Staging) -> None:
        self._workload, self._cuts, self._staging = workload, cuts, staging
        self._offsets = {slot.name: slot.offset for slot in replica.layout.slots}

    def digests(self, call: Call, *, takes: bool) -> dict[str, str]:
        """Digests of what this device computes, stage by stage. takes: whether they are taken, beside that of the loss."""
        seeded, by_name = Generators.now(), dict[str, str]()
        arrived = self._arrived(call, seeded)
        gradients: Gradients | None = None
        for index in reversed(range(self._cuts.stages)):
            with self._on_device(index) as stage:
                seeded.restore()
                record, _, value = stage.forward(call.make, "training", arrived[index])
                if gradients is None:
                    judged = call.judged(value)
                    if judged is None:
                        return {}
                    record = record._replace(roots=[judged[0]])
                    by_name["the loss"] = judged[1].hex()
                else:
                    gradients.generators.restore()
                back = stage.backward(record, gradients, {})
                gradients = Gradients(_in_host_memory(back), Generators.now())
                for name, tensor in sorted(stage.held.items()) if takes else ():
                    value_left = tensor.grad if isinstance(tensor, torch.nn.Parameter) else tensor
                    if value_left is not None:
                        kind = "the gradient of" if value_left is not tensor else "buffer"
                        by_name[f"{kind} {name} (stage {index})"] = digest_of(value_left)
        return by_name

    def _arrived(self, call: Call, seeded: Generators) -> list[Activations | None]:
        """The activations that come to each stage."""
        arrived: list[Activations | None] = [None]
        for index in range(self._cuts.stages - 1):
            with self._on_device(index) as stage:
                seeded.restore()
                leaves = stage.forward(call.make, "training", arrived[-1]).leaves
            assert leaves is not None, "a stage that is not the last one hands on"
            values = [value for value in _in_host_memory(leaves.border_values) if value is not None]
            arrived.append(replace(leaves, border_values=values))
        return arrived

    @contextmanager
    def _on_device(self, index: int) -> Iterator[Stage]:
        """Within the block this stage is on the device."""
        stage = Stage(self._workload.model, self._cuts, index, self._staging)
        here = {name: tensor.data for name, tensor in stage.held.items()}
        try:
            for name, tensor in stage.held.items():
                tensor.data = placed(tensor.data, self._offsets.get(name, 0), self._staging)
            with stage.hosting():
                yield stage
        finally:
            for name, tensor in stage.held.items():
                tensor.grad = None
                tensor.data = here[name]
            stage.close()


def _in_host_memory(values: Sequence[BorderValue | None]) -> list[BorderValue | None]:
    return [None if value is None else value._replace(data=value.data.cpu()) for value in values]
