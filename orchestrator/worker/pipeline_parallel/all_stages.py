"""All stages of a model in one process, one after the other: how a member proves that the cut model computes the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from orchestrator.worker.pipeline_parallel.border_values import Activations, Generators, Gradients, pack, unpack
from orchestrator.worker.pipeline_parallel.cuts import Cuts, Way
from orchestrator.worker.pipeline_parallel.replay import Record, Stage


class WholeModel:
    """The stages of a model that is here as a whole. Gradients are at its parameters after `backward`. clock: of `seconds`."""

    def __init__(self, model: torch.nn.Module, cuts: Cuts, clock: Callable[[], float] = time.perf_counter) -> None:
        self._cuts, self._clock = cuts, clock
        self._parameters = dict(model.named_parameters())
        self._stages = [Stage(model, cuts, index) for index in range(cuts.stages)]
        self._records: list[Record] = []
        self.seconds = [0.0] * cuts.stages  # that each stage has taken, forward and backward

    def close(self) -> None:
        for stage in reversed(self._stages):
            stage.close()

    def forward(self, call: Callable[[], Any], way: Way = "training") -> Any:
        """The result of `call`, computed stage by stage. Each stage begins it with the generators as they are now."""
        came: Activations | None = None
        value, seeded = None, Generators.now()
        self._records = []
        for stage in self._stages:
            seeded.restore()
            since = self._clock()
            with stage.hosting():
                record, came, value = stage.forward(call, way, came)
            self._records.append(record)
            self.seconds[stage.index] += self._clock() - since
        return value

    def backward(self, loss: torch.Tensor) -> None:
        """The backward pass of the loss that the last `forward` returned. Parameters had no gradients."""
        self._records[-1] = self._records[-1]._replace(roots=[loss])
        gradients: Gradients | None = None
        tied_elsewhere: dict[str, torch.Tensor] = {}
        for stage, record in zip(reversed(self._stages), reversed(self._records), strict=True):
            hosted_names = self._cuts.hosted[stage.index]
            tied = {name: tied_elsewhere.pop(name) for name in list(tied_elsewhere) if name in hosted_names}
            if gradients is not None:
                gradients.generators.restore()
            since = self._clock()
            border_values = stage.backward(record, gradients, tied)
            self.seconds[stage.index] += self._clock() - since
            gradients = Gradients(border_values, Generators.now())
            # The others stay where they are: no stage before this one has them.
            mine = [name for name in self._cuts.tied if name in hosted_names]
            tied_elsewhere.update(
                {name: delivered(each) for name, each in take_gradients(self._parameters, mine).items()}
            )
        for name, gradient in tied_elsewhere.items():
            self._parameters[name].grad = gradient


def take_gradients(
    parameters: Mapping[str, torch.Tensor], names: Sequence[str] | frozenset[str]
) -> dict[str, torch.Tensor]:
    """Take the gradients off these parameters; returns those that there are, by name."""
    found = {}
    for name in sorted(names):
        parameter = parameters.get(name)
        if parameter is not None and parameter.grad is not None:
            found[name] = parameter.grad
            parameter.grad = None
    return found


def delivered(gradient: torch.Tensor) -> torch.Tensor:
    """As it arrives at another member."""
    return unpack(pack(gradient))
