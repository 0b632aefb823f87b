"""LARS and LAMB as pytorch-optimizer has them, in a process of its own: it imports torch's compiler, which changes torch.

python -m tests.optim.other        # the parameters after a few steps, by case, as JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch

# The form of its LAMB that is the paper's: the decay within the scaled change, and no larger rate in the first steps.
PAPER: dict[str, Any] = {"weight_decouple": False, "adam_debias": True}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("lars", {"lr": 0.5}),
    ("lars", {"lr": 0.5, "weight_decay": 0.1}),
    ("lars", {"lr": 0.5, "weight_decay": 0.1, "momentum": 0.0}),
    ("lars", {"lr": 0.5, "weight_decay": 0.01, "momentum": 0.8, "nesterov": True, "trust_coefficient": 0.02}),
    ("lamb", {"lr": 0.05}),
    ("lamb", {"lr": 0.05, "weight_decay": 0.1}),
    ("lamb", {"lr": 0.05, "weight_decay": 0.1, "betas": [0.8, 0.9], "eps": 1e-3}),
]
_SHAPES = ((3, 4), (4,), (2, 1, 3, 3), ())
_STEPS = 6


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    found = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in _SHAPES]
    found.append(torch.nn.Parameter(torch.zeros(5, 2)))  # without a norm
    found.append(torch.nn.Parameter(3 * torch.ones(20, 20)))  # with a large one
    return found


def trained(optimizer: torch.optim.Optimizer, trainable: list[torch.nn.Parameter]) -> list[list[float]]:
    """After some steps, in some of which a parameter has no gradient or one of zeros."""
    generator = torch.Generator().manual_seed(2)
    for step in range(_STEPS):
        for number, parameter in enumerate(trainable):
            gradient = torch.randn(parameter.shape, generator=generator) * 10.0 ** (step - 3)
            parameter.grad = None if number == step else gradient * (number != step - 1)
        optimizer.step()
    return [parameter.detach().reshape(-1).tolist() for parameter in trainable]


def reference() -> list[list[list[float]]]:
    """By case and parameter."""
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[list[list[float]]] = json.loads(done.stdout)
    return found


def _main() -> None:
    from pytorch_optimizer import LARS, Lamb

    found = []
    for name, options in CASES:
        trainable = parameters()
        optimizer = LARS(trainable, **options) if name == "lars" else Lamb(trainable, **PAPER, **options)
        found.append(trained(optimizer, trainable))
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
