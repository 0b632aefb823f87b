"""All randomness is a pure function of (seed, purpose, step, shard): law 1, rule B1.

No generator state is ever saved. Before each piece of work the generators of this process are seeded with 32 bits of a keyed
hash; more bits would be lost, since torch's CPU generator ignores the rest. Generators are shared by the whole process, so
`seeded` holds the process's one lock while the work is done: two threads that train in one process take turns.
"""

from __future__ import annotations

import hashlib
import random
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch

_generators = threading.RLock()


def seed_of(seed: int, purpose: str, step: int = 0, shard: int = 0) -> int:
    """32 bits, the same on every machine."""
    message = purpose.encode() + b"\0" + struct.pack("<qq", step, shard)
    return int.from_bytes(hashlib.blake2b(message, digest_size=4, key=struct.pack("<Q", seed)).digest(), "little")


@contextmanager
def seeded(seed: int, purpose: str, step: int = 0, shard: int = 0) -> Iterator[None]:
    """Run the block with every generator of this process seeded for it: torch (CPU and CUDA), `random`, numpy's global one."""
    with _generators:
        value = seed_of(seed, purpose, step, shard)
        _seed_torch(value)
        seed_others(value)
        yield


@contextmanager
def seeded_with(value: int) -> Iterator[None]:
    """The same for a seed that was derived before."""
    with _generators:
        _seed_torch(value)
        seed_others(value)
        yield


@contextmanager
def seeded_for_torch(value: int) -> Iterator[None]:
    """The same for work that draws from generators of torch alone, such as what a device does again. To seed the others takes
    longer than to begin such work."""
    with _generators:
        _seed_torch(value)
        yield


def _seed_torch(value: int) -> None:
    for generator in torch_generators():
        generator.manual_seed(value)


def seed_others(value: int) -> None:
    """Seed the generators of `random` and numpy, for code that runs behind such work."""
    random.seed(value)
    numpy.random.seed(value)


@contextmanager
def held() -> Iterator[None]:
    """The same without a seed: for work that goes on with states that it sets by itself."""
    with _generators:
        yield


def torch_generators() -> tuple[torch.Generator, ...]:
    """The generators of torch that code draws from if it names none: that of the processor, and of each GPU once CUDA was
    started."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return (torch.default_generator, *(torch.cuda.default_generators if started else ()))


def permutation(seed: int, purpose: str, epoch: int, elements: int, shard: int = 0) -> torch.Tensor:
    """A permutation of range(elements), int64, that depends on its arguments only."""
    generator = torch.Generator().manual_seed(seed_of(seed, purpose, epoch, shard))
    return torch.randperm(elements, generator=generator)
