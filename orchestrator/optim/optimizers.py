"""The table of optimizers: those of torch.optim on offer and two for large batches.

An entry is called with the model's parameters and the options, which are those of its signature. A user's own meets the laws
at launch (`optimizer_laws.py`).

Left out by name: LBFGS calls the model again within a step, SparseAdam wants sparse gradients, and both would need an
exchange of their own. A pipeline may return any other optimizer, of torch or not, as long as it takes a step without a closure
and keeps what it remembers where `Optimizer.state_dict` finds it (`optimizer_state.py`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch

from orchestrator.common.registry import Table
from orchestrator.errors import ConfigurationError
from orchestrator.optim.by_element import is_watched
from orchestrator.optim.eager import leave_the_compiler_out
from orchestrator.optim.lamb import Lamb
from orchestrator.optim.lars import Lars

_ON_OFFER = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
)  # fmt: skip
OPTIMIZERS: Table[Callable[..., torch.optim.Optimizer]] = Table(
    "optimizer",
    {name.lower(): getattr(torch.optim, name) for name in _ON_OFFER} | {"lars": Lars, "lamb": Lamb},
    hidden=("differentiable", "capturable"),
)
CLASSES = tuple(getattr(torch.optim, name) for name in _ON_OFFER)
# They make their state in their first step, so that whether they are fused may be settled until then.
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_FUSED_ON = ("cuda",)
_MOMENTUM = "momentum_buffer"  # in the state of torch's SGD
_TRIED = 64  # a tensor of so many rows and columns, large enough that what counts rows does not


@functools.cache
def prepare() -> None:
    """Once in a process, before its first optimizer is built: then torch wraps the step of that class for good."""
    leave_the_compiler_out(CLASSES)


def build(name: str, options: Mapping[str, Any], model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer over the model's trainable parameters."""
    return build_over(name, options, [parameter for parameter in model.parameters() if parameter.requires_grad])


def build_over(
    name: str, options: Mapping[str, Any], parameters: Sequence[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """The same over these parameters."""
    prepare()
    return fused(OPTIMIZERS[name](list(parameters), **arguments(options)))


def fused(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The same, whose groups of parameters on a GPU step by one kernel, unless somebody has chosen another form. Elements do
    not depend on each other there, so no division of the work changes bits."""
    if type(optimizer) in _FUSED:
        for group in optimizer.param_groups:
            free = all(group.get(option) is None for option in ("fused", "foreach")) and not group["differentiable"]
            # With dampening a first step is another one, which `begin_late` could not make.
            if (
                free
                and not group.get("dampening")
                and all(parameter.device.type in _FUSED_ON for parameter in group["params"])
            ):
                group["fused"] = True
    return optimizer


def begin_late(optimizer: torch.optim.Optimizer) -> None:
    """Before a step: a parameter that has its first gradient later than others gets a momentum of zero, which the step makes
    its gradient, as for a first one. Without that torch's fused SGD fails."""
    if type(optimizer) is torch.optim.SGD:
        for group in optimizer.param_groups:
            if not (group["fused"] and group["momentum"]):
                continue
            moving = [each for each in group["params"] if each.grad is not None]
            late = [each for each in moving if optimizer.state.get(each, {}).get(_MOMENTUM) is None]
            if len(late) < len(moving):
                for each in late:
                    optimizer.state[each][_MOMENTUM] = torch.zeros_like(each)


def may_change_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of a class of torch may write into gradients, as that of SGD by Nesterov does for all at once."""
    return any(group.get("foreach") for group in optimizer.param_groups)


def with_plain_numbers(optimizer: object) -> None:
    """Give the groups of an optimizer numbers of Python for those of numpy, of the same values. Arithmetic on a numpy.float32
    would be done in float32, and so give other bits than the same rate from a schedule."""
    if isinstance(optimizer, torch.optim.Optimizer):
        for group in (*optimizer.param_groups, optimizer.defaults):
            group.update({key: _plain(value) for key, value in group.items() if key != "params"})


def _plain(value: Any) -> Any:
    if isinstance(value, numpy.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return {key: _plain(item) for key, item in value.items()} if type(value) is dict else value


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Give a group this learning rate. One that is a tensor stays one, written in place as by torch's schedulers: torch
    computes with it in its own precision, so its steps have other bits than with a number."""
    if isinstance(group["lr"], torch.Tensor):
        with torch.no_grad():
            group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def rate_like(own: Any, rate: float) -> Any:
    """This learning rate in the form of a group's own, which stays as it is."""
    return torch.full_like(own, rate) if isinstance(own, torch.Tensor) else rate


def group_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The options of each group that settings or the pipeline have given. A class that is neither torch's nor of the table
    may count there, too, so of it nothing is told."""
    if type(optimizer) not in OPTIMIZERS.values():
        return [{} for _ in optimizer.param_groups]
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def is_of_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step is known: its class is of the table, and no hook of the user's stands around it."""
    return type(optimizer) in OPTIMIZERS.values() and not is_watched(optimizer)


@functools.cache
def _remembered(name: str, options: str) -> float:
    module = torch.nn.Module()
    weight = module.weight = torch.nn.Parameter(torch.zeros(_TRIED, _TRIED))
    optimizer = build(name, json.loads(options), module)
    weight.grad = torch.zeros_like(weight)
    # Adam looks for a GPU before each step. The look would start CUDA in a run's driver, and a card that hangs would hold it.
    vars(optimizer)["_accelerator_graph_capture_health_check"] = lambda: None
    try:
        optimizer.step()
    except (ArithmeticError, RuntimeError) as error:  # of a number that no float32 can hold
        raise ConfigurationError(
            [f"optimizer: {name} cannot step with {options}: {error}"],
            "give it numbers near those of torch's documentation",
            code="optimizer.cannot-step",
        ) from None
    tensors = [value for value in optimizer.state[weight].values() if isinstance(value, torch.Tensor)]
    return round(sum(tensor.numel() for tensor in tensors) / weight.numel(), 1)


def remembered(name: str, options: Mapping[str, Any]) -> float:
    """How many elements the optimizer of this name keeps for each one that it trains; found by a step with a small tensor."""
    return _remembered(name, json.dumps(dict(options), sort_keys=True))


def arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """YAML has lists where torch wants tuples (betas)."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
