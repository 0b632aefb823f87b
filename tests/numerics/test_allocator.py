"""Memory that a step frees stays in the process."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

# Runs in a process of its own: what other tests hold, and what their threads free, counts in the heap's figures, too. The
# four gradients have 20 MB each. mallinfo2: glibc's figures of its heap; arena is what it took from the kernel, but for the
# blocks mapped one by one (hblkhd).
STEPS = """
import ctypes
import sys

import torch

from orchestrator.numerics import allocator

FIELDS = "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"


class Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in FIELDS)


def from_kernel():
    info = told()
    return info.arena + info.hblkhd


told = ctypes.CDLL(None).mallinfo2
told.restype = Mallinfo2
if sys.argv[1] == "keep":
    allocator.keep_freed_memory()
held = [torch.ones(5_000_000) for _ in range(4)]
during = from_kernel()
del held
print(during - from_kernel())
"""


def _given_back(how: str) -> int:
    """Bytes that a process gives back to the kernel when it frees four gradients."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("no glibc")
    command = [sys.executable, "-c", STEPS, how]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


def test_what_a_step_frees_stays_in_the_process() -> None:
    assert _given_back("keep") == 0


@pytest.mark.long
def test_without_it_glibc_gives_the_memory_back() -> None:
    assert _given_back("leave") >= 4 * 20_000_000
