"""torch.optim without torch's compiler, whose import costs each process a second.

With its first call torch.optim imports the compiler, only to exempt its own functions from compilation. The exemption is not
needed while nothing else has imported the compiler. Once something has, torch's own functions are called; with other versions
of torch than `common.tested_versions.TORCH` they always are.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from orchestrator.common import tested_versions

Function = Callable[..., Any]

_METHODS = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def leave_the_compiler_out(kinds: Iterable[type[torch.optim.Optimizer]]) -> None:
    """For the steps of these optimizers, and for what all have in common. Safe to call twice."""
    if not tested_versions.TORCH.is_here:
        return
    for name in _METHODS:
        _replace(torch.optim.Optimizer, name)
    for kind in kinds:
        _replace(kind, "step")


def _replace(kind: type[torch.optim.Optimizer], name: str) -> None:
    function: Any = getattr(kind, name)
    plain = _plain(function)
    if plain is not None:
        setattr(kind, name, _chosen(function, plain))


def _chosen(function: Function, plain: Function) -> Function:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return (function if "torch._dynamo" in sys.modules else plain)(*arguments, **options)

    return call


def _plain(function: Any) -> Function | None:
    """A function of torch without its checks for the compiler; None if it has none, or has been replaced."""
    made_by = function.__code__.co_qualname
    if made_by == "_disable_dynamo.<locals>.inner":
        return getattr(function, "__wrapped__", None)
    if made_by == "_use_grad_for_differentiable.<locals>._use_grad":
        return _with_grad(function.__wrapped__)
    return None


def _with_grad(step: Function) -> Function:
    def call(optimizer: torch.optim.Optimizer, *arguments: Any, **options: Any) -> Any:
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
            return step(optimizer, *arguments, **options)

    return call
