"""The card, its driver and all versions, told before anything is tried: the line that is missing is what hangs or fails.

    python -m benchmarks.gpu.machine cuda

A process of its own, since it starts CUDA. Its last line is the card in one sentence, after a mark.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks import bench as side_by_side
from benchmarks.gpu.runs import REPOSITORY, executed
from orchestrator.common.bounded_command import output_of

CARD: Final = "card: "
_LIMIT_S: Final = 120.0
_ASKED: Final = ("CUDA_", "CUBLAS", "PYTORCH_", "NVIDIA_", "TORCH", "LD_LIBRARY_PATH")
_QUERY: Final = (
    "name,uuid,driver_version,memory.total,memory.used,compute_mode,mig.mode.current,pstate,clocks.sm,ecc.mode.current"
)


def look(device: str, tell: Callable[[str], None], limit_s: float = _LIMIT_S) -> tuple[str, str]:
    """(the card in a sentence, what its process said as it failed)"""
    code, output, errors = executed(["-m", "benchmarks.gpu.machine", device], REPOSITORY, limit_s)
    card = ""
    for line in output.splitlines():
        if line.startswith(CARD):
            card = line.removeprefix(CARD)
        tell(line)
    if code == 0 and card:
        return card, ""
    ended = f"did not end in {limit_s:g} s" if code is None else f"exited with {code}"
    return "a card that does not tell of itself", f"it {ended}, after these lines:\n{output}\n{errors}"


def lines(device: str) -> Iterator[str]:
    yield f"Python {platform.python_version()}, {platform.platform()}, {side_by_side.machine()}"
    yield f"commit {_asked('git', '-C', str(REPOSITORY), 'log', '-1', '--format=%h %ci %s')}"
    yield f"variables: {' '.join(f'{name}={value}' for name, value in sorted(os.environ.items()) if name.startswith(_ASKED))}"
    # A machine that is bare makes them first, for all processes that follow: half a minute of a processor.
    yield f"loops of the processor: {_told(_loops)}"
    if device != "cuda":
        yield f"{CARD}no card: toy sizes on processors, which say nothing about speed"
        return
    yield f"nvidia-smi: {_asked('nvidia-smi', f'--query-gpu={_QUERY}', '--format=csv,noheader')}"
    import torch

    yield f"torch {torch.__version__}, CUDA {torch.version.cuda}, from {os.path.dirname(torch.__file__)}"  # noqa: PTH120
    yield f"cuda.bindings: {_told(_bindings)}"
    yield f"NVRTC: {_told(_nvrtc)}"
    from orchestrator.numerics import cuda

    found: Any = torch.cuda.get_device_properties(0)
    versions = cuda.describe()
    yield f"cuBLAS {versions['cublas']}, architectures of torch: {' '.join(torch.cuda.get_arch_list())}"
    yield (
        f"{CARD}{found.name} ({found.multi_processor_count} multiprocessors, compute capability {found.major}.{found.minor}, "
        f"{found.total_memory / 2**30:.0f} GiB), driver {versions['driver']}, CUDA {versions['cuda']}, "
        f"cuDNN {versions['cudnn']}"
    )


def _asked(*command: str) -> str:
    try:
        told = output_of(command, 10.0)
    except (OSError, TimeoutError, subprocess.SubprocessError) as error:
        return str(error)
    return "; ".join((told.out or told.err).strip().splitlines())


def _told(ask_library: Callable[[], str]) -> str:
    try:
        return ask_library()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _loops() -> str:
    from orchestrator.numerics import exact

    began = time.monotonic()
    exact.load()
    return f"here after {time.monotonic() - began:.1f} s"


def _bindings() -> str:
    import cuda.bindings

    return str(cuda.bindings.__version__)


def _nvrtc() -> str:
    from cuda.bindings import nvrtc

    return ".".join(map(str, nvrtc.nvrtcVersion()[1:]))


if __name__ == "__main__":
    for each in lines(sys.argv[1]):
        print(each, flush=True)
