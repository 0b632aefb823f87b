"""The device of a module, as its own code asks for it: `self.device`, and where metrics keep their states.

Lightning and torchmetrics learn of it in `to`. A run does not call that: it moves parameters and buffers, and leaves the rest
of a model alone.
"""

from __future__ import annotations

import torch

from orchestrator.adapters.lightning.numbers import is_metric

_ABSTRACT = "meta"  # of parts that another stage holds, or of a model that is only looked at


def follow(model: torch.nn.Module) -> None:
    """Have the modules of Lightning and the metrics within the model know where its parameters lie. Asked before each pass: all
    know it if the model itself does."""
    found = (parameter.device for parameter in model.parameters() if parameter.device.type != _ABSTRACT)
    device = next(found, None)
    if device is not None and getattr(model, "device", None) != device:
        tell(model, device)


def tell(model: torch.nn.Module, device: torch.device) -> None:
    for module in model.modules():
        if getattr(module, "device", device) == device:
            continue
        if is_metric(module):
            module.to(device)
        elif is_lightnings(module):
            module._device = device  # type: ignore[assignment]


def is_lightnings(module: torch.nn.Module) -> bool:
    return any(kind.__name__ == "_DeviceDtypeModuleMixin" for kind in type(module).__mro__)
