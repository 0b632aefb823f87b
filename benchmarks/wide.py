"""The model of benchmarks/recovery.py and nodes.py, trained here and by Ray Train: wide layers, AdamW, marks of steps.

A mark is a line `<CLOCK_MONOTONIC in s> <steps completed>` in a file that is named for the process. All processes of one host
share that clock. The number comes from AdamW's own state, which travels with checkpoints and state transfers, so it is right on
both sides after any recovery.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline

INPUTS = 1024
ROWS = 8  # of a micro-batch: what each of two workers computes in a step


class Wide(Pipeline):
    """marks: the folder of the marks; sleep_s: of each micro-batch."""

    def __init__(self, hidden: int, marks: str, sleep_s: float = 0.0) -> None:
        self.hidden = hidden
        self.marks = marks
        self.sleep_s = sleep_s

    def model(self) -> nn.Module:
        return model(self.hidden)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return optimizer(model, Path(self.marks))

    def datasets(self) -> tuple[TensorDataset, None]:
        return TensorDataset(torch.randn(4 * ROWS, INPUTS), torch.randn(4 * ROWS, INPUTS)), None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        time.sleep(self.sleep_s)
        inputs, targets = batch
        return functional.mse_loss(model(inputs), targets)


def model(hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(INPUTS, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, INPUTS)
    )


def optimizer(model: nn.Module, marks: Path) -> torch.optim.Optimizer:
    """AdamW, whose every step is marked when it is done."""
    return marked(torch.optim.AdamW(model.parameters(), lr=1e-4), marks)


def marked(adamw: torch.optim.Optimizer, marks: Path) -> torch.optim.Optimizer:
    """The same optimizer, which keeps count of its steps as AdamW does; every one is marked when it is done."""

    def mark(done: torch.optim.Optimizer, _arguments: Any, _keywords: Any) -> None:
        step = int(next(iter(done.state.values()))["step"])
        with (marks / str(os.getpid())).open("a") as file:
            file.write(f"{time.monotonic():.6f} {step}\n")

    adamw.register_step_post_hook(mark)
    return adamw
