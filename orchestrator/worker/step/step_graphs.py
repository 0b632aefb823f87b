"""All micro-batches of a worker in a step as one recording. A model whose micro-batches take the device less time than Python
takes to begin them is as fast as the device then.

    each micro-batch    First it has a recording of its own (`model/shard_graphs.py`).
    two steps           They are done by those, then by one recording for the step. Both are compared to the bit.
    later ones          They are one copy of all rows, the seeds, and one call.

The recording is that of the trainer's own loop: passes, what each shard leaves in buffers, and its addition onto the sum. So a
step that is replayed finds its tally and its sum in the same memory. It serves any shards whose micro-batches have these
shapes. A step that cannot be recorded is computed shard by shard, with the same bits, and told once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from orchestrator.numerics import streams
from orchestrator.numerics.batches import taken_apart
from orchestrator.numerics.byte_layout import same_bits
from orchestrator.numerics.device.kernels import Accumulator, AddedShards
from orchestrator.numerics.grid import Grid
from orchestrator.numerics.staging import TOGETHER_BYTES, Arriving
from orchestrator.worker.model.asked_step import Answers
from orchestrator.worker.model.batch_place import BatchPlace
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.recorder import Recorder, reason
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.step.tally import Tally

_MOST: Final = 4  # recordings: of numbers and shapes of micro-batches
_COMPARED: Final = 2  # steps
MOST_ELEMENTS: Final = 1 << 24  # of a model: a larger one keeps a device busy shard by shard

WITHOUT: Final = "the micro-batches of a step are begun one by one, which is slower for small models"


class Read(NamedTuple):
    """The micro-batches of a step. tensors: of all of them, in host memory; shape: all else, to be compared."""

    batches: list[Arriving]
    tensors: list[torch.Tensor]
    shape: Any


class _Recorded:
    """One recording. shape: of a step's micro-batches; answers: to what they ask of the step; compared: in how many steps; the
    rest: where it reads and what it leaves."""

    def __init__(self, shape: Any, place: BatchPlace, tally: Tally) -> None:
        self.shape, self.place, self.tally = shape, place, tally
        self.answers: Answers
        self.replay: Callable[[Sequence[int]], None]
        self.taken: AddedShards
        self.kept: Any  # of the kernels
        self.compared = 0


class StepGraphs:
    """The recordings of one worker."""

    def __init__(
        self,
        workload: PipelineAdapter,  # whose `graphs` have the recordings of micro-batches
        replica: Replica,  # whose buffers every shard starts from
        accumulator: Accumulator,  # onto which shards are added
        total: torch.Tensor,  # its sum
        recorder: Recorder,  # of the device
        tell: Callable[[str], None],  # takes a line on what is done shard by shard
    ) -> None:
        self._workload, self._replica = workload, replica
        self._accumulator, self._total = accumulator, total
        self._recorder, self._tell = recorder, tell
        self._recorded: list[_Recorded] = []
        self._changes = 0  # as of `ShardGraphs.changes`, since which recordings were compared
        self._goes = total.numel() <= MOST_ELEMENTS

    def read(self, step: int, shards: Sequence[int]) -> Read | None:
        """The micro-batches of a step before any is computed; None where they are computed shard by shard."""
        graphs = self._workload.graphs
        if not self._goes or graphs is None or len(shards) < 2:
            return None
        graphs.check_kept()
        if graphs.changes != self._changes:
            self._changes = graphs.changes
            for recorded in self._recorded:
                recorded.compared = 0
        batch_bytes = graphs.batch_bytes
        if batch_bytes is None or batch_bytes * len(shards) > TOGETHER_BYTES:
            return None
        batches = self._workload.batches.read_all(step, shards)
        apart = None if batches is None else taken_apart([each.host for each in batches])
        return None if batches is None or apart is None else Read(batches, *apart)

    def knows(self, step: int, read: Read) -> bool:
        """Whether this step can be replayed."""
        recorded = self._fitting(step, read)
        return recorded is not None and recorded.compared == _COMPARED

    def _fitting(self, step: int, read: Read) -> _Recorded | None:
        return next((each for each in self._recorded if each.shape == read.shape and each.answers.hold(step)), None)

    def again(self, step: int, shards: Sequence[int], read: Read, grid: Grid, tally: Tally) -> None:
        """Compute these shards and add them up, where the step is known. Nothing was added before."""
        recorded = self._fitting(step, read)
        assert recorded is not None
        self._accumulator.use(grid)
        self._do(recorded, step, shards, read)
        self._workload.at(step)
        tally.take(shards, recorded.tally)

    def learn(
        self, step: int, shards: Sequence[int], read: Read, tally: Tally, add: Callable[[int, Tally], None]
    ) -> None:
        """Record a step, or compare its recording. The shards were just added one by one, by `add`, and left `tally`."""
        recorded = self._fitting(step, read)
        if not self._goes or self.knows(step, read) or (recorded is None and not self._can_record()):
            return
        buffers, taken = self._replica.buffers(), self._accumulator.taken
        try:
            total, largest = self._total.clone(), torch.stack(taken.largest)
        except torch.OutOfMemoryError as error:
            self._give_up(reason(error))
            return
        try:
            if recorded is None:
                recorded = self._record(step, shards, read, tally, add)
                self._recorded.append(recorded)
            self._do(recorded, step, shards, read)
            same = tally.same_bits(recorded.tally) and _same_weights(taken, recorded.taken)
            same = same and same_bits(torch.stack(recorded.taken.largest), largest)
            same = same and all(map(same_bits, [self._total, *self._replica.buffers()], [total, *buffers]))
            recorded.compared += 1
            if not same:
                self._give_up("done again from a recording, a step gives other bits")
        except Exception as error:  # of the user's code, too, which sees no values while it is recorded
            self._give_up(reason(error))
        finally:
            for parameter in self._replica.parameters:
                parameter.grad = None
            self._replica.continue_shard(buffers)
            self._total.copy_(total)
            for row, found in zip(taken.largest, largest, strict=True):
                row.copy_(found)
            self._accumulator.take(taken)
            self._workload.at(step)

    def _can_record(self) -> bool:
        """Whether there is room, and the last micro-batch has a recording of its own."""
        graphs = self._workload.graphs
        return len(self._recorded) < _MOST and graphs is not None and graphs.replayed

    def _record(
        self, step: int, shards: Sequence[int], read: Read, tally: Tally, add: Callable[[int, Tally], None]
    ) -> _Recorded:
        graphs = self._workload.graphs
        assert graphs is not None
        place = BatchPlace(read.tensors, [each.host for each in read.batches], self._replica.staging)
        recorded = _Recorded(read.shape, place, tally.empty())
        self._accumulator.clear()
        self._workload.batches.compute_read(step, shards, read.batches)
        works = [partial(add, shard, recorded.tally) for shard in shards]
        with (
            streams.held(),
            self._accumulator.recording(len(shards)) as kept,
            graphs.passing_through(place.batch) as recorded.answers,
        ):
            recorded.replay = self._recorder.in_turn(works)
        recorded.taken, recorded.kept = self._accumulator.taken, kept
        return recorded

    def _do(self, recorded: _Recorded, step: int, shards: Sequence[int], read: Read) -> None:
        recorded.place.copy(read.tensors)
        recorded.answers.fill(step)
        with streams.held():
            recorded.replay(self._workload.batches.seeds(step, shards))
        self._accumulator.take(recorded.taken)

    def _give_up(self, why: str) -> None:
        self._tell(f"{WITHOUT}: {why}")
        self._goes = False
        self._recorded.clear()


def _same_weights(one: AddedShards, other: AddedShards) -> bool:
    return [float(weight) for weight in one.weights] == [float(weight) for weight in other.weights]
