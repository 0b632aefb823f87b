"""SHA-256 of a model's state: parameters and persistent buffers, names sorted, tied tensors once, with name, dtype and shape
hashed in (rule F12). Equal digests mean equal bits, whatever the machine, the topology and the number of workers."""

from __future__ import annotations

import hashlib

import torch

from orchestrator.pipeline import naming


def model_digest(model: torch.nn.Module) -> str:
    """Hexadecimal SHA-256 of the model's state."""
    whole = hashlib.sha256()
    for name, tensor in sorted(distinct_state(model).items()):
        update(whole, name, tensor)
    return whole.hexdigest()


def tensor_digests(model: torch.nn.Module) -> dict[str, str]:
    """Tensor -> 64 bits of its SHA-256, names sorted: enough to tell which ones differ."""
    found = {}
    for name, tensor in sorted(distinct_state(model).items()):
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
    digest.update(f"{name}\0{plain.dtype}\0{tuple(plain.shape)}\0".encode())
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
