"""A recorder for processors: it notes every operation of the work, and does them again on the same memory.

As with a CUDA graph, nothing of Python is done again, a value that was looked at is an error, and what was a number stays it.
Random numbers come from the generator of the processor, which is seeded before each repetition as a card's is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orchestrator.common import frames
from orchestrator.numerics import staging
from orchestrator.numerics.device.kernels import Operations
from orchestrator.worker import device
from orchestrator.worker.model import shard_graphs
from tests.comm.transports import device_double

_TAKES_MEMORY = {"empty", "empty_like", "empty_strided", "new_empty"}  # which a replay finds as it is
_READS = {"_local_scalar_dense", "equal", "is_nonzero"}


class Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if operation.overloadpacket.__name__ in _READS:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = operation(*args, **kwargs)
        if operation.overloadpacket.__name__ not in _TAKES_MEMORY:
            self.operations.append((operation, args, kwargs, _tensors(result)))
        return result


class Retracer:
    """Implements `recorder.Recorder`. recorded: how many recordings of one work were made; replays: how often works
    were done again; steps: how often all of a step were, as one; given_back: how often memory was."""

    def __init__(self) -> None:
        self.recorded = self.replays = self.steps = self.given_back = 0

    def give_back(self) -> None:
        self.given_back += 1

    def record(
        self,
        *works: Callable[[], None],
        before: Callable[[], None] = lambda: None,
        apart: bool = False,  # noqa: ARG002
    ) -> Sequence[Callable[[], None]]:
        before()
        for work in works:
            work()
        before()
        return [self._recorded(work) for work in works]

    def in_turn(self, works: Sequence[Callable[[], None]]) -> Callable[[Sequence[int]], None]:
        replays = [self._noted(work) for work in works]

        def again(seeds: Sequence[int]) -> None:
            self.steps += 1
            self.replays += len(seeds)
            for seed, replay in zip(seeds, replays, strict=True):
                torch.default_generator.manual_seed(seed)
                replay()

        return again

    def _recorded(self, work: Callable[[], None]) -> Callable[[], None]:
        noted = self._noted(work)
        self.recorded += 1

        def replay() -> None:
            self.replays += 1
            noted()

        return replay

    def _noted(self, work: Callable[[], None]) -> Callable[[], None]:
        noting = Noting()
        with noting:
            work()

        def replay() -> None:
            with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
                for operation, args, kwargs, results in noting.operations:
                    given = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
                    for place, value in zip(results, _tensors(operation(*args, **kwargs)), strict=True):
                        if place.untyped_storage().data_ptr() not in given:
                            place.copy_(value)

        return replay


def records(monkeypatch: pytest.MonkeyPatch, recorder: Retracer) -> None:
    """From now on, and until the test ends, workers sum on a device, and record with this."""
    here = staging.Resident(torch.device("cpu"))
    opened = lambda *_: device.Device(here, device_double.regions(), Operations(), recorder)  # noqa: E731
    monkeypatch.setattr(device, "opened", opened)
    # Random numbers that torch draws on the processor are part of a recording of `Retracer`; those of Python are not.
    monkeypatch.setattr(shard_graphs, "_host_generators", random.getstate)
    monkeypatch.setattr(frames, "_LIBRARIES", (*frames._LIBRARIES, __file__))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
