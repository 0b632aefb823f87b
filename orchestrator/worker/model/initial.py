"""Weights that training begins with, instead of those that the pipeline's model has drawn: read, checked, put into the model.

They are a safetensors file as a run leaves it (`model.safetensors`): parameters and persistent buffers, tied tensors once.
Their digest is the one that this run reported, and part of the new run's identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file

from orchestrator.config.plan import Initial
from orchestrator.errors import ConfigurationError
from orchestrator.numerics import digests
from orchestrator.worker.model import snapshot

_SHOWN = 3


def read(file: Path, name: str) -> dict[str, torch.Tensor]:
    """Read the parameters to begin with. name: of the model, for the message. Raises ConfigurationError."""
    try:
        return load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise ConfigurationError(
            [f"initial: the weights of {name} cannot be read: {error}"],
            "launch or resume the run once more, which fetches them again",
            code="initial.unreadable",
        ) from error


def begin_with(model: torch.nn.Module, initial: Initial) -> None:
    """Put the weights into a model that has just been made, in place. Raises ConfigurationError, naming what does not fit, and
    has changed nothing then."""
    weights = read(Path(initial.file), initial.name)
    model_state = digests.distinct_state(model)
    unfit = list(_unfit(weights, model_state))
    if unfit:
        more = f"; and {len(unfit) - _SHOWN} more" if unfit[_SHOWN:] else ""
        raise ConfigurationError(
            [
                f"initial: the weights of {initial.name} do not fit the pipeline's model: {'; '.join(unfit[:_SHOWN])}{more}"
            ],
            "give the pipeline the arguments that the model was trained with, or name another model",
            code="initial.unfit",
        )
    digest = digests.state_digest(weights)
    if digest != initial.digest:
        raise ConfigurationError(
            [f"initial: the weights of {initial.name} have the digest {digest} and not {initial.digest}"],
            f"remove {initial.file}, and they are fetched again",
            code="initial.digest",
        )
    with torch.no_grad():
        for name, tensor in model_state.items():
            snapshot.write(tensor, weights[name])


def _unfit(weights: Mapping[str, torch.Tensor], model_state: Mapping[str, torch.Tensor]) -> list[str]:
    missing = [f"they lack {name}" for name in sorted(model_state) if name not in weights]
    strange = [f"the model has no {name}" for name in sorted(weights) if name not in model_state]
    kinds = {name: (_kind(weights[name]), _kind(model_state[name])) for name in model_state if name in weights}
    other = [f"{name} is {theirs} and not {ours}" for name, (theirs, ours) in kinds.items() if theirs != ours]
    return [*other, *missing, *strange]


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
