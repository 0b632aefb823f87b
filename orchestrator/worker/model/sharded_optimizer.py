"""The optimizer's step, divided among the workers of a host: `update.sharded`.

Every worker has the whole summed gradient; each steps the optimizer over its pieces of the parameters only, in memory that the
workers of a host share, and takes what the others have made. Two workers need half of the time each, and the optimizer's state
is there once for all of them. Hosts do the same, each for itself, so that a host that is lost takes nothing with it.

    make      parameters' pieces are copied to the shared memory and stepped there, their state from one version into the other
    (vote)    all members have made theirs
    commit    every worker takes the new parameters, and the other version of the state is the present one

There are two versions of the state, by the parity of the steps that they have had. Until the vote is over nothing is changed
that a step needs which is done again (rule D1): neither a worker's parameters, nor the present version. All of it is made again
then, since the gradient may be another one, of fewer sites. A version is written over two steps later, which nobody begins
before all have committed the step between (the vote), so whoever is a step behind finds what it needs.

A worker whose state lies elsewhere, as behind a state transfer, brings it there before its next step. A stamp tells for which
generation and step the first one of these has done so, and then the others take what is there.

The pieces are cut by the model alone: at multiples of PIECE elements from the beginning of each parameter, which is as much as
a processor's cache holds with its gradient and state. Numbers such as Adam's count of steps are not of an element: every worker
steps two elements of its own, with gradients of zero, beside its pieces of each parameter, and takes the numbers from there.

The memory belongs to a worker of the host, as the queue of `member/shared_queue.py` does, and the others open it through /proc.
When that worker is gone, another one's memory takes its place, filled by whoever comes first from what it has mapped still.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch

from orchestrator.comm.transports.available_memory import available_bytes
from orchestrator.comm.transports.shared_memory import Mapping as Mapped
from orchestrator.common import locks
from orchestrator.common.figures import megabytes
from orchestrator.errors import ConfigurationError, RunFailed
from orchestrator.numerics import foreach
from orchestrator.numerics.layout import Slot
from orchestrator.optim import by_element, optimizers
from orchestrator.optim.by_element import State
from orchestrator.worker.member import lasting_memory
from orchestrator.worker.member.shared_queue import MemoryHandle, stamp_of
from orchestrator.worker.model.replica import Replica

PIECE: Final = 1 << 17  # elements
_VERSIONS: Final = 2
_SHADOW: Final = 2  # elements
_FLOAT: Final = 4  # bytes


class Piece(NamedTuple):
    """The elements of a parameter from start to stop, as they lie in memory; at: of the first one in the layout."""

    parameter: int
    start: int
    stop: int
    at: int

    @property
    def place(self) -> slice:
        return slice(self.at, self.at + self.stop - self.start)


class HostMemory:
    """The memory that the workers of a host share. made: the new parameters; kept: by name, the two versions of what the
    optimizer keeps of each element. stamp: one number, as of `shared_queue.stamp_of`; 0: nobody has written a state here."""

    def __init__(self, fd: int, size: int, kept: Sequence[str]) -> None:
        """fd: becomes this object's. Raises MemoryError when the memory is not there now."""
        self.fd = fd
        weakref.finalize(self, os.close, fd)
        header = lasting_memory.in_pages(8)
        part = lasting_memory.in_pages(_FLOAT * size)
        whole = header + part * (1 + _VERSIONS * len(kept))
        with self.locked():
            _take(fd, whole)
        memory = Mapped(fd, whole, writable=True)
        self.stamp = memory.tensor(torch.int64, 0, 1).numpy()
        floats = [memory.tensor(torch.float32, header + n * part, size) for n in range(1 + _VERSIONS * len(kept))]
        self.made = floats[0]
        self.kept = {key: (floats[1 + 2 * n], floats[2 + 2 * n]) for n, key in enumerate(kept)}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Until the block ends, or this process does, no other worker is in such a block."""
        locks.lock(self.fd)
        try:
            yield
        finally:
            locks.unlock(self.fd)


class ShardedOptimizer:
    """One worker's part in the update. optimizer: its state lies in the shared memory while the update is divided, whole."""

    def __init__(self, optimizer: torch.optim.Optimizer, replica: Replica) -> None:
        """Raises ConfigurationError for an optimizer that does not work by element."""
        if why := by_element.problem(optimizer):
            raise ConfigurationError(
                [f"update.sharded: the optimizer {why}"],
                "set update.sharded=false, or take one of torch's that work by element, such as adamw or sgd",
                code="optimizer.not-sharded",
            )
        self._optimizer = optimizer
        self._replica = replica
        self._keys = by_element.state_names(optimizer)
        slots = replica.layout.slots[: len(replica.parameters)]
        self._slots = {id(parameter): slot for parameter, slot in zip(replica.parameters, slots, strict=True)}
        self._numbers = {id(parameter): n for n, parameter in enumerate(replica.parameters)}
        self._group_of = {  # in the order of the groups
            self._numbers[id(parameter)]: index
            for index, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
            if id(parameter) in self._numbers
        }
        self._pieces = tuple(piece for n, slot in enumerate(slots) for piece in _pieces_of(n, slot))
        self._version = 0
        self._memory: HostMemory | None = None
        self._generation = 0
        self._own: tuple[int, ...] = ()
        self._bound: dict[torch.Tensor, dict[str, Any]] = {}
        self._following: dict[torch.Tensor, dict[str, Any]] = {}
        self._moved: list[int] = []

    @property
    def divides(self) -> bool:
        """Whether other workers of this host take part."""
        return self._memory is not None

    def settle(self, memory: MemoryHandle | None, index: int, workers: int, generation: int) -> None:
        """Take part in a generation in which so many workers of this host divide the update; this one is number `index` of
        them. memory: theirs; None: this worker is alone. Raises RunFailed where it cannot be reached, and MemoryError."""
        self._generation = generation
        if memory is None:
            self._leave()
        else:
            self._open(memory)
        self._own = tuple(_shares([piece.stop - piece.start for piece in self._pieces], index, workers))

    def make(
        self,
        step: int,
        gradients: Sequence[torch.Tensor | None],
        optimize: Callable[[Callable[[], None]], None],
    ) -> None:
        """Make this worker's pieces of the step. gradients: of the replica's parameters; optimize: calls what it is given, as
        the optimizer's step."""
        memory = self._memory
        assert memory is not None
        self._bind(memory, step)

        def go() -> None:
            self._following = self._numbers_after(gradients)
            for batch in self._batches(self._own):
                self._step(memory, step, batch, gradients)

        optimize(go)
        self._moved = [n for n in self._group_of if gradients[n] is not None]

    def commit(self) -> None:
        """Take what all have made. The step is that of `make`."""
        memory = self._memory
        assert memory is not None
        slots = self._replica.layout.slots
        if self._moved:
            own = [slots[n].view(self._replica.flat) for n in self._moved]
            foreach.copy(own, [slots[n].view(memory.made) for n in self._moved])
        self._take_state(memory, (self._version + 1) % _VERSIONS, self._following)

    def _open(self, place: MemoryHandle) -> None:
        """Share that memory, if it is not shared already: a process and a descriptor may be others' by now."""
        try:
            fd = lasting_memory.opened(place.pid, place.fd)
        except OSError as error:
            raise RunFailed(
                f"the memory that workers of this host share for update.sharded is out of reach: {error}",
                "let the workers of a host see each other's processes, or set update.sharded=false",
                code="optimizer.shared-memory",
            ) from error
        if self._memory is not None and os.path.sameopenfile(fd, self._memory.fd):
            os.close(fd)
            return
        self._memory = HostMemory(fd, self._replica.layout.size, self._keys)
        self._bound = {}

    def _leave(self) -> None:
        """Have the state in memory of this worker's own again."""
        if self._memory is None:
            return
        state = self._optimizer.state
        for parameter, entry in list(state.items()):
            own = {key: entry[key].clone() for key in self._keys if isinstance(entry.get(key), torch.Tensor)}
            # Others know the entry, and views of its tensors, by its identity (`chunked_step.Pieces`).
            state[parameter] = {**entry, **own}
        self._memory, self._bound = None, {}

    def _bind(self, memory: HostMemory, step: int) -> None:
        """Have the present version of the state in the shared memory: there it may be already, or it is written there."""
        self._version = version = step % _VERSIONS
        state = self._optimizer.state
        if self._bound.keys() == state.keys() and all(state[each] is entry for each, entry in self._bound.items()):
            return
        stamp = stamp_of(self._generation, step)
        with memory.locked():
            if memory.stamp[0] != stamp:
                self._write_state(memory, version)
                memory.stamp[0] = stamp
        self._take_state(memory, version, dict(state))

    def _write_state(self, memory: HostMemory, version: int) -> None:
        for parameter, entry in self._optimizer.state.items():
            slot = self._slot(parameter)
            for key in self._keys:
                if isinstance(entry.get(key), torch.Tensor):
                    slot.view(memory.kept[key][version]).copy_(entry[key])

    def _take_state(self, memory: HostMemory, version: int, numbers: State) -> None:
        """Let the optimizer keep that version of what is of elements, and these numbers."""
        state = self._optimizer.state
        for parameter, entry in numbers.items():
            slot = self._slot(parameter)
            state[parameter] = {
                key: slot.view(memory.kept[key][version])
                if key in self._keys and isinstance(value, torch.Tensor)
                else value
                for key, value in entry.items()
            }
        self._bound = dict(state)

    def _numbers_after(self, gradients: Sequence[torch.Tensor | None]) -> State:
        """By parameter what the optimizer keeps after the step; of the elements, only that it does."""
        shadows = {n: torch.zeros(_SHADOW) for n in range(len(gradients))}
        for n, shadow in shadows.items():
            shadow.grad = None if gradients[n] is None else torch.zeros(_SHADOW)
        state: State = {
            shadows[self._numbers[id(parameter)]]: {
                key: self._number(key, value, torch.zeros(_SHADOW)) for key, value in entry.items()
            }
            for parameter, entry in self._optimizer.state.items()
        }
        parameters = {id(shadow): self._replica.parameters[n] for n, shadow in shadows.items()}
        with by_element.stepping(self._optimizer, self._grouped(shadows.items()), state) as stepped:
            self._take_step()
        return {parameters[id(shadow)]: entry for shadow, entry in stepped.items()}

    def _step(
        self, memory: HostMemory, step: int, batch: Sequence[int], gradients: Sequence[torch.Tensor | None]
    ) -> None:
        """Make these pieces, one pass over memory for all that is done with them."""
        old, new = step % _VERSIONS, (step + 1) % _VERSIONS
        state: State = {}
        tensors: list[tuple[int, torch.Tensor]] = []
        for n in batch:
            piece = self._pieces[n]
            gradient, tensor = gradients[piece.parameter], memory.made[piece.place]
            tensor.copy_(self._replica.flat[piece.place])
            tensor.grad = None if gradient is None else self._part(gradient, piece)
            tensors.append((piece.parameter, tensor))
            known = self._optimizer.state.get(self._replica.parameters[piece.parameter])
            if known is not None:
                state[tensor] = self._moved_on(memory, old, new, piece, known)
        with by_element.stepping(self._optimizer, self._grouped(tensors), state) as stepped:
            self._take_step()
        for n, (_, tensor) in zip(batch, tensors, strict=True):
            self._keep(memory, new, self._pieces[n], stepped.get(tensor, {}))

    def _take_step(self) -> None:
        optimizers.begin_late(self._optimizer)
        self._optimizer.step()

    def _part(self, gradient: torch.Tensor, piece: Piece) -> torch.Tensor:
        """The part itself, which peers may still be reading, or a copy if the step may change it."""
        part = _in_memory(gradient)[piece.start : piece.stop]
        return part.clone() if optimizers.may_change_gradients(self._optimizer) else part

    def _moved_on(self, memory: HostMemory, old: int, new: int, piece: Piece, known: dict[str, Any]) -> dict[str, Any]:
        """The present state of a piece, of its elements where the next version is to be."""
        found = {}
        for key, value in known.items():
            place = memory.kept[key][new][piece.place] if key in self._keys else None
            if place is not None:
                place.copy_(memory.kept[key][old][piece.place])
            found[key] = self._number(key, value, place)
        return found

    def _batches(self, pieces: Sequence[int]) -> Iterator[list[int]]:
        """Small pieces together, up to the size of a large one."""
        batch: list[int] = []
        elements = 0
        for n in pieces:
            size = self._pieces[n].stop - self._pieces[n].start
            if batch and elements + size > PIECE:
                yield batch
                batch, elements = [], 0
            batch.append(n)
            elements += size
        if batch:
            yield batch

    def _grouped(self, tensors: Iterable[tuple[int, torch.Tensor]]) -> list[list[torch.Tensor]]:
        """By the optimizer's group, these tensors, each with the number of its parameter."""
        found: list[list[torch.Tensor]] = [[] for _ in self._optimizer.param_groups]
        for n, tensor in tensors:
            if n in self._group_of:
                found[self._group_of[n]].append(tensor)
        return found

    def _number(self, key: str, value: Any, place: torch.Tensor | None) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return place if key in self._keys else value.clone()

    def _keep(self, memory: HostMemory, version: int, piece: Piece, entry: dict[str, Any]) -> None:
        """Copy into the shared memory what the optimizer has made anew instead of writing where the state lay."""
        for key in self._keys:
            value = entry.get(key)
            if isinstance(value, torch.Tensor):
                place = memory.kept[key][version][piece.place]
                if value.data_ptr() != place.data_ptr():
                    place.copy_(value)

    def _slot(self, parameter: torch.Tensor) -> Slot:
        return self._slots[id(parameter)]


def _pieces_of(parameter: int, slot: Slot) -> Iterator[Piece]:
    for start in range(0, slot.elements, PIECE):
        yield Piece(parameter, start, min(start + PIECE, slot.elements), slot.offset + start)


def _shares(sizes: Sequence[int], index: int, workers: int) -> Iterator[int]:
    """The pieces of worker `index`: their middle lies in its part of all elements."""
    total, before = sum(sizes), 0
    for n, size in enumerate(sizes):
        if (2 * before + size) * workers // (2 * total) == index:
            yield n
        before += size


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))


def _take(fd: int, whole: int) -> None:
    """Take so much memory now, rather than in a step. Raises MemoryError."""
    more = whole - os.fstat(fd).st_size
    if more > 0 and more > available_bytes():
        raise MemoryError(f"the update that workers of a host share needs {megabytes(more)}")
    try:
        os.posix_fallocate(fd, 0, whole)
    except OSError as error:
        raise MemoryError(f"the update that workers of a host share needs memory: {error.strerror}") from error
