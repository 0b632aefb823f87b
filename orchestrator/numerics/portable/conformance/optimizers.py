"""Optimizers of torch: three steps with each variant, on parameters of a few shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch

from orchestrator.numerics.portable.conformance.drawing import Case, Draw

_OPTIONS: dict[str, dict[str, Any]] = {
    "Adadelta": {}, "Adafactor": {}, "Adagrad": {}, "Adam": {}, "AdamW": {}, "Adamax": {}, "ASGD": {}, "NAdam": {}, "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True}, "Rprop": {}, "SGD": {"lr": 0.1, "momentum": 0.9}, "Muon": {},
}  # fmt: skip
_OF_MATRICES = {"Muon"}
_FUSED = ("Adagrad", "Adam", "AdamW", "SGD")


def _stepped(name: str, **variant: Any) -> Case:
    def case(d: Draw) -> list[Tensor]:
        shapes = [(33, 20)] if name in _OF_MATRICES else [(33, 20), (999,), (4, 3, 3, 3)]
        parameters = [nn.Parameter(d(*shape)) for shape in shapes]
        with _python_dispatch._disable_current_modes():
            optimizer = getattr(torch.optim, name)(parameters, **_OPTIONS[name], **variant)
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = d(*parameter.shape)
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    return case


def _cases() -> Iterator[tuple[str, Case]]:
    for name in _OPTIONS:
        yield f"optimizer {name}", _stepped(name)
        if name != "Muon":
            yield f"optimizer {name} foreach", _stepped(name, foreach=True)
        if name in _FUSED:
            yield f"optimizer {name} fused", _stepped(name, fused=True)
    yield "optimizer Adam amsgrad", _stepped("Adam", amsgrad=True)
    yield "optimizer SGD nesterov", _stepped("SGD", nesterov=True)


CASES: dict[str, Case] = dict(_cases())
