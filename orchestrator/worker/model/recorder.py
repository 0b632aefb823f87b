"""How passes are recorded on a device, and why some cannot be."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from orchestrator.common import gpu_memory
from orchestrator.common.frames import is_own, is_users
from orchestrator.numerics import cuda
from orchestrator.worker.model.held_memory import HoldMemory, hold_memory

_WARM_UPS: Final = 3  # what libraries choose or allocate in their first calls is no part of a recording

_TORCH = Path(torch.__file__).parent


class Recorder(Protocol):
    """How work is recorded on a device."""

    def record(
        self, *works: Callable[[], None], before: Callable[[], None] = lambda: None, apart: bool = False
    ) -> Sequence[Callable[[], None]]:
        """Do the works in turn, record each, and return what does each again, reading and writing the same memory. before:
        brings there what they read, each time that they are done, for they may change it; apart: what they leave stays until
        they are replayed, whatever else is recorded. Raises RuntimeError for work that cannot be recorded."""

    def in_turn(self, works: Sequence[Callable[[], None]]) -> Callable[[Sequence[int]], None]:
        """Record the works as one, each with random numbers of its own, and do none of them. Returns what does them, given the
        seed of each. Each was recorded by itself before, or some work like it. Their results stay until they are replayed,
        whatever else is meanwhile. Raises as `record`."""

    def give_back(self) -> None:
        """Give the device the memory that passes without a recording took: those of a shape are recorded now."""


class CudaRecorder:
    """Implements `Recorder`. Source: PyTorch, "CUDA semantics", section CUDA Graphs.

    A capture that fails is the ordinary way to learn that work looks at values. torch leaves it half ended, so the rest is
    ended here. Without that its stream stays current, memory that a copy used is never given again, and the generator of
    random numbers refuses to draw outside a capture.

    Some code asks whether it is captured, and looks at values only if not, as masks of transformers do. So the last warm-up is
    watched: work that waits there and not in the capture takes another way in it, which shows with some values only.

    All recordings of single works share one pool of memory. They are replayed one after the other, and each is read before
    the next: so activations of one shape lie where those of another do.

    Works in turn have a pool of their own. They leave losses and counters, which are read at the end of the step. Before that
    a worker may do a shard again that it claims of another one. Its recording is older, so its activations could lie there.
    """

    def __init__(self) -> None:
        self._side: torch.cuda.Stream | None = None  # of all warm-ups: cuBLAS keeps memory for each stream
        self._pools: dict[str, Any] = {}  # by whose they are
        # torch's allocators may ask these as long as this process lives.
        self._failed: list[torch.cuda.CUDAGraph] = []

    def record(
        self, *works: Callable[[], None], before: Callable[[], None] = lambda: None, apart: bool = False
    ) -> Sequence[Callable[[], None]]:
        current = torch.cuda.current_stream()
        side = self._side = self._side or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()  # what passes before took, which no other stream can have
        side.wait_stream(current)
        try:
            with torch.cuda.stream(side):
                for _ in range(_WARM_UPS - 1):
                    before()
                    for work in works:
                        work()
                before()
                with cuda.waits() as waits:
                    for work in works:
                        work()
        finally:  # a pass that raises leaves others under way, which write the model's buffers
            current.wait_stream(side)
        graphs: list[torch.cuda.CUDAGraph] = []
        replays: list[Callable[[], None]] = []
        pool = torch.cuda.graph_pool_handle() if apart else self._pool("single works")
        try:
            for work in works:
                graphs.append(torch.cuda.CUDAGraph())
                replays.append(self._capture(graphs[-1], pool, work))
            if waits:
                raise RuntimeError(f"{waits[0]} looks at values, but not while it is recorded")
        except BaseException:
            self._forget(pool)
            for graph in graphs[: len(replays)]:
                graph.reset()  # or its pool would keep the memory of passes that are computed eagerly from now on
            raise
        finally:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # what the warm-ups took
        return replays

    def in_turn(self, works: Sequence[Callable[[], None]]) -> Callable[[Sequence[int]], None]:
        graph, generator = torch.cuda.CUDAGraph(), torch.cuda.default_generators[torch.cuda.current_device()]
        own, states = generator.graphsafe_get_state(), [torch.Generator(generator.device) for _ in works]
        for state in states:
            graph.register_generator_state(state)

        def work_in_turn() -> None:
            for state, work in zip(states, works, strict=True):
                generator.graphsafe_set_state(state)
                work()

        def again(seeds: Sequence[int]) -> None:
            for state, seed in zip(states, seeds, strict=True):
                state.manual_seed(seed)
            replay()

        # A capture begins with the state that is current. One that fails leaves that of no use, and recordings of single works
        # draw from the own one.
        generator.graphsafe_set_state(states[0])
        try:
            replay = self._capture(graph, self._pool("works in turn"), work_in_turn)
        finally:
            generator.graphsafe_set_state(own)
        return again

    def _pool(self, of: str) -> Any:
        if of not in self._pools:
            self._pools[of] = torch.cuda.graph_pool_handle()
        return self._pools[of]

    def _forget(self, pool: Any) -> None:
        """torch refuses a capture in a pool of which no graph is left."""
        self._pools = {of: each for of, each in self._pools.items() if each != pool}

    def _capture(self, graph: torch.cuda.CUDAGraph, pool: Any, work: Callable[[], None]) -> Callable[[], None]:
        """Returns what does the work again, and holds what it reads."""
        # A pass before may be kept by a cycle. Its nodes for gradients name the stream on which it was computed, and a capture
        # that meets them fails.
        gc.collect()
        torch.cuda.synchronize()
        current, held = torch.cuda.current_stream(), hold_memory()
        try:
            # Other threads of this process may copy or allocate meanwhile, as a checkpoint's does.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"), held:
                work()
        except BaseException:
            torch.cuda.set_stream(current)
            self._end(graph, pool)
            raise
        finally:
            # As a capture begins, torch writes seeds in its stream, which no other waits for. Their memory is given to others
            # with the last graph, and a replay writes there too.
            torch.cuda.synchronize()

        def again(_held: HoldMemory = held) -> None:
            graph.replay()

        weakref.finalize(again, _settle, graph).atexit = False
        return again

    def give_back(self) -> None:
        torch.cuda.empty_cache()

    def _end(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """A graph's hold of its pool may be released only once: here if allocations still go there, else by the graph."""
        self._failed.append(graph)
        self._forget(pool)
        device = torch.cuda.current_device()
        end, release = getattr(torch._C, "_cuda_endAllocateToPool", None), getattr(torch._C, "_cuda_releasePool", None)
        with suppress(RuntimeError):
            if end is not None and release is not None:
                end(device, pool)  # raises where torch has ended that
                release(device, pool)
        with suppress(RuntimeError):
            graph.reset()
        generator = torch.cuda.default_generators[device]
        generator.graphsafe_set_state(torch.Generator(generator.device))  # a state that no capture has begun with


def _settle(_graph: torch.cuda.CUDAGraph) -> None:
    """Before a graph is let go: wait for its replays. torch gives its memory back to the driver when it next looks for some. It
    waits only for the stream of its capture then (`ExpandableSegment.unmapHandles`)."""
    with suppress(RuntimeError):  # a card that has failed
        if not torch.cuda.is_current_stream_capturing():  # before a capture all was waited for
            torch.cuda.current_stream().synchronize()


def reason(error: BaseException) -> str:
    """The operation that cannot be recorded, with the line of the user's code that calls it. The first error of the
    chain names it: an error at the end of a capture only says that an earlier operation failed."""
    chain = [error]
    while (before := chain[-1].__context__) is not None:
        chain.append(before)
    lines = [users_line(each) for each in chain]
    first = max((index for index, line in enumerate(lines) if line), default=len(chain) - 1)
    text = str(chain[first]).strip()
    what = text.splitlines()[0] if text else type(chain[first]).__name__
    if any(map(gpu_memory.ran_out, chain)):
        # Behind that torch tells how full the card is, which is of another moment when it is read.
        wanted = what.partition(" GPU ")[0].rstrip(".")
        return f"the GPU has no memory for a recording, which keeps what its passes need: {wanted}"
    return f"{lines[first]}{what}"


def users_line(error: BaseException) -> str:
    """The innermost line of the user's code that the error came through, or else of a package but torch; empty where there is
    none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame)]
    packages = [
        frame
        for frame in frames
        if "-packages" in frame.filename and not (is_own(frame) or Path(frame.filename).is_relative_to(_TORCH))
    ]
    found = own or packages
    return f"{found[-1].filename}:{found[-1].lineno}: {str(found[-1].line).rstrip(':')}: " if found else ""
