"""The modes of a model's layers, training or evaluation, which code of the user's may have changed."""

from __future__ import annotations

import torch

Modes = list[tuple[torch.nn.Module, bool]]


def modes_of(model: torch.nn.Module) -> Modes:
    return [(module, module.training) for module in model.modules()]


def put_back(modes: Modes) -> None:
    """Set each layer's mode without its train(), which may merge weights."""
    for module, training in modes:
        if module.training is not training:
            module.training = training
