"""A shard's forward and backward pass as one recording, which is replayed for each micro-batch of the same shape.

    first micro-batch of a shape    It is computed eagerly, then recorded, replayed, and compared to the bit.
    others, until the next step     They are computed eagerly and replayed. They are compared, too, since their contents are
                                    others, and in another step what the user's code keeps may be another.
    later ones                      They are replayed, in one call where a model takes thousands.

A pass that cannot be recorded is computed eagerly, with the same bits, and told once. Reasons are control flow that depends
on data, another shape in each batch, and random numbers of the processor. On a card the recording is a CUDA graph.

A loss that takes the step has a recording for each way that it takes, which serves the steps that give the same answers
(`asked_step.py`). Code that runs in some steps alone may change what the others read. So wherever it has changed an object of
the user's, all recordings are compared anew. While a loss computes with a number that no later step has, passes are eager.

The gradients of a recording lie in the same place each time: they are added up before the next micro-batch. They are the same
tensors, too, so whoever takes them from `gradients` need not look at each of them again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy
import torch

from orchestrator.numerics.batches import taken_apart
from orchestrator.numerics.byte_layout import same_bits
from orchestrator.numerics.staging import Arriving, Staging
from orchestrator.worker.model.asked_step import MOST_PLACES, Answers, AskedNumber
from orchestrator.worker.model.batch_place import BatchPlace
from orchestrator.worker.model.held_memory import Watched, hold_memory
from orchestrator.worker.model.output_checks import is_late
from orchestrator.worker.model.recorder import Recorder, reason, users_line
from orchestrator.worker.model.replica import Replica

_MOST: Final = 4  # each recording keeps gradients of its own
_COMPARED: Final = 2  # steps
_PAUSE: Final = 16  # steps until a loss is tried again that computes with the step; twice as many each time

WITHOUT: Final = "micro-batches are computed without graphs, which is slower"

Judged = tuple[torch.Tensor, Any]  # loss and weight, a tensor or a number


class Work(NamedTuple):
    """The passes of a micro-batch. Both find the batch on the device, and leave gradients at the parameters."""

    eager: Callable[[Any], Judged | None]  # returns None where the micro-batch weighs nothing
    # the same without looking at any value; the second argument is the step that loss() is told
    unread: Callable[[Any, Any], Judged]
    seeded: Callable[[], AbstractContextManager[None]]  # sets the generators for this micro-batch
    # sets those from which a replay draws, which runs no code
    seeded_for_replay: Callable[[], AbstractContextManager[None]]
    step: int  # a local one, if there are any


class ShardGraphs:
    """The recordings of one worker's model."""

    def __init__(
        self,
        recorder: Recorder | None,  # None: all is computed eagerly
        replica: Replica,  # whose parameters get the gradients, and whose buffers every shard starts from
        staging: Staging,  # to the device
        tell: Callable[[str], None],  # takes a line on what is computed eagerly
        why_not: str = "",  # why these passes cannot be recorded, where that is known; empty: it is tried
        # what the user's objects hold, by place, where loss() takes the step; None where it does not
        look: Callable[[], Mapping[str, object]] | None = None,
    ) -> None:
        self._recorder = recorder
        self._replica = replica
        self._staging = staging
        self._tell = tell
        self._look = look
        self._recorded: list[_Recorded] = []
        self._goes = recorder is not None
        self.changes = 0  # how often code was found to have changed what passes may read
        self._looked_in = -1  # step
        self._pause, self._pause_until = _PAUSE, 0  # steps
        if why_not:
            self._give_up(why_not)
        # The gradients of the last micro-batch if it was replayed; then it has changed only what the recording changes.
        self.gradients: Sequence[torch.Tensor | None] | None = None
        self._places: Iterator[tuple[Any, Sequence[torch.Tensor]]] | None = None
        self._answers = Answers()  # of the micro-batches in those places
        self._arrive_early = self._left_out = False

    @property
    def batch_bytes(self) -> int | None:
        """The bytes of the largest micro-batch that is replayed. None if there is none, if all are computed eagerly, or if
        copies begin before the turn of a micro-batch."""
        known = [recorded.place.size_bytes for recorded in self._recorded if recorded.serves]
        return max(known, default=None) if self._goes and not self._arrive_early else None

    @contextmanager
    def passing_through(self, batches: Sequence[Any]) -> Iterator[Answers]:
        """Within the block micro-batches are computed where they lie, in the place of what `compute` is given. This enqueues
        what a recording would do, for one of several micro-batches. Gives what all of them asked of the step."""
        numbers = _places_for(len(batches), self._replica)
        self._places, self._answers = zip(batches, numbers, strict=True), Answers()
        try:
            yield self._answers
        finally:
            self._places = self.gradients = None

    def compute(self, arriving: Arriving, work: Work) -> Judged | None:
        """The loss and the weight of a micro-batch, in memory of their own; its gradients are at the parameters then, or those
        of a replay in `gradients`. Raises PipelineRaised for a sparse gradient."""
        self.gradients = None
        if self._places is not None:
            batch, numbers = next(self._places)
            passes = _Passes(self._replica, numbers)
            passes.run(work, batch)
            self._answers.take(passes.answers)
            return self._replayed(passes, passes.numbers)
        batch = arriving.host
        self._arrive_early = self._arrive_early or arriving.is_under_way
        self.check_kept()
        apart = taken_apart(batch) if self._goes else None
        if apart is None:
            self._give_up("a batch holds what cannot be copied into place: only tensors in lists, tuples and dicts can")
            with work.seeded():
                return work.eager(arriving.there())
        tensors, shape = apart
        recorded = next((each for each in self._recorded if each.fits(shape, work.step)), None)
        if recorded is not None and recorded.serves:
            recorded.place.load(arriving, tensors)
            with work.seeded_for_replay():
                recorded.again(work.step)
            return self._replayed(recorded.passes, recorded.passes.numbers.clone())
        there = recorded.place.load(arriving, tensors) if recorded is not None else arriving.there()
        start, seen = self._replica.buffers(), self._seen(recorded, work.step)
        with work.seeded():
            before = _host_generators()
            judged = work.eager(there)
            draws = before != _host_generators()
        if seen is not None:
            self._doubt(seen, again=recorded is not None or work.step < self._pause_until)
        if judged is None:
            return None
        self._replica.gradients()  # bits of a sparse one cannot be compared
        if draws:
            self._give_up("loss() draws random numbers in host memory")
        elif recorded is None and self._goes and work.step >= self._pause_until:
            passed = [each for each in self._recorded if not each.passes.answers.recur(work.step)]
            if len(self._recorded) - len(passed) < _MOST:
                recorded = self._record(tensors, shape, batch, work)
                self._make_room(passed)
            else:
                self._leave_out(shape)
        if recorded is not None and self._goes:
            recorded.place.copy(tensors)  # which code of the user's may have written into
            self._compare(recorded, work, judged, start)
        return judged

    def _leave_out(self, shape: Any) -> None:
        """Called for a micro-batch without a recording when the limit of recordings is reached."""
        serving = any(recorded.serves for recorded in self._recorded)
        shapes = [recorded.shape for recorded in self._recorded]
        if not serving and shape not in shapes and all(tensors_in(shape) == tensors_in(other) for other in shapes):
            self._give_up(
                "batches hold texts or numbers beside their tensors, which are others in each; leave them out"
            )
        elif not self._left_out and self._goes:
            self._left_out = True
            self._tell(
                f"loss() goes more ways than the {_MOST} that are recorded; in steps of others {WITHOUT}"
                if shape in shapes
                else f"micro-batches of other shapes than the first {_MOST} are computed without graphs, which is slower; pad "
                "rows to a few lengths, such as multiples of 64"
            )

    def _make_room(self, passed: Sequence[_Recorded]) -> None:
        """Behind a recording: let go of these, as far as there are too many. One stays at any time, with the memory of all."""
        for each in passed[: max(0, len(self._recorded) - _MOST)]:
            self._recorded.remove(each)

    def _seen(self, recorded: _Recorded | None, step: int) -> Mapping[str, object] | None:
        """The contents of the user's objects before an eager pass, once in a step; None where no recording depends on them.
        recorded: that with which the pass is compared."""
        passes_by = recorded is None and not self._recorded and step < self._pause_until
        if self._look is None or not self._goes or passes_by or self._looked_in == step:
            return None
        self._looked_in = step
        return self._look()

    def _doubt(self, before: Mapping[str, object], *, again: bool) -> None:
        """Behind an eager pass: compare all recordings anew if its code has changed an object; give them up if this happens
        again and again. before: as `_seen` gave it."""
        assert self._look is not None
        after = self._look()
        place = next((place for place in (*before, *after) if before.get(place) != after.get(place)), None)
        if place is None:
            return
        self.changes += 1
        for each in self._recorded:
            each.steps.clear()
        if again:
            self._give_up(f"loss() takes the step, and changes {place}")

    def _put_off(self, step: int, place: str) -> None:
        """Record nothing for some steps: it would serve no other one."""
        if self._pause == _PAUSE:
            where = f" ({place})" if place else ""
            self._tell(f"as long as loss() computes with the number of the step{where}, {WITHOUT}")
        self._pause_until, self._pause = step + self._pause, 2 * self._pause

    def _replayed(self, passes: _Passes, numbers: torch.Tensor) -> Judged:
        self.gradients = passes.gradients
        loss, *weight = numbers.unbind()
        return loss, weight[0] if weight else passes.judged[1]

    def _record(self, tensors: Sequence[torch.Tensor], shape: Any, batch: Any, work: Work) -> _Recorded | None:
        assert self._recorder is not None
        kept, versions = self._kept(), self._replica.fixed_versions()
        try:
            (numbers,) = _places_for(1, self._replica)
            place = BatchPlace(tensors, batch, self._staging)
            recorded = _Recorded(shape, place, _Passes(self._replica, numbers))
            read = hold_memory()

            def run() -> None:
                nonlocal read
                with hold_memory() as read:
                    recorded.passes.run(work, recorded.place.batch)
                if not recorded.passes.answers.recur(work.step):
                    raise _ServesNoOther

            with work.seeded():
                (recorded.replay,) = self._recorder.record(run, before=lambda: recorded.place.copy(tensors))
        except _ServesNoOther:
            self._put_off(work.step, recorded.passes.answers.passing(work.step))
            return None
        except Exception as error:  # of the user's code, too, which sees no values while it is recorded
            if AskedNumber.__name__ in str(error):  # what takes numbers alone was given the step
                self._put_off(work.step, users_line(error).removesuffix(": "))
            else:
                self._give_up(reason(error))
            return None
        finally:
            self._put_back(kept)
        for name, version in self._replica.fixed_versions().items():
            if version != versions[name]:
                self._give_up(
                    f"loss() writes the buffer {name!r}, so each micro-batch is looked at whether it changes that"
                )
                return None
        model = self._replica.model
        recorded.watched = read.watched([*model.parameters(), *model.buffers(), *numbers, place.batch])
        self._recorded.append(recorded)
        return recorded

    def check_kept(self) -> None:
        """Before a replay: give all recordings up if one reads a tensor that code has written since, as a mask that it fills
        anew for another length."""
        if why := next((why for each in self._recorded if (why := each.watched.written())), ""):
            self._give_up(why)

    def _compare(self, recorded: _Recorded, work: Work, judged: Judged, start: Sequence[torch.Tensor]) -> None:
        """With the micro-batch that has just been computed eagerly, whose gradients are at the parameters. start: the buffers
        before it, which a local step before may have left."""
        kept = self._kept()
        passes, same = recorded.passes, False
        try:
            self._replica.continue_shard(start)
            with work.seeded():
                recorded.again(work.step)
            again = [*passes.gradients, passes.judged[0], *self._replica.buffers()]
            gradients, buffers = kept
            same = all(
                same_bits(one, other) for one, other in zip(again, [*gradients, judged[0], *buffers], strict=True)
            )
            same = same and float(judged[1]) == float(passes.judged[1])
        except torch.OutOfMemoryError as error:  # what is compared takes some, and a card may be full
            self._give_up(reason(error))
        finally:
            self._put_back(kept)
        recorded.steps.add(work.step)
        if not same:
            self._give_up("done again from a recording, a micro-batch gives other bits")
        elif recorded.serves and self._recorder is not None:
            self._recorder.give_back()

    @property
    def replayed(self) -> bool:
        """Whether the last micro-batch was replayed."""
        return self.gradients is not None

    def hand_over(self) -> None:
        """Have the gradients of a replay at the parameters, as code of the user's finds those of a backward pass."""
        if self.gradients is not None:
            for parameter, gradient in zip(self._replica.parameters, self.gradients, strict=True):
                parameter.grad = gradient

    def _kept(self) -> tuple[list[torch.Tensor | None], list[torch.Tensor]]:
        """The gradients and the buffers as they are."""
        return [parameter.grad for parameter in self._replica.parameters], self._replica.buffers()

    def _put_back(self, kept: tuple[list[torch.Tensor | None], list[torch.Tensor]]) -> None:
        gradients, buffers = kept
        self._replica.continue_shard(buffers)
        for parameter, gradient in zip(self._replica.parameters, gradients, strict=True):
            parameter.grad = gradient

    def _give_up(self, why: str) -> None:
        if self._goes:
            self._tell(f"{WITHOUT}: {why}")
        self._goes = False
        self._recorded.clear()


class _ServesNoOther(Exception):
    """A recording would serve no step but this one."""


class _Passes:
    """Records the passes of one micro-batch."""

    def __init__(self, replica: Replica, numbers: Sequence[torch.Tensor]) -> None:
        """numbers: places for those that follow from the step."""
        self._replica, self._places = replica, numbers
        self.gradients: list[torch.Tensor | None] = []
        self.judged: Judged
        self.answers = Answers(numbers)  # to what loss() asks of the step
        self.numbers: torch.Tensor  # the loss, and the weight if the device computes it, as float64

    def run(self, work: Work, batch: Any) -> None:
        self.gradients, self.answers = [], Answers(self._places)  # of a warm-up
        for parameter in self._replica.parameters:
            parameter.grad = None
        loss, weight = work.unread(batch, AskedNumber(self.answers, work.step))
        self.judged = loss, weight = loss, weight.number() if isinstance(weight, AskedNumber) else weight
        numbers = [loss, weight.reshape(())] if is_late(weight, loss) else [loss]
        self.numbers = torch.stack([number.double() for number in numbers])
        self.gradients = [parameter.grad for parameter in self._replica.parameters]


@dataclass
class _Recorded:
    """One recording."""

    shape: Any  # of the micro-batches that it serves
    place: BatchPlace  # from which it reads
    passes: _Passes  # that were recorded
    replay: Callable[[], None] = lambda: None  # does them again
    watched: Watched = field(default_factory=Watched)  # what it reads beside its place and the model
    steps: set[int] = field(default_factory=set)  # in which it was compared

    @property
    def serves(self) -> bool:
        return len(self.steps) >= _COMPARED

    def again(self, step: int) -> None:
        self.passes.answers.fill(step)
        self.replay()

    def fits(self, shape: Any, step: int) -> bool:
        """Whether a micro-batch of this shape is computed so in this step."""
        return bool(shape == self.shape) and self.passes.answers.hold(step)


def _places_for(batches: int, replica: Replica) -> Iterator[Sequence[torch.Tensor]]:
    """For each micro-batch, places for numbers that follow from the step. Made before anything is recorded, whose memory
    is no place for what it reads."""
    rows = torch.zeros(batches, MOST_PLACES, device=replica.flat.device)
    return (row.unbind() for row in rows.unbind())


def tensors_in(shape: Any) -> list[Any]:
    """The tensors in the shape of a batch, which `taken_apart` returns, without all else in it. Pure."""
    kind, *rest = shape
    if kind is torch.Tensor:
        return [shape]
    if kind is dict:
        return [each for _, part in rest[0] for each in tensors_in(part)]
    return [each for part in rest[0] for each in tensors_in(part)] if issubclass(kind, (list, tuple)) else []


def _host_generators() -> tuple[Any, ...]:
    """The states of this process's generators that a recording does not advance."""
    state: Any = numpy.random.get_state()
    kind, keys, *position = state
    return torch.default_generator.get_state().numpy().tobytes(), random.getstate(), kind, bytes(keys), *position
