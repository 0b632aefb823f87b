"""What a compute thread and its process set so that the same arithmetic gives the same bits (rule B3).

`ENVIRONMENT` has to stand before the first call into MKL, so the driver sets it before torch is imported and the workers
inherit it. Without MKL_CBWR the address of an operand changes the bits of a matrix product (48 of 100 shapes measured).
A value that the user has set is kept: it is part of the environment, which is recorded and compared.
"""

from __future__ import annotations

import os
from typing import Any

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


def prepare_thread(threads: int) -> dict[str, Any]:
    """Set the calling thread up for computing and return what is in force, for the record. Flush-to-zero is per thread."""
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    torch.use_deterministic_algorithms(True)
    return {
        "threads": torch.get_num_threads(),
        "flush_denormal": False,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
    }
