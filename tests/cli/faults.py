"""Pipelines that do what users do by mistake. Copied into a project of its own by the tests."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline


class Good(Pipeline):
    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(4, 2)

    def datasets(self) -> tuple[Any, Any]:
        return TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,))), None

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])


def few(ask: Any) -> Any:
    """A search that gives fewer points than it is asked for."""
    return [dict.fromkeys(ask.space, 1)]


class Raises(Good):
    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:  # noqa: ARG002
        print("about to fail")
        raise KeyError("no such column")


class NotANumber(Good):
    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return super().loss(model, batch) * float("nan")


class NoFile(Good):
    def datasets(self) -> tuple[Any, Any]:
        return torch.load("nothing.pt"), None


class Dies(Good):
    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:  # noqa: ARG002
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Slow(Good):
    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(0.05)
        return super().loss(model, batch)


class Double(Good):
    def model(self) -> torch.nn.Module:
        return super().model().double()


class TrainsItself(Good):
    class Network(torch.nn.Linear):
        def train(self, loader: Any, optimizer: Any) -> None:  # type: ignore[override]
            pass

    def model(self) -> torch.nn.Module:
        return self.Network(4, 2)


class Lbfgs(Good):
    def optimizer(self, model: torch.nn.Module) -> Any:
        return torch.optim.LBFGS(model.parameters())


class TwoOptimizers(Good):
    def optimizer(self, model: torch.nn.Module) -> Any:
        return [torch.optim.Adam([parameter]) for parameter in model.parameters()]


class Rated(Good):
    def rate(self, step: int) -> float:
        return 1 / (step + 1)


class Sized(Good):
    def __init__(self, size: int) -> None:
        self.size = size


class Marked(Good):
    """One sample of the data is bad: whoever computes a micro-batch with it in some step comes to grief."""

    BAD = 7.0

    def datasets(self) -> tuple[Any, Any]:
        inputs = torch.randn(4096, 4)
        inputs[4000, 0] = self.BAD
        return TensorDataset(inputs, torch.randint(0, 2, (4096,))), None

    def has_bad(self, batch: Any) -> bool:
        return bool((batch[0][:, 0] == self.BAD).any())


class Exits(Marked):
    """As native code does that calls exit() in a library."""

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if self.has_bad(batch):
            os._exit(3)
        return super().loss(model, batch)


class Killed(Marked):
    """As the kernel does with whoever takes too much memory."""

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if self.has_bad(batch):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)


class Sleeps(Marked):
    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        while self.has_bad(batch):
            time.sleep(1)
        return super().loss(model, batch)
