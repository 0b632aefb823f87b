"""`sums.cu` as a processor runs it: compiled by the C++ compiler of this machine, without fused operations."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.numerics.device.compiling import KINDS, SOURCE, Compiled


class Launcher:
    """As `compiling.Launcher`. threads: of a block."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._library, self._threads = library, threads

    def __call__(self, name: str, blocks: int, values: Sequence[int | float], kinds: Sequence[Any]) -> None:
        assert kinds == KINDS[name]
        function = getattr(self._library, f"run_{name}")
        function.argtypes = (ctypes.c_int, ctypes.c_int, *kinds)
        function.restype = None
        function(blocks, self._threads, *values)


@cache
def _library(lanes: bool) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "sums.so"
        source = Path(__file__).with_name("host.cpp")
        options = ["-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-I{SOURCE.parent}"]
        # As a card, it ends where an address is none for its type.
        options += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
        options += ["-DLANES"] if lanes else []
        subprocess.run(["c++", *options, str(source), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))


def kernels(threads: int = 5, most_blocks: int = 3, *, lanes: bool = False) -> Compiled:
    """lanes: threads stand in warps of 32, which exchange values as on a card."""
    assert threads % 32 == 0 or not lanes
    return Compiled(Launcher(_library(lanes), threads), most_blocks)
