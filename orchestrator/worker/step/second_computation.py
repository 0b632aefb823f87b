"""A micro-batch is computed once more now and then, as a worker would that joins at this step.

Admission has computed the first step alone. Code may later change what follows: a layer that is frozen at a step, a memory
behind a warm-up, a copy of the model as it was, weights of classes that an evaluation has found. A worker that joins later, and
a resume, would lack it and go on with other bits. So a micro-batch is computed by the pipeline as it was before this worker's
first step, where an attribute has changed for the first time. It is so in each step up to 8 too, and in four of each doubling
behind, if anything has changed, or if loss is told the step. The same is done with validation batches.

State may also lie where nobody looks, as in a file or a queue. On processors, where code is not replayed from recordings, one
is computed twice at the first step of each doubling from the eighth on, whatever is seen. Four results tell a pipeline that
keeps state from a processor that has flipped a bit: then three are equal, and the step goes on.

Weights of modules outside of the model are looked at alone: these may be large, and code that changes them has state.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch

from orchestrator.errors import Inconsistent, NonFinite, OutOfDeviceMemory, PipelineRaised
from orchestrator.worker.admission import proof, state_detection
from orchestrator.worker.admission.beginning import Beginning
from orchestrator.worker.between_steps import evaluation
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter, Unread
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.step.contribution import Contribution, digest_of

_MOST_TRIED, _MOST_NAMED = 20, 3  # places
_BUFFERS: Final = "a buffer of the model with a rule in buffers()"
_AGREE: Final = 3  # of four results
_UNSEEN_FROM: Final = 8  # the first step in which one is computed twice though nothing is seen to have changed


class Tried(NamedTuple):
    """The result of a second computation. result: which the first one is to have too; changed: the places that were put back;
    again: computes it once more by the pipeline as it is; what: was computed, for messages."""

    result: bytes
    changed: Sequence[str]
    again: Callable[[], bytes]
    what: str


class SecondComputation:
    """Computes micro-batches and validation batches once more: by itself where a worker holds the whole model, or as its
    caller does (`again`)."""

    def __init__(self, workload: PipelineAdapter, replica: Replica) -> None:
        self._workload = workload
        self._replica = replica
        self._beginning: Beginning | None = None
        self._looked = self._tried = 0  # the last steps that the objects were looked at for, and that was tried
        self._evaluated, self._evaluations = -1, 0  # the step behind which the last one was; how many there were
        self._changed: list[str] = []  # places
        self._is_due = False  # in the step that was looked at

    def is_due(self, step: int) -> bool:
        """Whether one of this step is to be computed once more. Raises Inconsistent for weights outside of the model that have
        moved, and for a training set that has grown."""
        beginning = self._beginning = self._beginning or self._begun()
        if step > self._looked:
            self._refuse_moved(beginning, step)
            self._looked = step
            self._is_due = has_more = beginning.has_more()
            if is_scheduled(step):
                self._workload.samples.refuse_another_length(step)
            if has_more or is_scheduled(step):
                self._changed = beginning.changed()
                self._is_due = bool(self._changed) or self._workload.takes_step or self._is_due_unseen(step)
        return self._is_due and step > self._tried

    def _is_due_unseen(self, step: int) -> bool:
        return step >= _UNSEEN_FROM and step & (step - 1) == 0 and not self._replica.staging.answers_late

    def _refuse_moved(self, beginning: Beginning, step: int) -> None:
        name = beginning.moved_weight(wholly=is_scheduled(step))
        if name is not None:
            raise Inconsistent(
                f"before step {step}: {name}, which is no part of the model, has changed since the first step, and a worker "
                "that joins would have its first value",
                state_detection.WITHIN_THE_MODEL,
                code="pipeline.weights-moved",
            )

    def _begun(self) -> Beginning:
        workload = self._workload
        objects = {name: each for name, each in workload.user_objects().items() if name not in state_detection.OF_DATA}
        return Beginning(objects, workload.model, workload.user_modules(), workload.user_modules)

    def expected(
        self, step: int, clock: int, shard: int, read_anew: Callable[[], object] = lambda: None
    ) -> Tried | None:
        """Micro-batch (clock, shard), which goes into no sum, for `compare`; None where that is not due. clock: the step by
        which it is numbered; read_anew: called behind each computation, since a loss may change its batch.

        Gradients are dropped, and buffers are those of the step again. Raises as `PipelineAdapter.loss` does, Inconsistent."""
        if not self.is_due(step) or not self._workload.batches.rows(clock, shard):
            return None
        # A stream has gone on when objects are put back that say where it is.
        self._workload.batches.take_of_stream(clock, shard)
        again = partial(self._computed, clock, shard, read_anew)
        what = f"loss or a gradient of shard {shard}"
        return self.tried(step, again, what, recorded=self._workload.graphs is not None)

    def tried(self, step: int, again: Callable[[], bytes], what: str, *, recorded: bool) -> Tried | None:
        """One of a step in which it is due; None where there is no memory for it. again: computes it, and returns a digest;
        recorded: whether the first one is replayed. Raises as `again` does, Inconsistent."""
        self._tried = step
        changed, beginning = self._changed, self._beginning
        assert beginning is not None

        def result() -> bytes:
            """An error counts as another result where the pipeline is not what it is now."""
            try:
                return again()
            except (PipelineRaised, NonFinite) as error:
                if not changed:
                    raise
                return error.code.encode()

        if not changed and not self._workload.takes_step:
            require_repeated(result, step, what)
            return None
        # There may be no memory for another pass where recordings hold that of one.
        with contextlib.suppress(OutOfDeviceMemory):
            with beginning.restored():
                found = Tried(result(), changed, result, what)
            if changed and recorded:  # a replay follows from no attribute
                self.require(found, step, result())
            return found
        return None

    def compare(
        self,
        expected: Tried | None,
        step: int,
        computed: Unread | None,
        gradients: Callable[[], Sequence[torch.Tensor | None]],
    ) -> None:
        """computed, gradients: of the micro-batch in the step. Raises Inconsistent where they are others."""
        if expected is not None:
            self.require(expected, step, _digest(computed, gradients()))

    def require(self, expected: Tried, step: int, found: bytes) -> None:
        """Raises Inconsistent where something else was found."""
        if expected.result == found:
            return
        self._replica.check_step()  # a parameter that was changed is said by its name
        if expected.changed:
            culprits = self._culprits(expected, found)
            raise Inconsistent(
                f"step {step}: the {expected.what} is another one without the new value of {', '.join(culprits)}, which a "
                "worker that joins would not have",
                "set it in each call of loss(), as a function of step; or have a frozen parameter that the optimizer moves, or "
                f"{_BUFFERS}",
                code="pipeline.changed-once",
            )
        raise _repeated_differently(step, expected.what)

    def evaluate(self, step: int, batch: int) -> tuple[list[str], list[float]]:
        """As `PipelineAdapter.evaluate`, and once more where that is due. Raises Inconsistent."""
        expected = self.tried_evaluation(step, batch, lambda: self._numbers(step, batch))
        found = self._workload.evaluate(step, batch)
        if expected is not None:
            self.require_evaluation(expected, step, proof.exact_numbers(*found).encode())
        return found

    def tried_evaluation(self, step: int, batch: int, again: Callable[[], bytes]) -> Tried | None:
        """In the first evaluations, and in four of each doubling, the first batch of this worker, if anything has changed.
        Else, or where there is no memory for it, None. again: evaluates it, in the mode of training, and returns a digest.
        Raises Inconsistent as `is_due` does."""
        beginning = self._beginning
        if step <= self._evaluated or beginning is None:
            return None
        self._refuse_moved(beginning, step + 1)
        self._evaluated, self._evaluations = step, self._evaluations + 1
        # Within an evaluation no layer is in training.
        due = beginning.changed() if is_scheduled(self._evaluations) else ()
        changed = [place for place in due if not place.endswith(".training")]

        def result() -> bytes:
            try:
                with evaluation.in_eval_mode(self._workload.model):
                    return again()
            except PipelineRaised as error:
                return error.code.encode()
            finally:
                self._replica.begin_shard()

        with contextlib.suppress(OutOfDeviceMemory):
            if changed:
                with beginning.restored():
                    return Tried(result(), changed, result, f"validation batch {batch}")
        return None

    def require_evaluation(self, expected: Tried, step: int, found: bytes) -> None:
        """Raises Inconsistent where something else was found."""
        if expected.result != found:
            culprits = self._culprits(expected, found)
            layer = _first_with_modes(self._workload.model, culprits)
            raise Inconsistent(
                f"after step {step + 1}: {expected.what} has another loss or metric without the new value of "
                f"{', '.join(culprits)}, which a worker that joins would not have",
                "let loss() and metrics() follow from the model and the batch alone: the loss of the training is recorded by "
                "itself, and an average of the weights is a frozen part of the model (docs/porting.md)"
                + (
                    ""
                    if layer is None
                    else f"; where eval() of {layer} merges its weights, give it merge_weights=False"
                ),
                code="pipeline.metrics-changed",
            )

    def _computed(self, clock: int, shard: int, read_anew: Callable[[], object]) -> bytes:
        self._replica.begin_shard()
        try:
            computed = self._workload.loss(clock, shard)
        finally:
            gradients = self._replica.gradients()
            self._replica.begin_shard()
            read_anew()
        return _digest(computed, gradients)

    def _numbers(self, step: int, batch: int) -> bytes:
        return proof.exact_numbers(*self._workload.evaluate(step, batch)).encode()

    def _culprits(self, tried: Tried, found: bytes) -> Sequence[str]:
        """The places of which one alone makes the difference to what was found; all, where none does."""
        assert self._beginning is not None
        alone = []
        for place in tried.changed[:_MOST_TRIED]:
            with contextlib.suppress(OutOfDeviceMemory), self._beginning.restored(place):
                if tried.again() != found:
                    alone.append(place)
        return (alone or tried.changed)[:_MOST_NAMED]


def _first_with_modes(model: torch.nn.Module, places: Sequence[str]) -> str | None:
    """The class of the first layer among those that hold these places whose train() or eval() is its own; None for none."""
    usual = (torch.nn.Module.train, torch.nn.Module.eval)
    layers = {f"model.{name}" if name else "model": type(layer) for name, layer in model.named_modules()}
    holders = (layers.get(place.rpartition(".")[0]) for place in places)
    return next((kind.__name__ for kind in holders if kind and (kind.train, kind.eval) != usual), None)


def require_repeated(again: Callable[[], bytes], step: int, what: str) -> None:
    """Raises Inconsistent where the results of a computation differ, but for one of four: a processor has slipped there, and
    none of them goes into a sum."""
    first, second = again(), again()
    if first != second and max(Counter([first, second, again(), again()]).values()) < _AGREE:
        raise _repeated_differently(step, what)


def _repeated_differently(step: int, what: str) -> Inconsistent:
    return Inconsistent(
        f"step {step}: the {what} came out differently when the same micro-batch was computed again",
        f"keep nothing from batch to batch, whatever the step: what is to move along the run is {_BUFFERS}",
        code="pipeline.repeated-differently",
    )


def is_scheduled(step: int) -> bool:
    """Whether a step is one of those up to 8, or of four in each doubling."""
    zeros = max(0, step.bit_length() - 3)
    return step >> zeros << zeros == step


def _digest(computed: Unread | None, gradients: Sequence[torch.Tensor | None]) -> bytes:
    return b"" if computed is None else digest_of(Contribution(*computed, gradients))
