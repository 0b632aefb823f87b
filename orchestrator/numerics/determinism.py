"""What a compute thread and its process set so that the same arithmetic gives the same bits (rule B3).

`ENVIRONMENT` has to stand before the first call into MKL, so the driver sets it before torch is imported and the workers
inherit it. Without MKL_CBWR the address of an operand changes the bits of a matrix product (48 of 100 shapes measured).
A value that the user has set is kept: it is part of the environment, which is recorded and compared.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import Any

from orchestrator.numerics import cuda

ENVIRONMENT = {
    "MKL_CBWR": "AUTO",
    "MKL_DYNAMIC": "FALSE",
    "OMP_DYNAMIC": "FALSE",
    "PYTHONHASHSEED": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


def prepare_environment() -> dict[str, str]:
    """Set what is not set yet; returns what is in force."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return {name: os.environ[name] for name in ENVIRONMENT}


def cpu_model() -> str:
    """The processor's model name; Linux only, elsewhere what Python knows."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def machine(device: str = "cpu") -> dict[str, str]:
    """What may make two machines compute different bits, to name when they do. device: what computes."""
    import torch

    gpu = {f"GPU: {name}": str(value) for name, value in cuda.describe().items()} if device == "cuda" else {}
    return {
        "CPU": cpu_model(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "libraries": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:12],
        **gpu,
    }


def prepare_thread(threads: int, device: str = "cpu", *, tf32: bool = False) -> dict[str, Any]:
    """Set the calling thread up for computing and return what is in force, for the record. Flush-to-zero is per thread.
    device: what computes; tf32: whether products on a GPU may be computed in it."""
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    _use_deterministic_algorithms()
    return {
        "threads": torch.get_num_threads(),
        "flush_denormal": False,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
        **(cuda.prepare(tf32=tf32) if device == "cuda" else {}),
    }


def _use_deterministic_algorithms() -> None:
    """Also in torch's compiler. torch's function would import it to tell it, which costs a second of processor time; when it is
    imported later, it reads it from the environment."""
    import torch

    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(True)
    else:
        os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
        torch._C._set_deterministic_algorithms(True, warn_only=False)
