"""The members of a model in stages between steps: together they evaluate, take digests, and put a checkpoint's values
together.

evaluation   a validation batch goes through the stages as a micro-batch does, forward only: its loss, then its metrics
digest       one member hashes all tensors in the order of their names, whose owners send them piece by piece
saving       everybody tells everybody what its optimizer keeps beside tensors, so that any layout can resume
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from orchestrator.comm.collectives import Exchange
from orchestrator.comm.transports.base import Tag
from orchestrator.errors import OrchestratorError
from orchestrator.numerics import digests
from orchestrator.numerics.byte_layout import bytes_of, of_bytes
from orchestrator.pipeline import defines
from orchestrator.worker.admission import proof
from orchestrator.worker.between_steps import evaluation
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.pipeline_parallel import messages
from orchestrator.worker.pipeline_parallel.border_values import Activations, Generators
from orchestrator.worker.pipeline_parallel.cuts import Way
from orchestrator.worker.pipeline_parallel.links import Links
from orchestrator.worker.pipeline_parallel.replay import Stage
from orchestrator.worker.pipeline_parallel.second_pass import digest_of_leaves
from orchestrator.worker.pipeline_parallel.stage_state import StageState
from orchestrator.worker.step.second_computation import SecondComputation
from orchestrator.worker.step_report import from_words, to_words

_PIECE_BYTES: Final = 4 << 20

Evaluated = tuple[list[str], list[float]]  # as of `PipelineAdapter.evaluate`


class Stages:
    """Implements `worker.between_steps.boundary.Boundary`. `take_on` comes with each generation."""

    def __init__(self, workload: PipelineAdapter, stage: Stage, held: StageState, second: SecondComputation) -> None:
        self._workload = workload
        self._second = second
        self._stage = stage
        self._held = held
        self._has_metrics = defines(type(workload.pipeline), "metrics")
        self._tensors: dict[str, torch.Tensor] = digests.distinct_state(workload.model)
        self._calls = 0

    def take_on(self, links: Links, exchange: Exchange, total_shards: int) -> None:
        self._links = links
        self._exchange = exchange
        self._total_shards = total_shards
        self._calls = 0

    def digest(self) -> str:
        links = self._links
        whole = hashlib.sha256()
        own = self._held.owned
        self._calls += 1
        for number, name in enumerate(sorted(self._tensors)):
            sender = links.groups[self._held.cuts.owners[name]][0]
            if sender == 0 == links.rank:
                digests.update(whole, name, own[name])
            elif links.rank == 0:
                digests.update(whole, name, self._received(name, sender, number))
            elif links.rank == sender:
                self._send(own[name], number)
        words = to_words(whole.digest() if links.rank == 0 else bytes(whole.digest_size))
        vector = torch.tensor(words, dtype=torch.int64)
        agreed = self._exchange.maximum(self._calls, 0, messages.DIGESTED, vector).tolist()
        return from_words(agreed)[: whole.digest_size].hex()

    def tensor_digests(self) -> dict[str, str]:
        whole: dict[str, str] = {}
        for each in self._gather(messages.DIGEST, digests.tensor_digests(self.state())):
            whole.update(each)
        return dict(sorted(whole.items()))

    def evaluate(self, shards: Sequence[int], step: int, beat: evaluation.Beat) -> evaluation.Results:
        links, results = self._links, evaluation.Results(self._workload.summarized)
        links.refresh(self._held)
        model, replica = self._workload.model, self._held.replica
        with evaluation.in_eval_mode(model) as begin_batch, evaluation.restoring(replica):
            for batch in self._workload.evaluation_batches.of(shards, self._total_shards):
                beat()
                begin_batch()
                self._evaluate(step, batch, results)
        return results

    def digested(self) -> None:
        """Other stages have the rest."""

    def begin_save(self, writers: Sequence[int]) -> None:
        part = self.part(writers)
        self._held.begin_save(self._gather(messages.SAVING, self._held.optimizer_values()), part)

    def part(self, writers: Sequence[int]) -> tuple[int, int] | None:
        peers = [rank for rank in writers if self._stage_of(rank) == self._links.stage]
        return (peers.index(self._links.rank), len(peers)) if self._links.rank in peers else None

    def state(self) -> dict[str, torch.Tensor]:
        return {name: self._held.owned[name] for name in self._tensors if name in self._held.owned}

    def unsaved(self) -> dict[str, torch.Tensor]:
        return {}  # nobody asks where a model is in stages

    def _stage_of(self, rank: int) -> int:
        return next(stage for stage, ranks in enumerate(self._links.groups) if rank in ranks)

    def _evaluate(self, step: int, batch: int, results: evaluation.Results) -> None:
        """One batch through this stage. After a fault nothing is computed any more, and all behind are told so."""
        if self._has_metrics and self._held.cuts.draws:
            self._evaluate_in_turn(step, batch, results)
            return
        links = self._links
        shard = batch % self._total_shards
        ways: list[Way] = ["evaluation", "metrics"] if self._has_metrics else ["evaluation"]
        tags = [(step + 1, 2 * batch + number, messages.EVALUATED, shard) for number in range(len(ways))]
        arrived = [links.take_from_before(tag) for tag in tags]
        comes = results.fault is None and all(each is None or each.note for each in arrived)
        leaving: list[Activations | None] = [None] * len(ways)
        seeded: Generators | None = None
        if comes:
            computed = partial(self._computed, step, batch, ways, arrived)
            try:
                expected = self._second.tried_evaluation(step, batch, lambda: _digest(*computed()[1:]))
                self._held.replica.begin_shard()
                seeded, leaving, evaluated = computed()
                if expected is not None:
                    self._second.require_evaluation(expected, step, _digest(leaving, evaluated))
                if evaluated is not None:
                    results.add(batch, *evaluated)
                self._held.replica.check_shard()
                self._held.replica.check_step()
            except OrchestratorError as error:
                results.fault = batch, error
                leaving = [None] * len(ways)
        for tag, leaves in zip(tags, leaving, strict=True):
            links.give_behind(tag, leaves, seeded)

    def _computed(
        self, step: int, batch: int, ways: Sequence[Way], arrived: Sequence[messages.Message | None]
    ) -> tuple[Generators, list[Activations | None], Evaluated | None]:
        """The generators as they are in the beginning, what leaves this stage, and the numbers, in the last one."""
        with self._workload.evaluation(step, batch) as calls:
            seeded = Generators.now()
            leaving, values = self._forward(ways, arrived, calls, seeded)
            evaluated = (
                calls[0].evaluated(values[0], values[1] if self._has_metrics else {}) if self._links.is_last else None
            )
        return seeded, leaving, evaluated

    def _forward(
        self, ways: Sequence[Way], arrived: Sequence[messages.Message | None], calls: Sequence[Any], seeded: Generators
    ) -> tuple[list[Activations | None], list[Any]]:
        """The activations that leave this stage in each way, and its values. All ways but the last leave the generators as
        they were."""
        leaving: list[Activations | None] = []
        values: list[Any] = []
        for number, (way, message) in enumerate(zip(ways, arrived, strict=True)):
            came = None if message is None else messages.activations(message, seeded)
            _, leaves, value = self._stage.forward(calls[number].make, way, came)
            leaving.append(leaves)
            values.append(value)
            if number + 1 < len(ways):
                messages.check_undrawn(seeded)
        return leaving, values

    def _evaluate_in_turn(self, step: int, batch: int, results: evaluation.Results) -> None:
        """The same where the loss draws: metrics go on with the generators as it has left them in the last stage."""
        links, shard, replica = self._links, batch % self._total_shards, self._held.replica
        tags = [(step + 1, 2 * batch + number, messages.EVALUATED, shard) for number in range(2)]
        seeded: Generators | None = None
        drawn: Generators | None = None
        arrived, leaves = links.take_from_before(tags[0]), None
        if results.fault is None and (arrived is None or arrived.note):
            replica.begin_shard()
            try:
                with self._workload.evaluation(step, batch) as calls:
                    seeded = Generators.now()
                    came = None if arrived is None else messages.activations(arrived, seeded)
                    _, leaves, loss = self._stage.forward(calls[0].make, "evaluation", came)
                    drawn = Generators.now()
            except OrchestratorError as error:
                results.fault = batch, error
        links.give_behind(tags[0], leaves, seeded)
        passed = links.after_the_last((step + 1, 2 * batch, messages.DRAWN, shard), drawn, seeded)
        if passed is not None:
            drawn = (
                None if seeded is None or (last := messages.activations(passed, seeded)) is None else last.generators
            )
        arrived, leaves = links.take_from_before(tags[1]), None
        if drawn is not None and results.fault is None and (arrived is None or arrived.note):
            assert seeded is not None
            try:
                with self._workload.evaluation_going_on(step, batch):
                    drawn.restore()
                    came = None if arrived is None else messages.activations(arrived, seeded)
                    _, leaves, metrics = self._stage.forward(calls[1].make, "metrics", came)
                    if links.is_last:
                        results.add(batch, *calls[0].evaluated(loss, metrics))
                replica.check_shard()
                replica.check_step()
            except OrchestratorError as error:
                results.fault = batch, error
                leaves = None
        links.give_behind(tags[1], leaves, seeded)

    def _send(self, tensor: torch.Tensor, number: int) -> None:
        links = self._links
        raw = bytes_of(tensor.cpu())
        for piece, start in enumerate(range(0, raw.numel(), _PIECE_BYTES)):
            tag = Tag(links.wire.generation, self._calls, number, messages.DIGEST, piece)
            links.wire.transport.send(0, tag, raw[start : start + _PIECE_BYTES].clone())
            links.wire.transport.flush(links.wire.timeout_s)

    def _received(self, name: str, sender: int, number: int) -> torch.Tensor:
        links, like = self._links, self._tensors[name]
        with torch._C.DisableTorchFunctionSubclass():
            tensor = torch.empty(tuple(like.size()), dtype=like.dtype)
        raw = bytes_of(tensor)
        for piece, start in enumerate(range(0, raw.numel(), _PIECE_BYTES)):
            tag = Tag(links.wire.generation, self._calls, number, messages.DIGEST, piece)
            raw[start : start + _PIECE_BYTES] = links.wire.transport.receive(sender, tag, links.wire.timeout_s).payload
        return tensor

    def _gather(self, phase: int, values: Mapping[str, Any]) -> list[Any]:
        """The values that each member tells, by rank."""
        self._calls += 1
        payload = of_bytes(json.dumps(values).encode())
        return [json.loads(each.numpy().tobytes()) for each in self._exchange.gather(self._calls, 0, phase, payload)]


def _digest(leaving: Sequence[Activations | None], evaluated: Evaluated | None) -> bytes:
    numbers = b"" if evaluated is None else proof.exact_numbers(*evaluated).encode()
    return b"".join(map(digest_of_leaves, leaving)) + numbers
