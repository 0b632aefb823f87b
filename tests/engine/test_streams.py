"""Logical streams: one for each shard, and one result, whoever hosts the shards and whatever happens to the hosts."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from orchestrator import Pipeline, Stream
from tests.engine.runs import Layout, Run, rotating, train

LENGTH = 13  # samples of a shard in an epoch, of a stream that ends


class Plain(Stream):
    """A generator, which draws from its own generator and from those of the process; its epochs end."""

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterator[Any]:
        base = torch.rand(4, generator=generator)
        for number in range(shard, LENGTH * shards, shards):
            drawn = torch.rand(4, generator=generator) + torch.rand(4) + random.random() + numpy.random.rand()
            yield (base + drawn) * 0.25, (number + epoch) % 3


class Walk:
    """What has a state: as torchdata's nodes and Hugging Face's data sets."""

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


KINDS = {kind.__name__: kind for kind in (Plain, WithState, Forgetful, Large, Short, Restless)}


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


def _same(run: Run, reference: Run) -> None:
    assert run.trace == reference.trace
    assert run.digest == reference.digest


@functools.cache
def _reference(kind: str) -> Run:
    return _run(kind)


@pytest.mark.parametrize("kind", ["Plain", "WithState"])
def test_a_stream_gives_one_result_in_every_layout(kind: str) -> None:
    for layout in rotating(5, 0):
        _same(_run(kind, layout), _reference(kind))


@pytest.mark.parametrize(
    "more",
    [
        {"local": {"steps": 3, "optimizer": {"name": "sgd", "lr": 0.1}}},
        {"compression": {"name": "topk", "fraction": 0.3}},
        {"compression": {"name": "quantize", "bits": 8, "error_feedback": False}},
        {"batch_size": {0: 5, 2: 11, 4: 20}},
    ],
    ids=["local steps", "top-k", "quantize", "growing batch"],
)
def test_a_stream_goes_with_other_steps(more: dict[str, Any]) -> None:
    _same(_run("Plain", Layout(3, "tree"), **more), _run("Plain", **more))
