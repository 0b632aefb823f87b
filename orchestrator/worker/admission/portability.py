"""Under portable arithmetic: do the operators that a run uses have the same bits on this processor as on all others?

Each worker looks for itself, so nodes of other kinds and workers that join are looked at, too. Only the cases of
`docs/portable.md` whose operators the run uses are computed; that takes a few tenths of a second.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Set
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from orchestrator.errors import ConfigurationError, coded
from orchestrator.numerics import determinism
from orchestrator.numerics.portable import checking, used
from orchestrator.optim.optimizers import OPTIMIZERS
from orchestrator.pipeline import naming
from orchestrator.worker.model import snapshot

_ROWS = 8  # of a parameter, at most, in the step that is tried
_REMEDY = (
    "use another operator (docs/portable.md has the table), or set run.arithmetic=native; `python -m orchestrator doctor` "
    "tells what this processor computes otherwise"
)


def judge(operators: Set[str]) -> list[str]:
    """The operators of which nothing is known, since no case has them. Raises ConfigurationError, which names those whose
    bits depend on the processor, or come out otherwise on this one."""
    apart = checking.concerned(operators)
    here = checking.check(checking.relevant(operators)).differing
    if not apart and not here:
        return checking.unknown(operators)
    problems = [
        coded("portable.other-processors", f"run.arithmetic: {_named(name)} has other bits on other processors")
        for name in apart
    ]
    problems += [
        coded(
            "portable.this-processor",
            f"run.arithmetic: {_named(name)} comes out otherwise on this {determinism.cpu_model()}",
        )
        for name in here
    ]
    raise ConfigurationError(problems, _REMEDY)


def _named(case: str) -> str:
    operators = ", ".join(sorted(checking.known()[case].operators))
    return f"{case} ({operators})"


def operators_of_step(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> set[str]:
    """The operators of a step of this optimizer, which stays as it is, as does its model: a copy of it steps with small
    parameters, or with whole ones where it cannot. Raises PipelineRaised if a user's optimizer cannot do that either."""
    with naming("a step of the optimizer"):
        if type(optimizer) in OPTIMIZERS.values():
            return _tried(_small_copy(optimizer))
        with snapshot.put_back(model):  # a function that it holds may refer to the model itself
            with contextlib.suppress(Exception):  # it may look at sizes, or at tensors that a closure holds
                return _tried(_small_copy(optimizer))
            return _tried(_copy(optimizer, {}))


def _tried(optimizer: torch.optim.Optimizer) -> set[str]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    with used.recorded() as found:
        optimizer.step()
    return found


def _small_copy(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    small: dict[int, Any] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            small[id(parameter)] = torch.nn.Parameter(_small(parameter).zero_())
    with _Shrinking():
        return _copy(optimizer, small)


def _copy(optimizer: torch.optim.Optimizer, made: dict[int, Any]) -> torch.optim.Optimizer:
    """With the attributes of its class, which torch's own way to copy an optimizer drops. made: as `deepcopy` takes it."""
    copied = copy.deepcopy(optimizer, made)
    for name, value in vars(optimizer).items():
        if name not in vars(copied) and name != "step":  # one of the object calls the object's
            try:
                vars(copied)[name] = copy.deepcopy(value, made)
            except Exception:  # of a lock, a file
                vars(copied)[name] = value
    return copied


class _Shrinking(TorchFunctionMode):
    """Copies of tensors are small."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, made = args
            return made.setdefault(id(tensor), _small(tensor))
        if func is torch.Tensor.clone:  # by which a Parameter copies itself
            return _small(args[0])
        return func(*args, **(kwargs or {}))


def _small(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of its first rows, in every dimension."""
    return tensor.detach()[tuple(slice(_ROWS) for _ in tensor.shape)].clone(memory_format=torch.contiguous_format)
