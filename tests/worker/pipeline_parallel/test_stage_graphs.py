"""Stages whose passes are done again from recordings: no bit differs, and what cannot be recorded is told once.

The recorder is a double (`tests/worker/retracing.py`). Its random numbers are those of the processor's generator, which stands
for the card's.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from orchestrator.config.settings import Every
from orchestrator.controller.events import Ended
from orchestrator.numerics import staging
from orchestrator.worker import device
from orchestrator.worker.model.calls import Call, Given
from orchestrator.worker.model.held_memory import Watched
from orchestrator.worker.pipeline_parallel import border_values, stage_graphs
from orchestrator.worker.pipeline_parallel.border_values import Generators
from pipelines.characters import Characters
from tests.comm.transports import device_double
from tests.numerics.device import host
from tests.products import thinned
from tests.worker import pipelines
from tests.worker.pipeline_parallel import models
from tests.worker.pipeline_parallel.sockets import Sockets
from tests.worker.pipeline_parallel.test_on_device import TINY
from tests.worker.pipeline_parallel.test_runs import ADAM, KINDS, MESHES
from tests.worker.pipeline_parallel.zoo import Routed
from tests.worker.retracing import Noting, Retracer
from tests.worker.runs import ONE, Layout, members_end, train
from tests.worker.test_shard_graphs import IN_HOST_MEMORY, LOOKS

pytestmark = pytest.mark.slow


# With what a stage of theirs is told to be computed eagerly.
ALONE = {
    pipelines.CumulativeBatchnorm: "not permitted when stream is capturing",
    pipelines.Codebook: "not permitted when stream is capturing",
    pipelines.LayerDrop: "draws random numbers in host memory",
    pipelines.Annealed: "takes the step",
}
# The double does not repeat recurrent layers of processors, which give fewer tensors where no gradient is asked for.
REPEATED = tuple(kind for kind in KINDS if kind is not pipelines.Lstm)


class Recorders:
    """made: one for each member."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[Retracer] = Retracer) -> None:
        self.made: list[Retracer] = []
        self.told: list[str] = []
        here = staging.Resident(torch.device("cpu"))
        monkeypatch.setattr(stage_graphs, "host_states", lambda generators: generators.python)
        monkeypatch.setattr(stage_graphs.StageGraphs, "_give_up", self._noted(stage_graphs.StageGraphs._give_up))

        def opened(*_: Any) -> device.Device:
            self.made.append(kind())
            return device.Device(here, device_double.regions(), host.kernels(), self.made[-1])

        monkeypatch.setattr(device, "opened", opened)
        # A card's memory begins at multiples of 512 bytes, and a processor's at multiples of 64.
        monkeypatch.setattr(border_values, "ALIGNMENT", 64)

    def _noted(self, give_up: Any) -> Any:
        def noted(graphs: Any, why: str) -> None:
            self.told.append(why)
            give_up(graphs, why)

        return noted


@pytest.mark.parametrize("layout", thinned(MESHES, 3, 1), ids=str)
@pytest.mark.parametrize("kind", thinned(REPEATED, 11, 1), ids=lambda kind: kind.__name__)
def test_no_bit_differs(monkeypatch: pytest.MonkeyPatch, kind: Any, layout: Layout) -> None:
    settings: dict[str, Any] = {"clip": 0.05, "optimizer": ADAM, "evaluate_every": Every(steps=2), "steps": 5}
    unsplit = train(kind, ONE, **settings)
    recorders = Recorders(monkeypatch)
    with Sockets("unix", layout.workers) as sockets:
        split = train(kind, layout, wire=sockets.transport, regions=sockets.regions, **settings)
    assert split.trace == unsplit.trace
    assert split.digest == unsplit.digest
    if kind in ALONE:
        assert any(ALONE[kind] in why for why in recorders.told)
    else:
        assert not recorders.told
        assert all(recorder.replays > layout.workers for recorder in recorders.made)


@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
def test_a_batch_that_the_loss_changes_comes_anew_for_each_pass_that_nobody_counts(
    monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    unsplit = train(pipelines.FromOne, ONE, steps=5)
    recorders = Recorders(monkeypatch)
    with Sockets("unix", 2) as sockets:
        wired: dict[str, Any] = {"wire": sockets.transport, "regions": sockets.regions}
        split = train(pipelines.FromOne, Layout(2, stages=2), pipeline_order=order, steps=5, **wired)
    assert (split.trace, split.digest) == (unsplit.trace, unsplit.digest)
    assert not recorders.told
    assert all(recorder.replays > 2 for recorder in recorders.made)


class Mixing(models.Router):
    """Returns the same shapes for each micro-batch."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x)[0], {"some": x.sum(), "given": x, "most": 1.0, "count": 1}


class BehindReaders(Routed):
    """Its last stage looks at no value."""

    router: type[nn.Module] = Mixing

    def model(self) -> nn.Module:
        model = models.Routed()
        model.routers = nn.ModuleList([self.router() for _ in range(3)])
        return model

    def stages(self, _: nn.Module) -> list[str]:
        return ["norms.2", "out"]


class BehindFickleReaders(BehindReaders):
    router = models.Router


@pytest.mark.parametrize("kind", thinned([BehindReaders, BehindFickleReaders], 2), ids=lambda kind: kind.__name__)
def test_a_stage_behind_readers_is_recorded_for_what_it_is_told(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    settings: dict[str, Any] = {"optimizer": ADAM, "steps": 4}
    unsplit = train(kind, ONE, **settings)
    recorders = Recorders(monkeypatch)
    with Sockets("unix", 3) as sockets:
        split = train(kind, Layout(3, stages=3), wire=sockets.transport, regions=sockets.regions, **settings)
    assert (split.trace, split.digest) == (unsplit.trace, unsplit.digest)
    assert all("not permitted when stream is capturing" in why for why in recorders.told)
    assert len(recorders.told) == 2
    assert recorders.made[2].replays > 0


@pytest.mark.long
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_tied_embedding(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    settings = {**TINY, "steps": 5, "precision": precision}
    unsplit = train(Characters, ONE, **settings)
    recorders = Recorders(monkeypatch)
    with Sockets("unix", 3) as sockets:
        split = train(Characters, Layout(3, stages=2), wire=sockets.transport, regions=sockets.regions, **settings)
    assert split.trace == unsplit.trace
    assert not recorders.told
    assert all(recorder.replays > 3 for recorder in recorders.made)


class Marked(nn.Linear):
    """again: of each recorded pass whether its node for the weight's gradient is that of a pass before. Such a node names the
    stream of that pass."""

    again: ClassVar[list[bool]] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = super().forward(inputs)
        if torch.is_grad_enabled() and type(self.weight) is nn.Parameter:
            edge: Any = self.weight.view_as(self.weight).grad_fn
            marks = edge.next_functions[0][0].metadata
            modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
            if any(isinstance(mode, Noting) for mode in modes):
                self.again.append("pass" in marks)
            marks["pass"] = True
        return found


class OfMarked(pipelines.Mlp):
    def model(self) -> nn.Module:
        return nn.Sequential(Marked(pipelines.FEATURES, 8), nn.Tanh(), Marked(8, pipelines.CLASSES))


def test_a_recording_shares_no_node_with_its_warm_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    recorders = Recorders(monkeypatch)
    monkeypatch.setattr(Marked, "again", [])
    with Sockets("unix", 2) as sockets:
        settings: dict[str, Any] = {
            "shards": 1,
            "args": {"rows": 8},
            "steps": 1,
        }  # one recording: the double's keep nodes
        train(OfMarked, Layout(2, stages=2), wire=sockets.transport, regions=sockets.regions, **settings)
    assert not recorders.told
    assert Marked.again == [False, False]


class AfterItsForward(Retracer):
    """Repeats a backward pass only if its forward pass was the last one that was repeated. In CUDA graphs an activation
    checkpoint with dropout is repeated rightly only then."""

    last: object = None

    def record(self, *works: Callable[[], None], **how: Any) -> Sequence[Callable[[], None]]:
        forward, backward = super().record(*works, **how)

        def first() -> None:
            self.last = works
            forward()

        return first, lambda: backward() if self.last is works else None


def test_a_backward_pass_that_is_right_after_its_forward_pass_alone_is_computed_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings: dict[str, Any] = {"optimizer": ADAM, "steps": 5}
    unsplit = train(pipelines.Batchnorm, ONE, **settings)
    recorders = Recorders(monkeypatch, AfterItsForward)
    with Sockets("unix", 2) as sockets:
        split = train(
            pipelines.Batchnorm, Layout(2, stages=2), wire=sockets.transport, regions=sockets.regions, **settings
        )
    assert split.trace == unsplit.trace
    assert recorders.told == ["done again from a recording, a micro-batch gives other bits"], "of the first stage"


class Weighing(pipelines.Mlp):
    """Random numbers are drawn before the model is called, and used behind the border."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        inputs, labels = batch
        weights = torch.rand(len(labels), device=labels.device)
        return (nn.functional.cross_entropy(model(inputs), labels, reduction="none") * weights).mean()


class Choosing(pipelines.Mlp):
    """The same with a number of Python, which is one of two."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        factor = 0.5 if random.random() < 0.1 else 1.0
        return super().loss(model, batch) * factor


@pytest.mark.parametrize("kind", [Weighing, Choosing], ids=lambda kind: kind.__name__)
def test_a_stage_before_whose_border_numbers_are_drawn_is_computed_eagerly(
    monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    unsplit = train(kind, ONE, steps=8)
    recorders = Recorders(monkeypatch)
    with Sockets("unix", 2) as sockets:
        split = train(kind, Layout(2, stages=2), wire=sockets.transport, regions=sockets.regions, steps=8)
    assert split.trace == unsplit.trace
    assert "loss() draws random numbers before the border of this stage" in recorders.told


class Peeking(pipelines.Mlp):
    """A loss that depends on a value behind the back of torch: another micro-batch than the recorded one shows it."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, batch) * float(batch[0].numpy().sum())


def test_a_step_that_is_repeated_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step is, because no sum is known before by which its grid is chosen."""
    unsplit = train(Peeking, ONE, steps=5)
    recorders = Recorders(monkeypatch)
    with Sockets("unix", 2) as sockets:
        split = train(Peeking, Layout(2, stages=2), wire=sockets.transport, regions=sockets.regions, steps=5)
    assert split.trace == unsplit.trace
    assert any("other bits" in why for why in recorders.told)


def _given(batch: Any) -> Given:
    return Given(staging.Arriving(batch, lambda: batch), lambda _: None)


def test_what_was_given_up_is_computed_eagerly_from_the_next_step_on() -> None:
    told: list[str] = []
    nothing: Any = None
    graphs = stage_graphs.StageGraphs(Retracer(), nothing, nothing, nothing, told.append)
    call = Call(lambda: None, nullcontext, 1, "", _given(torch.ones(2)))
    recording: Any = SimpleNamespace(key=stage_graphs._key(call, None), watched=Watched())
    graphs.begin_step(1)
    graphs._shapes[recording.key] = stage_graphs._Shape([recording], {0, 1})
    graphs.begin_step(1)
    taken = graphs.take(call, None)
    assert taken is not None
    assert taken is recording
    strange, now = call._replace(given=_given(object())), Generators.now()
    graphs.note(stage_graphs.Example(strange, None, None, seeded=now, drawn=now, found=None))
    graphs.give_back(taken)
    graphs.begin_step(1)
    assert graphs.take(call, None) is None
    assert len(told) == 1


def test_where_more_are_under_way_than_before_passes_are_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a lost worker's shards are. A worker with one shard has compared its recordings where no other pass could
    come in between."""
    nothing: Any = None
    graphs = stage_graphs.StageGraphs(Retracer(), nothing, nothing, nothing, lambda _: None)
    compared: list[bool] = []

    def again(_recording: Any, _example: Any, between: Any) -> None:
        compared.append(between is not None)

    monkeypatch.setattr(stage_graphs, "Recording", lambda *_: SimpleNamespace(make=lambda *_: None))
    monkeypatch.setattr(stage_graphs, "_drawn_in_host_memory", lambda *_: False)
    monkeypatch.setattr(stage_graphs, "_alike", lambda *_: True)
    for name, double in {"_begin": lambda _: None, "_eagerly": lambda _: None, "_again": again}.items():
        monkeypatch.setattr(graphs, name, double)
    for step, under_way in enumerate([1, 1, 2, 2, 1]):
        graphs.begin_step(under_way)
        if not graphs._free:
            graphs._learn("a shape", nothing, step)
    assert compared == [False, False, True, True, True, True]
    assert len(graphs._free["a shape"]) == 2


def test_memory_of_recordings_that_are_of_no_use_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that has none for all of them holds what others of the card need, and computes eagerly."""
    stage: Any = SimpleNamespace(parameters={})
    replica: Any = SimpleNamespace(buffers=list, continue_shard=lambda _: None)
    recorder, nothing = Retracer(), torch.empty(0)
    graphs = stage_graphs.StageGraphs(recorder, stage, replica, staging.Direct(), lambda _: None)
    example: Any = nothing
    for why, given_back in (("", 0), ("no memory", 1)):
        monkeypatch.setattr(graphs, "_learn", lambda *_, why=why: graphs._give_up(why) if why else None)
        graphs._examples = {"of one shape": example}
        graphs.learn(0)
        assert recorder.given_back == given_back


class Exploding(pipelines.Mlp):
    """The loss of one sample is infinite, in a step that has recordings."""

    threshold = 2.35

    def __init__(self) -> None:
        super().__init__(rows=100)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        factor = torch.where(batch[0].max() > self.threshold, float("inf"), 1.0)
        return super().loss(model, batch) * factor


def test_of_an_infinite_loss_who_has_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other stages find gradients that are not finite, and say nothing of them."""
    (expected,) = [end for end in members_end(Exploding, ONE, steps=12) if isinstance(end, Exception)]
    recorders = Recorders(monkeypatch)
    with Sockets("unix", 2) as sockets:
        ends = members_end(Exploding, Layout(2, stages=2), wire=sockets.transport, regions=sockets.regions, steps=12)

    (told,) = [end for end in ends if isinstance(end, Exception)]
    assert str(told) == str(expected)
    assert {end.kind for end in ends if isinstance(end, Ended)} == {"withdrew"}
    assert all(recorder.replays for recorder in recorders.made)


OF_NO_DEVICE = (*IN_HOST_MEMORY, "messages.py", "border_values.py", "socket_transport.py")


@pytest.mark.parametrize("kind", [pipelines.Mlp, pipelines.Batchnorm])
def test_a_step_waits_for_its_device_as_often_however_many_shards_it_has(
    monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """Neither for losses, statistics and counters of each shard, nor before what it tells its neighbours."""
    found: list[str] = []

    def counted(look: Any) -> Any:
        def counting(*given: Any) -> Any:
            where = sys._getframe(1).f_code
            if not where.co_filename.endswith(OF_NO_DEVICE):
                found.append(where.co_qualname)
            return look(*given)

        return counting

    Recorders(monkeypatch)
    for name in LOOKS:
        monkeypatch.setattr(torch.Tensor, name, counted(getattr(torch.Tensor, name)))
    monkeypatch.setattr(torch, "equal", counted(torch.equal))
    monkeypatch.setattr(device_double.HostDriver, "settle", counted(device_double.HostDriver.settle))

    def of_two_steps(shards: int) -> Counter[str]:
        """Behind those that compare recordings."""
        counts = []
        for steps in (4, 6):
            found.clear()
            with Sockets("unix", 2) as sockets:
                layout = Layout(2, stages=2)
                settings = {"steps": steps, "shards": shards, "batch_size": 2 * shards, "args": {"rows": 80}}
                train(kind, layout, wire=sockets.transport, regions=sockets.regions, **settings)
            counts.append(Counter(found))
        return counts[1] - counts[0]

    assert of_two_steps(2) == of_two_steps(6)
