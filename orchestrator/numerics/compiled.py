"""Loops over arrays, compiled by numba: when their module is imported, and once for each kind of processor.

numba keeps what it compiled in `__pycache__` beside the source, or in the user's cache folder where that cannot be written.
It compiles again when the loop's source, numba or the processor is another one; but not for a constant of another module,
nor for other options here.

Without `fastmath`, LLVM neither reassociates nor contracts what is written in a loop: on every machine each operation is
rounded once, as IEEE 754 says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numba
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(*signatures: str) -> Callable[[Loop], Loop]:
    """For these types of arguments; without any, for use in other compiled loops. Division by zero gives infinity or NaN."""

    def compile_(loop: Loop) -> Loop:
        try:
            return cast(Loop, _jit(loop, signatures, cache=bool(signatures)))
        except (RuntimeError, OSError):  # there is no folder that takes it: each process compiles for itself
            return cast(Loop, _jit(loop, signatures, cache=False))

    return compile_


def _jit(loop: Loop, signatures: Sequence[str], *, cache: bool) -> object:
    """Also where NUMBA_DISABLE_JIT is set, which is for loops that a user debugs."""
    config: Any = numba.config
    disabled, config.DISABLE_JIT = config.DISABLE_JIT, 0
    try:
        return numba.njit(list(signatures) or None, error_model="numpy", cache=cache)(loop)
    finally:
        config.DISABLE_JIT = disabled


@intrinsic
def _pointer(_: Any, address: Any) -> Any:
    """The integer as a pointer to float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(address), generate  # type: ignore[no-untyped-call]


@compiled()
def floats_at(address: int, elements: int) -> Any:
    """In a compiled loop: the float32 array of so many elements that lies there. Whoever owns it has to keep it alive."""
    return carray(_pointer(address), elements)  # type: ignore[call-arg]
