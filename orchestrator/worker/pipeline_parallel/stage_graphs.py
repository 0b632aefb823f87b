"""A stage's passes as recordings: for each micro-batch that may be under way, one of the forward and one of the backward pass.

    first step      All passes are computed eagerly. At its end, when none is under way, the passes of one micro-batch of each
                    shape are recorded, once for each that may be under way. They are replayed, and compared to the bit.
    second step     The same, without the recording, since its contents are others. A step that is repeated is the same step.
    later steps     Passes of these shapes are replayed.

A recording draws from the generators as it finds them, so states that come over a border are set before it. The code before
the border may draw nothing then, since it begins with those of the seed. Activations stay in memory of its own from the
forward to the backward pass.

If the message of a backward pass has another shape than the recorded one, the pass is computed eagerly, and its forward pass
once more before it. A stage that cannot be recorded is told once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import torch

from orchestrator.numerics import streams
from orchestrator.numerics.batches import taken_apart
from orchestrator.numerics.byte_layout import same_bits
from orchestrator.numerics.copy_stream import page_locked
from orchestrator.numerics.staging import Staging
from orchestrator.worker.model.batch_place import BatchPlace
from orchestrator.worker.model.calls import Call
from orchestrator.worker.model.held_memory import Watched, hold_memory
from orchestrator.worker.model.output_checks import kept
from orchestrator.worker.model.recorder import Recorder, reason
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.shard_graphs import WITHOUT
from orchestrator.worker.pipeline_parallel.border_values import (
    Activations,
    BorderValue,
    Generators,
    Gradients,
    same_generators,
    unpack,
)
from orchestrator.worker.pipeline_parallel.replay import Record, Stage

_MOST: Final = 4  # shapes; each recording keeps activations and gradients of its own
_MOST_UNDER_WAY: Final = 8  # micro-batches; those beyond are computed eagerly
_COMPARED: Final = 2  # steps
_ANOTHER: Final = 1  # a seed that no micro-batch has, but by chance
_IN_HOST_MEMORY: Final = "the stage draws random numbers in host memory"

Value = tuple[torch.Tensor, Any] | None  # loss and weight of the last stage; None in the others


class Example(NamedTuple):
    """A micro-batch that has gone through this stage in both directions."""

    call: Call  # of the user's loss
    came: Activations | None  # from the stage before
    behind: Gradients | None  # from the stage behind
    seeded: Generators  # as its forward pass found the generators
    drawn: Generators  # as its forward pass left them
    found: Generators | None  # as the code before the border left them; None in the first stage


class _Outcome(NamedTuple):
    """The results of both passes of a micro-batch."""

    tensors: list[torch.Tensor | None]
    shape: Any  # of what goes on and back
    generators: tuple[Generators, Generators]  # behind each pass


class Recording:
    """Both passes of one micro-batch at a time."""

    def __init__(
        self,
        stage: Stage,  # whose passes they are
        replica: Replica,  # of this stage's part
        staging: Staging,  # to where the stage computes
        like: Example,  # of the shape that is recorded
    ) -> None:
        self._stage, self._replica, self._staging = stage, replica, staging
        self.key = _key(like.call, like.came)  # of the micro-batches that it serves
        self._call = like.call
        given = like.call.given
        assert given is not None
        apart = taken_apart(given.arriving.host)
        assert apart is not None, "examples without this are not kept"
        self._place = BatchPlace(apart[0], given.arriving.host, staging)
        self._came = None if like.came is None else _with_places(like.came, staging)
        self._behind = None if like.behind is None else _with_places(_used(like.behind, stage), staging)
        self._record = Record([], [])
        self._gradients: list[torch.Tensor | None] = []
        self._leaves: Activations | None = None
        self._value: Value = None
        self._back: list[BorderValue | None] = []
        self._passes: Sequence[Callable[[], None]] = ()
        self._read = hold_memory()
        self.watched = Watched()  # what it reads beside its places and the model

    def make(self, recorder: Recorder, like: Example) -> None:
        """Raises what the recorder raises."""
        assert like.call.given is not None
        apart = taken_apart(like.call.given.arriving.host)
        assert apart is not None

        def before() -> None:
            self._place.copy(apart[0])
            _put(like.came, self._came)
            _put(like.behind, self._behind)

        self._passes = recorder.record(self._forward, self._backward, before=before, apart=True)
        model, came = self._replica.model, [] if self._came is None else self._came.border_values
        self.watched = self._read.watched([*model.parameters(), *model.buffers(), self._place.batch, came])
        self._record = Record([], [])  # the nodes of its passes are of no use any more

    def fits(self, behind: Gradients | None) -> bool:
        """Whether the recorded backward pass is that of such gradients."""
        used = None if behind is None else _used(behind, self._stage)
        return bool(_shape(used) == _shape(self._behind))

    def forward(self, call: Call, came: Activations | None) -> tuple[Activations | None, Value]:
        """The forward pass of a micro-batch of this shape, with the generators as they are, or as they come."""
        self._load(call, came)
        if came is not None:
            came.generators.restore()
        self._passes[0]()
        leaves = self._leaves
        if leaves is not None:
            leaves = replace(leaves, generators=Generators.now())
        return leaves, self._value

    def forward_anyhow(self, call: Call, came: Activations | None) -> None:
        """The same with the generators as they are, for nobody."""
        self._load(call, came)
        self._passes[0]()

    def _load(self, call: Call, came: Activations | None) -> None:
        assert call.given is not None
        apart = taken_apart(call.given.arriving.host)
        assert apart is not None
        self._place.load(call.given.arriving, apart[0])
        _put(came, self._came)

    def backward(self, behind: Gradients | None) -> list[BorderValue | None]:
        """The backward pass of what `forward` has begun; as `Stage.backward`."""
        _put(behind, self._behind)
        self._passes[1]()
        for parameter, gradient in zip(self._stage.parameters.values(), self._gradients, strict=True):
            parameter.grad = gradient
        return self._back

    def _forward(self) -> None:
        call = self._call
        assert call.given is not None
        function, batch = call.given.function, self._place.batch
        # The nodes for gradients of a warm-up name its stream, and would be used again.
        self._record = Record([], [])
        for parameter in self._stage.parameters.values():
            parameter.grad = None
        on_places = call._replace(function=lambda: function(batch))
        with self._stage.recording(), hold_memory() as self._read:
            self._record, self._leaves, value = self._stage.forward(on_places.make, "training", self._came)
        self._value = None
        if self._leaves is None:
            loss, weight = call.unjudged(value)
            self._record = self._record._replace(roots=[loss])
            self._value = loss.detach(), weight.detach() if isinstance(weight, torch.Tensor) else weight

    def _backward(self) -> None:
        self._back = self._stage.backward(self._record, self._behind, _arrived(self._behind, self._staging))
        self._gradients = [parameter.grad for parameter in self._stage.parameters.values()]


@dataclass
class _Shape:
    """The recordings of one shape. steps: in which they were compared."""

    recordings: list[Recording]
    steps: set[int] = field(default_factory=set)

    @property
    def serves(self) -> bool:
        return len(self.steps) >= _COMPARED


class StageGraphs:
    """The recordings of one stage."""

    def __init__(
        self,
        recorder: Recorder,  # of the device
        stage: Stage,  # whose passes are recorded
        replica: Replica,  # of this stage's part
        staging: Staging,  # to where the stage computes
        tell: Callable[[str], None],  # takes a line on what is computed eagerly
        why_not: str = "",  # why these passes cannot be recorded, where that is known; empty: it is tried
    ) -> None:
        self._recorder = recorder
        self._parts = stage, replica, staging
        self._tell = tell
        self._goes = True
        self._under_way = 0  # micro-batches that may be so at once; a shape has as many recordings
        self._shapes: dict[Any, _Shape] = {}
        self._examples: dict[Any, Example] = {}
        self._free: dict[Any, list[Recording]] = {}
        if why_not:
            self._give_up(why_not)

    def begin_step(self, under_way: int) -> None:
        """Nothing is under way. under_way: the most micro-batches that are so at once in this step. Passes are recorded anew if
        these are more than before, as with shards of a lost worker: they were compared where no other came in between."""
        self._examples.clear()
        recorded = min(under_way, _MOST_UNDER_WAY)
        if recorded > self._under_way:
            self._under_way = recorded
            self._shapes.clear()
        self._free = {key: [*each.recordings] for key, each in self._shapes.items() if each.serves}

    def take(self, call: Call, came: Activations | None) -> Recording | None:
        """One for the passes of this micro-batch; None where they are to be computed eagerly."""
        free = self._free.get(_key(call, came)) if self._free else None
        if not free:
            return None
        if why := free[-1].watched.written():
            self._give_up(why)
            return None
        return free.pop()

    def give_back(self, recording: Recording) -> None:
        """Its micro-batch is not under way any more."""
        self._free[recording.key].append(recording)

    def note(self, example: Example) -> None:
        """Passes that were computed eagerly."""
        if not self._goes:
            return
        key = _key(example.call, example.came)
        if key is None:
            self._give_up("a batch holds what cannot be copied into place: only tensors in lists, tuples and dicts can")
        elif example.found is not None and not same_generators(example.found, example.seeded):
            self._give_up("loss() draws random numbers before the border of this stage")
        elif host_states(_started(example)) != host_states(example.drawn):
            self._give_up(_IN_HOST_MEMORY)
        elif not self._shapes[key].serves if key in self._shapes else len(self._shapes) < _MOST:
            self._examples.setdefault(key, example)

    def learn(self, step: int) -> None:
        """At the end of a step: record what is new, and compare. Leaves gradients and buffers as they are."""
        stage, replica, _ = self._parts
        examples, self._examples = self._examples, {}
        if not examples:
            return
        parameters = stage.parameters.values()
        gradients, buffers = [parameter.grad for parameter in parameters], replica.buffers()
        try:
            for key, example in examples.items():
                if self._goes:
                    self._learn(key, example, step)
        finally:
            replica.continue_shard(buffers)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
        if not self._goes:
            self._recorder.give_back()  # what recordings had that are gone: others share the device

    def _learn(self, key: Any, example: Example, step: int) -> None:
        if key not in self._shapes:
            try:
                recordings = [Recording(*self._parts, example) for _ in range(self._under_way)]
                for recording in recordings:
                    self._begin(example)
                    recording.make(self._recorder, example)
            except Exception as error:  # of the user's code, too, which sees no values while it is recorded
                self._give_up(reason(error))
                return
            self._shapes[key] = _Shape(recordings)
        try:
            why = self._difference(key, example)
        except torch.OutOfMemoryError as error:  # what is compared takes some, and a card may be full
            why = reason(error)
        if why:
            self._give_up(why)
        else:
            self._shapes[key].steps.add(step)

    def _difference(self, key: Any, example: Example) -> str:
        """Why the recordings of this shape cannot take the place of eager passes; empty where they can."""
        eager = self._eagerly(example)
        if _drawn_in_host_memory(example, eager):
            return _IN_HOST_MEMORY
        recordings = self._shapes[key].recordings
        for index, recording in enumerate(recordings):
            between = recordings[index - 1] if len(recordings) > 1 else None
            if not _alike(self._again(recording, example, between), eager):
                return "done again from a recording, a micro-batch gives other bits"
        return ""

    def _begin(self, example: Example) -> None:
        stage, replica, _ = self._parts
        replica.begin_shard()
        for parameter in stage.parameters.values():
            parameter.grad = None
        _started(example).restore()

    def _eagerly(self, example: Example) -> _Outcome:
        stage, _, staging = self._parts
        given = example.call.given
        assert given is not None
        self._begin(example)
        batch = staging.batch(given.arriving.host)  # loss() may have changed the one that is there
        call = example.call._replace(function=lambda: given.function(batch))
        record, leaves, returned = stage.forward(call.make, "training", example.came)
        value: Value = None
        if leaves is None:
            value = example.call.unjudged(returned)
            record = record._replace(roots=[value[0]])
            value = kept((value[0].detach(), value[1]))
        used = None if example.behind is None else _used(example.behind, stage)
        return self._outcome(example, leaves, value, lambda: stage.backward(record, used, _arrived(used, staging)))

    def _again(self, recording: Recording, example: Example, between: Recording | None) -> _Outcome:
        """between: one that does a forward pass between both passes, as in a step."""
        self._begin(example)
        leaves, value = recording.forward(example.call, example.came)

        def backward() -> list[BorderValue | None]:
            if between is not None:
                self._begin_another(between, example)
            return recording.backward(example.behind)

        return self._outcome(example, leaves, value, backward)

    def _begin_another(self, recording: Recording, example: Example) -> None:
        """The forward pass of the micro-batch with another seed, which leaves no trace but in memory of its own, and in what a
        device keeps for all recordings. torch's graphs have one memory for the seed. A backward pass that draws with a state
        which was kept in its forward pass, as activation checkpoints do, finds there the seed of the forward pass that was the
        last."""
        _, replica, _ = self._parts
        states, buffers = Generators.now(), replica.buffers()
        for generator in streams.torch_generators():
            generator.manual_seed(_ANOTHER)
        recording.forward_anyhow(example.call, example.came)
        replica.continue_shard(buffers)
        states.restore()

    def _outcome(
        self,
        example: Example,
        leaves: Activations | None,
        value: Value,
        backward: Callable[[], Sequence[BorderValue | None]],
    ) -> _Outcome:
        stage, replica, _ = self._parts
        forward, middle = Generators.now(), replica.buffers()
        kept = [] if value is None else [torch.as_tensor(each).clone() for each in value]
        onward = [] if leaves is None else [each.data for each in leaves.border_values]
        if example.behind is not None:
            example.behind.generators.restore()
        back = backward()
        returned = [None if each is None else each.data for each in back]
        found = [parameter.grad for parameter in stage.parameters.values()]
        gradients = [None if gradient is None else gradient.clone() for gradient in found]
        shape = _shape(leaves), tuple(map(_described, back))
        tensors = [*kept, *onward, *returned, *gradients, *middle, *replica.buffers()]
        return _Outcome(tensors, shape, (forward, Generators.now()))

    def _give_up(self, why: str) -> None:
        if self._goes:
            self._tell(f"{WITHOUT}: {why}")
        self._goes = False
        self._shapes.clear()  # what is under way is done to its end, and from the next step on all is computed eagerly


def _key(call: Call, came: Activations | None) -> Any:
    """Equal for two micro-batches that one recording serves; None where the batch cannot be copied into place."""
    apart = None if call.given is None else taken_apart(call.given.arriving.host)
    return None if apart is None else (apart[1], call.rows, _shape(came))


def _shape(message: Activations | Gradients | None) -> Any:
    if message is None:
        return None
    described = tuple(map(_described, message.border_values))
    if isinstance(message, Activations):
        return described, tuple(message.flows), tuple(message.places), tuple(message.skips), message.told
    return described, tuple((name, _described(value)) for name, value in message.tied.items())


def _described(value: BorderValue | None) -> Any:
    return None if value is None else (value.size, value.stride, value.at, value.data.dtype, value.data.numel())


def _with_places(message: Any, staging: Staging) -> Any:
    """The same with memory of its own on the device."""

    def placed(value: BorderValue | None) -> Any:
        return None if value is None else value._replace(data=staging.empty(value.data.numel(), value.data.dtype))

    values = list(map(placed, message.border_values))
    if isinstance(message, Gradients):
        return replace(message, border_values=values, tied={name: placed(each) for name, each in message.tied.items()})
    return replace(message, border_values=values)


def _used(behind: Gradients, stage: Stage) -> Gradients:
    """Without gradients of parameters that only stages before this one use."""
    held = stage.parameters
    return replace(behind, tied={name: each for name, each in behind.tied.items() if name in held})


def _arrived(behind: Gradients | None, staging: Staging) -> dict[str, torch.Tensor]:
    """Gradients of stages behind, of parameters that this one uses, too."""
    return {} if behind is None else {name: unpack(each, staging) for name, each in behind.tied.items()}


def _put(message: Activations | Gradients | None, places: Activations | Gradients | None) -> None:
    if message is None or places is None:
        return
    pairs = list(zip(message.border_values, places.border_values, strict=True))
    if isinstance(message, Gradients) and isinstance(places, Gradients):
        pairs += [(message.tied[name], place) for name, place in places.tied.items()]
    for value, place in pairs:
        if value is not None and place is not None:
            place.data.copy_(page_locked(value.data, place.data.device), non_blocking=True)


def _alike(one: _Outcome, other: _Outcome) -> bool:
    return (
        bool(one.shape == other.shape)
        and all(map(_same_states, one.generators, other.generators))
        and all(same_bits(left, right) for left, right in zip(one.tensors, other.tensors, strict=True))
    )


def _same_states(one: Generators, other: Generators) -> bool:
    return all(map(torch.equal, one.of_torch, other.of_torch))


def _started(example: Example) -> Generators:
    """The generators with which the stage's own part begins."""
    return example.seeded if example.came is None else example.came.generators


def _drawn_in_host_memory(example: Example, left: _Outcome) -> bool:
    """Whether a pass has advanced a generator that a recording does not."""
    before = _started(example)
    forward, backward = left.generators
    between = forward if example.behind is None else example.behind.generators
    return bool(host_states(before) != host_states(forward) or host_states(between) != host_states(backward))


def host_states(generators: Generators) -> Any:
    """The states that a recording does not advance."""
    kind: Any = generators.numpy_state
    numbers = kind["state"]["key"].tobytes(), kind["state"]["pos"], kind["has_gauss"], kind["gauss"]
    return generators.of_torch[0].numpy().tobytes(), generators.python, numbers
