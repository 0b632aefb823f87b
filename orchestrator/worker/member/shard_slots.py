"""The states of shards, in memory that outlives the workers that wrote it: two stamped slots per shard.

The driver holds the memory open (`lasting_memory.py`). All workers on its machine map all of it, and each writes the slots of
the shards that it hosts. A stamp is the number of steps after which a shard keeps what is in the slot, and says which of the
two slots that is: even or odd.

    zero the stamp, copy the tensors, write the stamp       so a slot is torn only where its stamp is zero

The moment of writing decides whether a slot can be relied on. With the vote of step t done, all members have committed the
steps before it, so nobody needs a state of t - 1 or older any more: its slot is written over with that of t + 1. A member
that commits step t has received this worker's part of the sum, which is sent after the slot is stamped. So at every moment
the slots of a shard hold its state after the steps that the farthest living worker has committed. Writing before the vote
would lose a slot that a laggard still needs (`tests/worker/test_shard_slots.py` shows it).

The state of a shard after so many steps is the same whenever it is computed in a run, so a slot from before a restart is as
good. Live streams are the exception: a step that nobody has committed may be repeated with other samples. So a slot that
has the stamp and holds something else is written anew.

The memory does not outlive the machine, nor reach workers on another one. It is host memory also where shards are on a card:
memory of a card that peers map goes with the card when that fails, and with the last worker on it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from orchestrator.comm.transports.available_memory import available_bytes
from orchestrator.comm.transports.shared_memory import Mapping as Mapped
from orchestrator.errors import Inconsistent
from orchestrator.numerics import cuda
from orchestrator.numerics.byte_layout import same_bits
from orchestrator.worker.member.lasting_memory import in_pages

_SLOTS: Final = 2
_ALIGNED_BYTES: Final = 64

SlotRow = Mapping[str, torch.Tensor]


class ShardSlots:
    """The slots of all shards of a run. Only the host of a shard writes its slots, one thread at a time."""

    def __init__(self, fd: int, shards: int, row: SlotRow) -> None:
        """fd: stays the caller's, who keeps it open; row: an example, whose names, shapes and dtypes every row has. Raises
        Inconsistent if the memory is laid out for other rows."""
        self._fd = fd
        self._reserved: set[int] = set()
        self._locked: set[int] = set()
        self._arriving: list[tuple[int, int]] = []  # (shard, stamp) of states that are being copied
        self._kinds = {name: (tensor.dtype, tensor.shape) for name, tensor in row.items()}
        self._from_card = any(tensor.device.type == "cuda" for tensor in row.values())
        sizes = [-(-tensor.numel() * tensor.itemsize // _ALIGNED_BYTES) * _ALIGNED_BYTES for tensor in row.values()]
        self._offsets = dict(zip(row, [sum(sizes[:i]) for i in range(len(sizes))], strict=True))
        self._slot_bytes = in_pages(max(1, sum(sizes)))
        self._header_bytes = in_pages(8 * _SLOTS * shards)
        whole = self._header_bytes + shards * _SLOTS * self._slot_bytes
        if os.fstat(fd).st_size == 0:
            os.ftruncate(fd, whole)  # to the same size in every worker, so it does not matter who comes first
        if os.fstat(fd).st_size != whole:
            raise Inconsistent(
                "the state of shards has another size in another worker",
                "this is a fault of orchestrator",
                code="replica.size-of-slots",
            )
        os.posix_fallocate(fd, 0, self._header_bytes)
        self._memory = Mapped(fd, whole, writable=True)
        self._stamps = self._memory.tensor(torch.int64, 0, shards * _SLOTS).view(shards, _SLOTS).numpy()

    def reserve(self, shards: Sequence[int]) -> None:
        """Take the memory of these shards' slots. Raises MemoryError when it is not there now, rather than in a step."""
        wanted = [shard for shard in shards if not self._is_reserved(shard)]
        size_bytes = _SLOTS * self._slot_bytes
        if wanted and size_bytes * len(wanted) > available_bytes():
            raise MemoryError(f"what {len(wanted)} shards keep needs {size_bytes * len(wanted)} bytes of memory")
        try:
            for shard in wanted:
                os.posix_fallocate(self._fd, self._start(shard, 0), size_bytes)
                self._reserved.add(shard)
        except OSError as error:
            raise MemoryError(f"what {len(wanted)} shards keep needs memory: {error.strerror}") from error
        if self._from_card:  # also those that another worker has hosted before: each process does so for itself
            for shard in sorted({*shards} - self._locked):
                cuda.page_lock(self._memory.address + self._start(shard, 0), size_bytes)
                self._locked.add(shard)

    def write(self, shard: int, stamp: int, row: SlotRow) -> None:
        """Write the state of the shard after `stamp` steps, at least one. Its memory has been reserved. From a card it is there
        with `arrive`."""
        slot = self._slot_of(stamp)
        tensors = self._tensors(shard, slot)
        if self._stamps[shard, slot] == stamp and all(
            same_bits(each, row[name].cpu()) for name, each in tensors.items()
        ):
            return
        self._stamps[shard, slot] = 0
        for name, tensor in tensors.items():
            tensor.copy_(row[name], non_blocking=True)
        if self._from_card:
            self._arriving.append((shard, stamp))
        else:
            self._stamps[shard, slot] = stamp

    def arrive(self) -> None:
        """Wait, once for all, until what was written is there."""
        if self._arriving:
            torch.cuda.current_stream().synchronize()
        for shard, stamp in self._arriving:
            self._stamps[shard, self._slot_of(stamp)] = stamp
        self._arriving = []

    def stamped(self, stamp: int) -> set[int]:
        """The shards whose state after `stamp` steps is here."""
        return set((self._stamps[:, self._slot_of(stamp)] == stamp).nonzero()[0].tolist()) if stamp else set()

    def read(self, shard: int, stamp: int) -> dict[str, torch.Tensor] | None:
        """A copy of the shard's state after `stamp` steps; None if it is not here."""
        if shard not in self.stamped(stamp):
            return None
        return {name: tensor.clone() for name, tensor in self._tensors(shard, self._slot_of(stamp)).items()}

    def _slot_of(self, stamp: int) -> int:
        return stamp % _SLOTS

    def _start(self, shard: int, slot: int) -> int:
        return self._header_bytes + (shard * _SLOTS + slot) * self._slot_bytes

    def _tensors(self, shard: int, slot: int) -> dict[str, torch.Tensor]:
        start = self._start(shard, slot)
        return {
            name: self._memory.tensor(dtype, start + self._offsets[name], shape.numel()).view(shape)
            for name, (dtype, shape) in self._kinds.items()
        }

    def _is_reserved(self, shard: int) -> bool:
        """Whether this worker has reserved its slots, or some worker has written there."""
        return shard in self._reserved or bool(self._stamps[shard].any())
