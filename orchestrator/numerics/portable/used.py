"""Which operators of torch a piece of code uses, forward and backward, by the names of torch's dispatcher.

    with recorded() as operators:
        loss(model, batch).backward()
    operators                            # {"convolution", "convolution_backward", ...}

Left out is what computes nothing (views, copies, comparisons) or what IEEE 754 rounds correctly element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_EXACT = frozenset(
    """
    abs add alias all any arange as_strided bitwise_and bitwise_not bitwise_or cat ceil clamp clamp_max clamp_min clone
    constant_pad_nd copy copysign detach div empty empty_like empty_strided eq equal expand eye fill flip floor full full_like
    fused_dropout ge gt index_select is_same_size is_set_to isnan isinf isfinite le
    lift lift_fresh linspace logical_and logical_not
    logical_or lt masked_fill max maximum min minimum mul narrow ne neg new_empty new_empty_strided new_full new_ones new_zeros
    ones ones_like permute relu repeat resize round rsub scalar_tensor select select_backward set slice slice_backward split
    split_with_sizes squeeze stack sub t threshold_backward to transpose tril triu unbind unsqueeze view view_as_complex
    view_as_real where zero zeros zeros_like
    _foreach_add _foreach_div _foreach_mul _foreach_neg _foreach_sub _foreach_copy _foreach_zero _foreach_maximum _foreach_abs
    _has_compatible_shallow_copy_type _local_scalar_dense _reshape_alias _reshape_copy _to_copy _unsafe_view _conj
    _nested_tensor_from_mask_left_aligned
    """.split()  # noqa: SIM905
)


@contextmanager
def recorded() -> Iterator[set[str]]:
    """The names, filled while the block runs in this thread."""
    mode = _Recording()
    with mode:
        yield mode.names


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, only to keep it from what follows: two seconds in each worker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func.name().partition(".")[0].partition("::")  # such as aten::add.Tensor
        name = name.rstrip("_") if space == "aten" else f"{space}::{name}"
        if name not in _EXACT:
            self.names.add(name)
        return func(*args, **(kwargs or {}))
