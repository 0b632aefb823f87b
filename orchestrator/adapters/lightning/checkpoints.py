"""Checkpoints of Lightning (`.ckpt`): the weights of an old one, and a finished run as a new one. Lightning itself is not
imported, and nothing that a file holds is executed."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from orchestrator.errors import ConfigurationError

ENDING = ".ckpt"
PACKAGES = ("pytorch-lightning", "lightning")


def weights_of(file: Path) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers, tied tensors once. Raises ConfigurationError."""
    try:
        held = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise ConfigurationError(
            [f"initial: {file} cannot be read: {error.strerror}"], "name another file", code="initial.checkpoint-absent"
        ) from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ConfigurationError(
            [f"initial: {file} is no checkpoint of tensors and plain values: {str(error).splitlines()[0]}"],
            "where its hyperparameters are objects, keep its state_dict alone: torch.save({'state_dict': "
            "torch.load(FILE, weights_only=False)['state_dict']}, 'weights.ckpt')",
            code="initial.checkpoint-form",
        ) from error
    state = held.get("state_dict") if isinstance(held, Mapping) else None
    if not isinstance(state, Mapping):
        raise ConfigurationError(
            [f"initial: {file} has no state_dict"], "name a checkpoint of Lightning", code="initial.checkpoint-lacks"
        )
    seen: set[Any] = set()
    found = {}
    for name, tensor in state.items():
        if not (isinstance(name, str) and isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided):
            raise ConfigurationError(
                [f"initial: {file} has {name!r} in its state_dict, which is no dense tensor with a name"],
                "leave it out, as the extra state of a metric or of another module",
                code="initial.checkpoint-no-weights",
            )
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if not tensor.numel() or place not in seen:
            seen.add(place)
            found[name] = tensor.contiguous().clone()
    return found


def write(to: Path, weights: Mapping[str, torch.Tensor], args: Mapping[str, Any], steps: int, version: str) -> None:
    """A file that `load_from_checkpoint` of the module reads. args: of its constructor; version: of Lightning. Raises OSError,
    and leaves no file then."""
    held = {
        "epoch": 0,
        "global_step": steps,
        "pytorch-lightning_version": version,
        "state_dict": dict(weights),
        "loops": {},
        "callbacks": {},
        "optimizer_states": [],
        "lr_schedulers": [],
        "hparams_name": "kwargs",
        "hyper_parameters": dict(args),
    }
    try:
        with to.open("wb") as file:
            torch.save(held, file)
    except (OSError, RuntimeError) as error:
        to.unlink(missing_ok=True)
        refused = error.__context__
        raise refused if isinstance(refused, OSError) else error from None  # torch tells of its own archive
