"""SHA-256 of a model's state: parameters and persistent buffers, names sorted, tied tensors once, with name, dtype and shape
hashed in (rule F12). Equal digests mean equal bits, whatever the machine, the topology and the number of workers."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch

from orchestrator.numerics.byte_layout import bytes_of
from orchestrator.numerics.exact import in_host_memory, wrap
from orchestrator.pipeline import naming

_PIECE: Final = 1 << 20  # elements of which one print is made
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by their bytes; of others 8 at a time


def model_digest(model: torch.nn.Module) -> str:
    """Hexadecimal SHA-256 of the model's state."""
    return state_digest(distinct_state(model))


def state_digest(state: Mapping[str, torch.Tensor]) -> str:
    """The digest of a model with these parameters and buffers, by name."""
    whole = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        update(whole, name, tensor)
    return whole.hexdigest()


def tensor_digests(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Tensor -> 64 bits of its SHA-256, names sorted: enough to tell which ones differ."""
    found = {}
    for name, tensor in sorted(state.items()):
        own = hashlib.sha256()
        update(own, name, tensor)
        found[name] = own.hexdigest()[:16]
    return found


def distinct_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The model's state dictionary without the second and later names of a tied tensor."""
    seen: set[int] = set()
    state: dict[str, torch.Tensor] = {}
    with naming("state_dict() of the model"):
        found = model.state_dict(keep_vars=True).items()
    for name, tensor in found:
        if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            state[name] = tensor.detach()
    return state


def update(digest: hashlib._Hash, name: str, tensor: torch.Tensor) -> None:
    """Hash one tensor in: a header that cannot be confused with data, then its values in row-major order."""
    plain = tensor.detach().cpu().contiguous()
    digest.update(_header(name, plain))
    digest.update(bytes_of(plain).numpy().data)


def update_in_place(digest: hashlib._Hash, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Hash tensors in, to be compared with those of others in the same run: where they are on a device, by their prints."""
    pairs = [*named]
    prints = iter(prints_of([tensor for _, tensor in pairs if not in_host_memory(tensor)]))
    for name, tensor in pairs:
        if in_host_memory(tensor):
            update(digest, name, tensor)
        else:
            digest.update(_header(name, tensor) + next(prints).to_bytes(8, "little", signed=True))


def prints_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each tensor, in row-major order, the sum of its bits times random odd numbers by their places, modulo 2**64, and so
    of its pieces. Two tensors of other bits have the same print by a chance of 2**-32 at most. All are on one device, which is
    waited for once."""
    pieces = [_of_pieces(tensor.detach()) for tensor in tensors]
    # A piece gives one number. Its product here takes less time than to launch one for each of a model's tensors.
    found = iter(torch.stack([each for of_one in pieces for each in of_one]).tolist() if tensors else ())
    factors: list[int] = _factors(torch.device("cpu"), _PIECE)[: max(map(len, pieces), default=0)].tolist()
    return [wrap(sum(next(found) * factor for factor in factors[: len(of_one)])) for of_one in pieces]


def _of_pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    bits = tensor.contiguous().reshape(-1).view(_INTEGERS.get(tensor.itemsize, torch.int64))
    factors = _factors(bits.device, _PIECE)
    return [(part * factors[: part.numel()]).sum() for part in torch.split(bits, _PIECE)]


@functools.cache
def _factors(device: torch.device, count: int) -> torch.Tensor:
    numbers = torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(0))
    return (numbers | 1).to(device)


def _header(name: str, tensor: torch.Tensor) -> bytes:
    return f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode()
