"""torch's kernels on the meta device, which find shapes alone, without torch's compiler: its import costs a process seconds.

These kernels are written in Python. With the first call of one, torch imports its compiler, only to exempt the kernel from
compilation. The exemption is not needed while nothing else has imported the compiler. Once something has, torch's own code
runs; with other versions of torch than `common.tested_versions.TORCH` it always runs.
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import torch
from torch._compile import _disable_dynamo

from orchestrator.common import tested_versions

_COMPILER: Final = "torch._dynamo"
_KEPT: Final = "__dynamo_disable"  # the attribute in which torch keeps what it calls in a function's place


@functools.cache
def leave_the_compiler_out() -> None:
    """For all kernels that torch has. Once in a process; safe to call again."""
    if not tested_versions.TORCH.is_here:
        return
    importlib.import_module("torch._refs")  # which has them
    decorated: Any = _disable_dynamo(_nothing)
    # All that torch has decorated so share the code of the function around them.
    for around in gc.get_referrers(decorated.__code__):
        if isinstance(around, FunctionType):
            function = inspect.getclosurevars(around).nonlocals["fn"]  # torch sets another __wrapped__ for some
            if not hasattr(function, _KEPT):
                setattr(function, _KEPT, _plain(function, around))
    torch._check_with = _trusting(torch._check_with)


def _plain(function: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    """around: the function as torch has decorated it."""

    def call(*arguments: Any, **options: Any) -> Any:
        if _COMPILER not in sys.modules:
            return function(*arguments, **options)
        delattr(function, _KEPT)
        return around(*arguments, **options)

    return call


def _trusting(check: Callable[..., None]) -> Callable[..., None]:
    """A condition that holds needs nothing of the compiler, which knows conditions on symbols."""

    def checked(error_type: Any, condition: Any, message: Any) -> None:
        if condition is not True:
            check(error_type, condition, message)

    return checked


def _nothing() -> None:
    """To be decorated."""
