"""Logical streams: one for each shard, and one result, whoever hosts the shards and whatever happens to the hosts."""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from orchestrator import Pipeline, Stream
from orchestrator.checkpoint.stream_log import Logged, StreamLog, collect
from orchestrator.common.values import Every, Span
from orchestrator.config.resolve import resolve
from orchestrator.errors import Inconsistent, OrchestratorError
from orchestrator.worker import worker
from tests.products import thinned
from tests.refusals import refused
from tests.worker import elastic, runs
from tests.worker.elastic import EVERYTHING, Elastic, Fault, Saved, Told, elastic_settings, survive
from tests.worker.runs import Layout, Run, assert_same_run, members_end, rotating, train

pytestmark = pytest.mark.threads

LENGTH = 13  # samples of a shard in an epoch, of a stream that ends


class Plain(Stream):
    """A generator, which draws from its own generator and from those of the process; its epochs end."""

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterator[Any]:
        base = torch.rand(4, generator=generator)
        for number in range(shard, LENGTH * shards, shards):
            drawn = torch.rand(4, generator=generator) + torch.rand(4) + random.random() + numpy.random.rand()
            yield (base + drawn) * 0.25, (number + epoch) % 3


class Walk:
    """A stream with a state, as torchdata's nodes and Hugging Face's data sets have one."""

    opened: list[int] = []  # noqa: RUF012

    def __init__(self, shard: int, generator: torch.Generator) -> None:
        self._place, self._generator, self._number = torch.full((4,), float(shard)), generator, 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._number += 1
            self._place = self._place * 0.5 + torch.rand(4, generator=self._generator)
            yield self._place.clone(), self._number % 3

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place.clone(), "number": self._number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._place, self._number = state["place"], state["number"]


class WithState(Stream):
    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Walk:  # noqa: ARG002
        return Walk(shard, generator)


class Forgetful(Stream):
    """Its state_dict() leaves out where it is."""

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Walk:  # noqa: ARG002
        class Half(Walk):
            def load_state_dict(self, state: dict[str, Any]) -> None:
                self._number = state["number"]

        return Half(shard, generator)


class Shuffling(Walk):
    """From its 15th sample on it holds one back, which is no part of its state, as in Hugging Face's `shuffle`."""

    def __iter__(self) -> Iterator[Any]:
        held = None
        for sample in super().__iter__():
            if self._number <= 14:
                yield sample
            elif held is not None:
                yield held
            held = sample if self._number > 14 else None


class Buffered(Stream):
    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Walk:  # noqa: ARG002
        return Shuffling(shard, generator)


class Large(WithState):
    state_bytes = 16


class Short(Plain):
    """It has one epoch."""

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterator[Any]:
        return super().stream(shard, shards, epoch, generator) if not epoch else iter(())


class Restless(Stream):
    """Each time it is asked it gives others."""

    def __init__(self) -> None:
        self._asked = itertools.count()

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterator[Any]:  # noqa: ARG002
        asked = next(self._asked)
        return ((torch.full((4,), float(asked + number)), number % 3) for number in itertools.count())


KINDS: dict[str, type[Stream]] = {
    kind.__name__: kind for kind in (Plain, WithState, Buffered, Forgetful, Large, Short, Restless)
}


class OfStream(Pipeline):
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def datasets(self) -> tuple[Any, Any]:
        held_out = [(torch.full((4,), number / 7), number % 3) for number in range(7)]
        return KINDS[self._kind](), held_out

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])


def _run(kind: str, layout: Layout = Layout(1), **more: Any) -> Run:  # noqa: B008
    given = {"optimizer": {"name": "adam", "lr": 0.01}, "shards": 5, "batch_size": 17, "steps": 6, **more}
    return train(OfStream, layout, args={"kind": kind}, **given)


@functools.cache
def _reference(kind: str) -> Run:
    return _run(kind)


@pytest.mark.parametrize("layout", thinned(rotating(5, 1), 5), ids=str)
@pytest.mark.parametrize("kind", ["Plain", "WithState"])
def test_a_stream_gives_one_result_in_every_layout(kind: str, layout: Layout) -> None:
    assert_same_run(_run(kind, layout), _reference(kind))


OTHER_STEPS: dict[str, dict[str, Any]] = {
    "local steps": {"local": {"steps": 3, "optimizer": {"name": "sgd", "lr": 0.1}}},
    "top-k": {"compression": {"name": "topk", "ratio": 0.3}},
    "quantize": {"compression": {"name": "quantize", "bits": 8, "error_feedback": False}},
    "growing batch": {"batch_size": {0: 5, 2: 11, 4: 20}},
}


@pytest.mark.long
@pytest.mark.parametrize("name", OTHER_STEPS)
def test_a_stream_goes_with_other_steps(name: str) -> None:
    more = OTHER_STEPS[name]
    assert_same_run(_run("Plain", Layout(3, "tree"), **more), _run("Plain", **more))


@pytest.mark.long
def test_free_replicas_count_up_and_a_replay_gives_the_same() -> None:
    more = {"sync": {"name": "asp", "rest_every": 3}, "steps": 7}
    live = _run("Plain", Layout(3), **more)
    assert_same_run(_run("Plain", Layout(2, "tree"), replay=live.rests, **more), live)


@pytest.mark.long
def test_a_model_in_stages_takes_the_same_samples() -> None:
    more: dict[str, Any] = {"shards": 4, "batch_size": 14}
    assert _run("Plain", Layout(2, stages=2), **more).digest == _run("Plain", **more).digest


@pytest.mark.parametrize("kind", ["Plain", "WithState"])
def test_what_a_model_in_stages_has_saved_goes_on_without_stages(kind: str) -> None:
    """Such a checkpoint does not hold the places of streams, so samples are passed over from the first one on."""
    given: dict[str, Any] = {"args": {"kind": kind}, "shards": 4, "batch_size": 14, "steps": 6, "checkpoint_every": 2}
    saved, staged, other = Saved(), Layout(2, stages=2), Layout(3, "tree")
    stopped = Elastic(elastic_settings(OfStream, staged, **given), staged, [Fault(1, 100, "stop")], saved=saved).run()
    told = Elastic(
        elastic_settings(OfStream, other, **given), other, [Fault(1, 40, "die")], saved=saved, outlives=True
    ).run()
    whole = survive(OfStream, Layout(1), **given)
    assert 0 < len(stopped.trace) < 6
    assert sum(ends[-1] == "dead" for ends in told.ends) == 1
    assert (told.trace, told.digest) == (whole.trace[len(stopped.trace) :], whole.digest)


class Numbered(OfStream):
    def datasets(self) -> tuple[Any, Any]:
        return [(torch.full((4,), number / 50), number % 3) for number in range(50)], None


@pytest.mark.parametrize("streams_first", [True, False])
def test_a_run_begins_with_the_state_of_one_whose_samples_came_otherwise(streams_first: bool) -> None:
    given: dict[str, Any] = {"args": {"kind": "Plain"}, "shards": 4, "batch_size": 14, "steps": 6}
    first, second = (OfStream, Numbered) if streams_first else (Numbered, OfStream)
    saved, layout = Saved(), Layout(2)
    stopped = Elastic(elastic_settings(first, layout, **given), layout, [Fault(1, 30, "stop")], saved=saved).run()
    one, two = (
        Elastic(elastic_settings(second, other, **given), other, saved=copy.deepcopy(saved)).run()
        for other in (Layout(1), Layout(3, "tree"))
    )
    assert 0 < len(stopped.trace) < 6
    assert (one.trace, one.digest) == (two.trace, two.digest)
    assert len(one.trace) == 6 - len(stopped.trace)


places: dict[int, int] = {}  # of each shard, where its stream is


class Placed(Stream):
    """It has its places outside of its iterators."""

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterator[Any]:
        base = torch.rand(4, generator=generator)
        places[shard] = epoch
        while True:
            places[shard] += 1
            yield base / places[shard], (places[shard] + shards) % 3


KINDS["Placed"] = Placed


class NotesOfStream(OfStream):
    """Is told the step, and notes what it has computed."""

    last: torch.Tensor | None = None

    def loss(self, model: nn.Module, batch: Any, step: int = 0) -> torch.Tensor:  # noqa: ARG002
        self.last = super().loss(model, batch)
        return self.last


class RemembersOfStream(OfStream):
    """After a warm-up."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.memory: list[torch.Tensor] = []

    def loss(self, model: nn.Module, batch: Any, step: int = 0) -> torch.Tensor:
        loss = super().loss(model, batch)
        if step < 2:
            return loss
        self.memory.append(loss.detach())
        return loss * len(self.memory)


IN_OTHER_WAYS: dict[str, dict[str, Any]] = {
    "lockstep": {},
    "local steps": OTHER_STEPS["local steps"],
    "asynchronous": {"sync": {"name": "ssp", "staleness": 1}},
}


@pytest.mark.parametrize("way", IN_OTHER_WAYS)
@pytest.mark.parametrize("kind", ["Placed", "WithState"])
def test_a_second_computation_takes_no_sample_of_a_stream_twice(kind: str, way: str) -> None:
    places.clear()
    given: dict[str, Any] = {"args": {"kind": kind}, "steps": 6, **IN_OTHER_WAYS[way]}
    assert train(NotesOfStream, **given).digest == train(OfStream, **given).digest
    assert len(set(places.values())) < 2


@pytest.mark.parametrize("way", IN_OTHER_WAYS)
def test_what_a_batch_of_a_stream_leaves_behind_is_found(way: str) -> None:
    (end,) = members_end(RemembersOfStream, args={"kind": "Plain"}, steps=6, **IN_OTHER_WAYS[way])
    assert isinstance(end, Inconsistent)
    assert end.code in ("pipeline.changed-once", "pipeline.repeated-differently")


# ---- losses


def _told(kind: str, layout: Layout, faults: Sequence[Fault] = (), *, outlives: bool = False) -> tuple[Told, Elastic]:
    given = {**EVERYTHING, "args": {"kind": kind}, "early_stopping": {}, "checkpoint_every": 2, "batch_size": 14}
    run = Elastic(elastic_settings(OfStream, layout, **given), layout, faults, outlives=outlives)
    return run.run(), run


@functools.cache
def _undisturbed(kind: str) -> Told:
    return _told(kind, Layout(1))[0]


def _unmoved(told: Told, kind: str) -> None:
    whole = _undisturbed(kind)
    assert told.digest == whole.digest
    assert all(whole.trace[line["step"]] == line for line in told.trace)
    assert all(whole.metrics[step] == metrics for step, metrics in told.metrics.items())


@pytest.mark.parametrize("kind", thinned(["Plain", "WithState"], 2, 1))
@pytest.mark.parametrize("at", thinned([37, 60], 2, 1))
def test_a_lost_host_leaves_its_streams_to_others(kind: str, at: int) -> None:
    faults = [Fault(1, at, "die"), Fault(2, at + 17, "die"), Fault(0, at + 30, "call off")]
    told, run = _told(kind, Layout(4, "ring"), faults, outlives=True)
    assert sum(ends[-1] == "dead" for ends in told.ends) == 2
    assert run.went_back == 0
    _unmoved(told, kind)


class Refilling(Stream):
    """All shards have their samples in the same memory."""

    def __init__(self) -> None:
        self._memory = numpy.zeros(4, numpy.float32)

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterator[Any]:  # noqa: ARG002
        for number in itertools.count(shard, shards):
            self._memory[:] = torch.rand(4, generator=generator).numpy()
            yield torch.from_numpy(self._memory), number % 3


class OfRefilled(OfStream):
    def datasets(self) -> tuple[Any, Any]:
        return Refilling(), None


class Halving(OfStream):
    """Its `collate` writes into the samples, and its `loss` into the batch."""

    def datasets(self) -> tuple[Any, Any]:
        return Plain(), None

    def collate(self, items: Sequence[Any]) -> Any:
        items[0][0].mul_(0.5)
        return super().collate(items)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return super().loss(model, [batch[0].sub_(0.25), batch[1]])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("pipeline", [OfRefilled, Halving])
@pytest.mark.parametrize("compression", [None, {"name": "topk", "ratio": 0.3}], ids=str)
def test_a_step_that_is_repeated_has_the_samples_as_they_were(
    pipeline: type[Pipeline], compression: dict[str, Any] | None, rows: int
) -> None:
    settings: dict[str, Any] = {"shards": 4, "batch_size": 4 * rows, "steps": 5, "compression": compression}
    faults = [Fault(0, at, "call off") for at in range(17, 60, 5)]
    whole, told = (survive(pipeline, Layout(1), each, args={"kind": ""}, **settings) for each in ([], faults))
    assert told.generations > 4
    assert (told.trace, told.digest) == (whole.trace, whole.digest)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Plain", "WithState"])
def test_a_checkpoint_holds_where_each_stream_is(kind: str) -> None:
    """The state that a lost machine kept is nowhere else, so all go on from the last checkpoint."""
    told, run = _told(kind, Layout(3, "tree"), [Fault(1, 70, "die"), Fault(0, 20, "join")])
    assert run.went_back > 0
    _unmoved(told, kind)


@pytest.mark.parametrize("at", [128, 134, 140])
def test_samples_are_taken_anew_where_a_state_leaves_out_what_was_held_back(at: int) -> None:
    """The trial before the first step is over by then."""
    told, run = _told("Buffered", Layout(3, "tree"), [Fault(1, at, "die"), Fault(0, 20, "join")])
    assert run.went_back > 0
    _unmoved(told, "Buffered")
    notes = [[event["why"] for event in member.said if event.get("event") == "device"] for member in run.members]
    assert sum(map(len, notes)) > 0
    assert all(len(each) <= 1 and "state_dict() leaves out" in each[0] for each in notes if each)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_chaos(seed: int) -> None:
    draw = random.Random(seed)
    layout = Layout(draw.randint(1, 4), draw.choice(["ring", "tree", "parameter_server"]))
    kinds: list[Any] = ["die", "join", "join", "call off", "regroup", "save"]
    faults = [Fault(draw.randrange(7), draw.randrange(120), draw.choice(kinds)) for _ in range(12)]
    kind = ("Plain", "WithState")[seed % 2]
    _unmoved(_told(kind, layout, faults)[0], kind)


# ---- what is refused


@pytest.mark.parametrize(
    ("kind", "more", "code", "named"),
    [
        ("Restless", {}, "pipeline.not-repeatable", ""),
        ("Forgetful", {}, "streams.not-restored", ""),
        ("Large", {}, "streams.state-size", "reserves 16"),
        (
            "Short",
            {"steps": 20},
            "streams.epoch-empty",
            "step 3, shard 2: the stream of shard 2 ended after 13 samples",
        ),
        ("Plain", {"steps": None, "epochs": 2}, "streams.run-epochs", "run.epochs"),
        (
            "Plain",
            {"schedule": {"name": "steps", "every": Span(epochs=1)}},
            "streams.schedule-epochs",
            "schedule.every",
        ),
        ("Plain", {"evaluate_every": Every(epochs=1)}, "streams.schedule-epochs", "evaluation.every"),
        ("Plain", {"loaders": 2}, "streams.loaders", "data.loaders"),
        ("Plain", {"order": {"name": "blocks"}}, "streams.chooses-by-number", "data.order"),
        ("Plain", {"partition": {"name": "iid"}}, "streams.chooses-by-number", "data.partition"),
        ("Plain", {"claims": True}, "claims.kept", "cluster.claims"),
    ],
)
def test_what_a_stream_cannot_do_is_said(kind: str, more: dict[str, Any], code: str, named: str) -> None:
    given = {"shards": 5, "batch_size": 17, "steps": 6, "args": {"kind": kind}, **more}
    ends = members_end(OfStream, Layout(2), **given)
    with refused(code, named):
        raise next(end for end in ends if isinstance(end, OrchestratorError))


# ---- live streams


class Queue(Stream):
    """Nobody gets twice what it gives."""

    live = True
    _counted = itertools.count()

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterator[Any]:  # noqa: ARG002
        for number in Queue._counted:
            yield {"x": torch.full((4,), number / 100), "y": number % 3}


class Unspeakable(Queue):
    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterator[Any]:  # noqa: ARG002
        while True:
            yield numpy.zeros(4), 1


class Log:
    """One that can be read from an offset on, as Kafka's."""

    def __init__(self) -> None:
        self._offset = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._offset += 1
            yield {"x": torch.full((4,), self._offset / 100), "y": self._offset % 3}

    def state_dict(self) -> dict[str, Any]:
        return {"offset": self._offset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._offset = state["offset"]


class Offsets(Stream):
    live = True

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Log:  # noqa: ARG002
        return Log()


class InParts(Queue):
    """Its epochs end."""

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterator[Any]:
        return itertools.islice(super().stream(shard, shards, epoch, generator), 5)


KINDS |= {"InParts": InParts, "Offsets": Offsets, "Queue": Queue, "Unspeakable": Unspeakable}


class OfQueue(OfStream):
    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"])

    def datasets(self) -> tuple[Any, Any]:
        return KINDS[self._kind](), [{"x": torch.full((4,), 0.5), "y": 1}]


def _logging(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(worker, "_stream_log", lambda generation, _: StreamLog(str(folder), generation.number))


@contextmanager
def _reading(monkeypatch: pytest.MonkeyPatch, file: Path) -> Iterator[None]:
    """As with streams=FILE of a launch."""

    def resolved(settings: Any) -> Any:
        plan = resolve(settings)
        return replace(plan, data=replace(plan.data, stream_log=str(file)))

    with monkeypatch.context() as patched:
        patched.setattr(runs, "resolve", resolved)
        patched.setattr(elastic, "resolve", resolved)
        yield


def _repeated(monkeypatch: pytest.MonkeyPatch, file: Path, layout: Layout, **given: Any) -> Run:
    with _reading(monkeypatch, file):
        return train(OfQueue, layout, args={"kind": "Queue"}, **given)


GIVEN: dict[str, Any] = {"shards": 4, "batch_size": 14, "steps": 7, "optimizer": {"name": "adam", "lr": 0.02}}


def test_what_a_live_stream_gave_is_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _logging(monkeypatch, tmp_path)
    live = train(OfQueue, Layout(3), args={"kind": "Queue"}, **GIVEN)
    log = tmp_path / "streams.jsonl"
    assert collect(str(tmp_path), log, 7)
    assert_same_run(_repeated(monkeypatch, log, Layout(2, "tree"), **GIVEN), live)
    _logging(monkeypatch, tmp_path / "another")
    again = train(OfQueue, Layout(3), args={"kind": "Queue"}, **GIVEN)
    assert again.digest != live.digest


@pytest.mark.parametrize(
    ("kind", "local"),
    [("InParts", {}), ("Offsets", {"local": {"steps": 2, "optimizer": {"name": "sgd", "lr": 0.1}}})],
)
def test_and_to_a_run_that_began_with_the_state_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, local: dict[str, Any]
) -> None:
    """The log has what that run took, and the state says how much was taken before."""
    given, layout, saved = {"args": {"kind": kind}, **GIVEN, **local}, Layout(2), Saved()
    _logging(monkeypatch, tmp_path / "first")
    faults = [Fault(1, 20, "stop")]
    first = Elastic(elastic_settings(OfQueue, layout, **given), layout, faults, saved=saved).run()
    assert 0 < len(first.trace) < 7
    _logging(monkeypatch, tmp_path / "second")
    begun = Elastic(elastic_settings(OfQueue, layout, **given), layout, saved=copy.deepcopy(saved)).run()
    log = tmp_path / "streams.jsonl"
    assert collect(str(tmp_path / "second"), log, 7)
    other = Layout(3, "tree")
    with _reading(monkeypatch, log):
        faults = [Fault(1, 40, "die")]
        again = Elastic(elastic_settings(OfQueue, other, **given), other, faults, saved=saved, outlives=True).run()
    assert (again.trace, again.digest) == (begun.trace, begun.digest)


@pytest.mark.parametrize("at", thinned([41, 59, 80], 3))
def test_what_counts_is_in_the_log_whoever_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    _logging(monkeypatch, tmp_path)
    faults = [Fault(1, at, "die"), Fault(2, at + 21, "die"), Fault(0, at + 30, "call off"), Fault(0, at + 40, "join")]
    settings = elastic_settings(OfQueue, Layout(4), args={"kind": "Queue"}, checkpoint_every=2, **GIVEN)
    run = Elastic(settings, Layout(4), faults, outlives=at != 59)
    told = run.run()
    assert sum(ends[-1] == "dead" for ends in told.ends) == 2
    log = tmp_path / "streams.jsonl"
    assert collect(str(tmp_path), log, 7)
    repeated = _repeated(monkeypatch, log, Layout(2), **GIVEN)
    assert repeated.digest == told.digest
    assert all(repeated.trace[line["step"]] == line for line in told.trace)


@pytest.mark.parametrize("at", thinned([41, 59, 80], 3, 1))
def test_of_a_source_with_offsets_nothing_is_lost_or_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    _logging(monkeypatch, tmp_path)
    faults = [Fault(1, at, "die"), Fault(2, at + 21, "die"), Fault(0, at + 30, "call off"), Fault(0, at + 40, "join")]
    settings = elastic_settings(OfQueue, Layout(4), args={"kind": "Offsets"}, checkpoint_every=2, **GIVEN)
    told = Elastic(settings, Layout(4), faults, outlives=at != 59).run()
    whole = train(OfQueue, Layout(1), args={"kind": "Offsets"}, **GIVEN)
    assert told.digest == whole.digest


def test_a_damaged_log_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _logging(monkeypatch, tmp_path)
    train(OfQueue, Layout(1), args={"kind": "Queue"}, **GIVEN)
    log = tmp_path / "streams.jsonl"
    collect(str(tmp_path), log, 7)
    lines = log.read_text().splitlines(keepends=True)
    log.write_text(
        "".join([lines[0], lines[1].replace('"y\\",1', '"y\\",2').replace('"y\\",0', '"y\\",1'), *lines[2:]])
    )
    with refused("streams.log-line"):
        Logged(str(log), lambda _steps, _shard: 0)
    first = next((tmp_path / "streams").glob("*.json"))
    first.write_bytes(first.read_bytes() + b" ")
    with refused("streams.log-content"):
        collect(str(tmp_path), log, 7)
    with refused("streams.log-unreadable"):
        Logged(str(tmp_path / "nowhere.jsonl"), lambda _steps, _shard: 0)


@pytest.mark.parametrize(
    ("kind", "more", "code", "named"),
    [
        ("Unspeakable", {}, "streams.sample", "step 0, shard 0: the sample/0 is a numpy.ndarray"),
        ("Queue", {"sync": {"name": "asp"}}, "streams.live", "sync: asp"),
        pytest.param("Queue", {}, "streams.unreachable", "", marks=pytest.mark.long),
    ],
)
def test_what_a_live_stream_cannot_do_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, more: dict[str, Any], code: str, named: str
) -> None:
    if kind == "Unspeakable":
        _logging(monkeypatch, tmp_path)
    found = [end for end in members_end(OfQueue, args={"kind": kind}, **GIVEN, **more) if isinstance(end, Exception)]
    with refused(code, named):
        raise found[0]
