"""Memory that a step frees stays in the process."""

from __future__ import annotations

import ctypes

import pytest
import torch

from orchestrator.numerics import allocator

GRADIENTS = [5_000_000] * 4  # elements; 20 MB each


FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo2(ctypes.Structure):
    """The figures of glibc about its heap. arena: bytes taken from the kernel, but for the blocks mapped one by one
    (hblkhd)."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in FIELDS)


def _from_kernel() -> int:
    told = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if told is None:
        pytest.skip("no glibc")
    told.restype = _Mallinfo2
    info = told()
    return int(info.arena) + int(info.hblkhd)


def test_what_a_step_frees_stays_in_the_process() -> None:
    allocator.keep_freed_memory()
    held = [torch.ones(elements) for elements in GRADIENTS]
    during = _from_kernel()
    del held
    assert _from_kernel() == during
