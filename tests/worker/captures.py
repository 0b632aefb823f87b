"""A double of what torch.cuda promises of captures, and of how it fails.

A capture that has looked at a value raises where it does so, and once more as it ends. In torch 2.11 and 2.12 its stream, its
pool and its generator are not put back then; later versions put back a part.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

CAPTURE = "capture"


class Card:
    """A double of what torch keeps for one GPU. ended: whether this version ends allocation to a pool by itself, and releases
    it with the graph, also if the capture fails."""

    def __init__(self, *, ended: bool) -> None:
        self.stream: Any = Stream()
        self.at: list[Any] = []  # the stream of each pass
        self.pools: dict[int, int] = {}  # how many hold each
        self.underway: list[int] = []  # pools that take what is allocated
        self.capturing = False
        self.graphs: list[Graph] = []  # that were captured
        self.state = torch.Generator()  # of the generator of this card
        self.drawn: list[list[int]] = []  # the seeds of each replay
        self.refusing: list[torch.Generator] = []  # states from which nothing is drawn outside a capture
        self.writes_seeds = False  # in the stream of the capture, for which no other stream waits
        self.invalid = False
        self.waits_are_told = "default"  # the mode of torch that warns of each
        self._ended = ended

    def launch(self) -> None:
        self.at.append(self.stream)

    def look(self) -> None:
        if self.capturing:
            self.invalid = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if self.waits_are_told == "warn":
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=2)

    def look_unless_capturing(self) -> None:
        if not self.capturing:
            self.look()

    def draw(self) -> None:
        self.require([self.state])

    def require(self, states: list[torch.Generator]) -> None:
        if any(one is each for one in self.refusing for each in states):
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    @contextmanager
    def within(self, stream: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def capture(self, graph: Graph, pool: int, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        graph.card = self
        graph.began_with = self.state
        self.graphs.append(graph)
        before, self.stream = self.stream, CAPTURE
        self.writes_seeds = True
        self.pools[pool] = self.pools.get(pool, 0) + 1
        self.underway.append(pool)
        self.capturing, self.refusing = True, [*self.refusing, self.state, *graph.states]
        try:
            yield
        finally:
            self.capturing = False
            if self._ended or not self.invalid:
                self.underway.remove(pool)
                graph.pool = pool
            if self.invalid:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            self.refusing = [each for each in self.refusing if each not in (graph.began_with, *graph.states)]
            self.stream = before

    def synchronize(self) -> None:
        self.writes_seeds = False

    def end(self, device: int, pool: int) -> None:
        assert device == 0
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def release(self, device: int, pool: int) -> None:
        assert device == 0
        self.pools[pool] -= 1
        assert self.pools[pool] >= 0, "torch would fail at each later look for memory"


class Graph:
    def __init__(self) -> None:
        self.replays = 0
        self.states: list[torch.Generator] = []
        self.began_with: torch.Generator | None = None
        self.card: Card | None = None
        self.pool: int | None = None  # that it is to release

    def register_generator_state(self, state: torch.Generator) -> None:
        assert self.card is None, "before its capture begins"
        self.states.append(state)

    def replay(self) -> None:
        self.replays += 1
        assert self.card is not None
        assert self.began_with is not None
        assert not self.card.writes_seeds, "those of a replay may be written over"
        self.card.stream.is_busy = True
        self.card.require([self.began_with, *self.states])
        self.card.drawn.append([state.initial_seed() for state in self.states])

    def reset(self) -> None:
        if self.card is not None and self.pool is not None:
            self.card.release(0, self.pool)
            self.pool = None


class Generator:
    device = torch.device("cpu")

    def __init__(self, card: Card) -> None:
        self._card = card

    def graphsafe_get_state(self) -> torch.Generator:
        return self._card.state

    def graphsafe_set_state(self, state: torch.Generator) -> None:
        assert isinstance(state, torch.Generator)
        self._card.state = state


class Stream:
    def __init__(self) -> None:
        self.waited_for: list[Any] = []
        self.is_busy = False

    def synchronize(self) -> None:
        self.is_busy = False

    def wait_stream(self, stream: Any) -> None:
        self.waited_for.append(stream)


def patched(monkeypatch: pytest.MonkeyPatch, *, ended: bool = False) -> Card:
    card = Card(ended=ended)
    for name, value in {
        "Stream": Stream,
        "stream": card.within,
        "current_stream": lambda: card.stream,
        "set_stream": lambda stream: setattr(card, "stream", stream),
        "synchronize": card.synchronize,
        "is_current_stream_capturing": lambda: card.capturing,
        "empty_cache": lambda: None,
        "CUDAGraph": Graph,
        "graph": card.capture,
        "graph_pool_handle": partial(next, itertools.count(7)),
        "current_device": lambda: 0,
        "default_generators": (Generator(card),),
        "get_sync_debug_mode": lambda: card.waits_are_told,
        "set_sync_debug_mode": lambda mode: setattr(card, "waits_are_told", mode),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", card.end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", card.release, raising=False)
    return card
