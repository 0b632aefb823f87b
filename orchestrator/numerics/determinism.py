"""Settings of a compute thread and of its process with which the same arithmetic gives the same bits (rule B3).

`ENVIRONMENT` has to stand before the first call into MKL, so the driver sets it before torch is imported and the workers
inherit it. Without MKL_CBWR the address of an operand changes the bits of a matrix product (48 of 100 shapes measured).
A value that the user has set is kept: it is part of the environment, which is recorded and compared. `PORTABLE` comes on top
where `run.arithmetic` asks for the same bits on every processor; there the setting is what counts.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import ConfigurationError
from orchestrator.numerics import allocator, cuda, float32_precision

ENVIRONMENT = {
    "MKL_CBWR": "AUTO",
    "MKL_DYNAMIC": "FALSE",
    "OMP_DYNAMIC": "FALSE",
    "PYTHONHASHSEED": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}

# The code paths of torch's kernels and its generators, of MKL, of oneDNN, and of numpy with its OpenBLAS: those that every
# processor with AVX2 has. Tried on Intel's and AMD's (docs/portable.md).
PORTABLE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NPY_ENABLE_CPU_FEATURES": "X86_V3",
    "OPENBLAS_CORETYPE": "HASWELL",
}
# Set to 1, as tests do, it has torch fill memory that nobody has written wherever it computes.
FILL = "ORCHESTRATOR_FILL"
_CAPABILITY = "AVX2"  # as torch calls what ATEN_CPU_CAPABILITY=avx2 has it use
Arithmetic = Literal["native", "portable"]


@contextmanager
def environment_of(arithmetic: Arithmetic) -> Iterator[None]:
    """Within the block, processes that are started compute with this arithmetic. This process does so if it has not loaded
    torch yet."""
    before = {name: os.environ.get(name) for name in PORTABLE}
    if arithmetic == "portable":
        os.environ.update(PORTABLE)
    try:
        yield
    finally:
        _put_back({**{name: value for name, value in os.environ.items() if name not in PORTABLE}, **_given(before)})


def _given(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def prepare_environment() -> dict[str, str]:
    """Set what is not set yet; returns what is in force."""
    for name, value in {**ENVIRONMENT, **allocator.variables()}.items():
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
    """The facts that may make two machines compute different bits, to name when they do. device: what computes."""
    import torch

    gpu = {f"GPU: {name}": str(value) for name, value in cuda.describe().items()} if device == "cuda" else {}
    return {
        "CPU": cpu_model(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "libraries": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:12],
        **gpu,
    }


@contextmanager
def left_as_it_was() -> Iterator[None]:
    """Settings that the user's code changes inside the block for the whole process, and generators that it draws from, are
    put back behind it."""
    import numpy
    import torch

    generators = torch.get_rng_state(), numpy.random.get_state(), random.getstate()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    threads, dtype, device = torch.get_num_threads(), torch.get_default_dtype(), torch.get_default_device()
    algorithms = torch.get_deterministic_debug_mode()
    gradients, precision = torch.is_grad_enabled(), float32_precision.read()
    cudnn = torch.backends.cudnn
    kernels = cudnn.enabled, cudnn.benchmark, cudnn.deterministic
    variables, folder, search_path = dict(os.environ), Path.cwd(), list(sys.path)
    try:
        yield
    finally:
        torch.set_rng_state(generators[0])
        numpy.random.set_state(generators[1])
        random.setstate(generators[2])
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            # None: a device that is set, also the CPU, has torch look at it in each call.
            torch.set_default_device(None if device.type == "cpu" else device)
        if torch.get_deterministic_debug_mode() != algorithms:  # to set it imports the compiler, for a second
            torch.set_deterministic_debug_mode(algorithms)
        torch.set_grad_enabled(gradients)
        float32_precision.put_back(precision)
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = kernels
        _put_back(variables)
        os.chdir(folder)
        sys.path[:] = search_path


_STRICTNESS = (False, "with warn_only", True)


def settings_of_torch() -> dict[str, str]:
    """Those that decide how this thread computes, by what sets them."""
    import torch

    cudnn = torch.backends.cudnn
    gpu: Any = torch.cuda
    read: dict[str, Callable[[], object]] = {
        "torch.set_num_threads": torch.get_num_threads,
        "torch.set_default_dtype": torch.get_default_dtype,
        "torch.set_default_device": torch.get_default_device,
        "torch.set_grad_enabled": torch.is_grad_enabled,
        "torch.use_deterministic_algorithms": lambda: _STRICTNESS[torch.get_deterministic_debug_mode()],
        "torch.set_flush_denormal": lambda: sys.float_info.min / 2 == 0,  # torch does not tell
        "torch.set_autocast_enabled": lambda: [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "torch.cuda.set_stream": lambda: gpu.current_stream() if gpu.is_initialized() else None,
        "torch.backends.cudnn.enabled": lambda: cudnn.enabled,
        "torch.backends.cudnn.benchmark": lambda: cudnn.benchmark,
        "torch.backends.cudnn.deterministic": lambda: cudnn.deterministic,
    }
    precision = {f"{name}.fp32_precision": value for name, value in float32_precision.read().items()}
    return {name: str(each()) for name, each in read.items()} | precision


def _put_back(variables: dict[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})


def prepare_thread(
    threads: int, device: str = "cpu", *, tf32: bool = False, arithmetic: Arithmetic = "native"
) -> dict[str, Any]:
    """Set the calling thread up for computing and return what is in force, for the record. Flush-to-zero is per thread.
    device: what computes; tf32: whether products on a GPU may be computed in it. Raises ConfigurationError for portable
    arithmetic in a process that cannot have it."""
    import torch

    _choose(arithmetic)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    float32_precision.prepare(tf32=tf32)
    _use_deterministic_algorithms()
    _leave_scripts_as_written()
    with torch.autograd.profiler.record_function("prepare"):
        pass  # torch looks for a module of its own the first time, and warns at length where no descriptor is left by then
    return {
        "threads": torch.get_num_threads(),
        "flush_denormal": False,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
        **({"portable": PORTABLE} if arithmetic == "portable" else {}),
        **(cuda.prepare() | {"tf32": tf32} if device == "cuda" else {}),
    }


def _use_deterministic_algorithms() -> None:
    """Switch on deterministic algorithms, also in torch's compiler, which reads that from the environment when it is imported
    later. By default torch would then fill all memory that it takes, too. The filling shows an operation that reads memory
    which nobody has written, and costs a step of convolutions 6 to 14 % of its time."""
    import torch

    deterministic: Any = torch.utils.deterministic
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
    set_deterministic_algorithms(True)
    deterministic.fill_uninitialized_memory = os.environ.get(FILL) == "1"
    linalg: Any = torch.linalg
    if not hasattr(linalg.lstsq, "__wrapped__"):
        linalg.lstsq = _with_pivots_of_its_own(linalg.lstsq)


def _leave_scripts_as_written() -> None:
    """Have functions of `torch.jit.script` called as plain ones are, in this thread. torch would look at their first calls, and
    differentiate later ones by formulas of its own, with other bits."""
    import torch

    optimize = getattr(torch._C, "_set_graph_executor_optimize", None)
    if optimize is not None:
        optimize(False)


def _with_pivots_of_its_own(lstsq: Callable[..., Any]) -> Callable[..., Any]:
    """The function torch.linalg.lstsq with another default on processors. Its own is LAPACK's gelsy, and torch 2.13 has not
    written the memory where gelsy reads its first columns. gelsd reads none, and finds the rank as well."""

    @functools.wraps(lstsq)
    def chosen(*given: Any, **named: Any) -> Any:
        device = getattr(given[0] if given else next(iter(named.values()), None), "device", None)
        on_processor = device is not None and device.type == "cpu"
        if on_processor and named.get("driver") in (None, "gelsy"):
            named["driver"] = "gelsd"
        return lstsq(*given, **named)

    return chosen


@contextmanager
def filled() -> Iterator[None]:
    """Within the block torch fills memory that nobody has written, with NaN, so that whatever reads it shows. It does so only
    while it computes by deterministic algorithms, as workers have it."""
    import torch

    deterministic: Any = torch.utils.deterministic
    before = deterministic.fill_uninitialized_memory
    deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        deterministic.fill_uninitialized_memory = before


def set_deterministic_algorithms(wanted: bool, *, only_warns: bool = False) -> None:
    """As `torch.use_deterministic_algorithms`, without its import of torch's compiler, which takes a second. While the compiler
    is not imported, the private function below it is called, where torch has one."""
    import torch

    below = getattr(torch._C, "_set_deterministic_algorithms", None)
    if below is None or "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(wanted, warn_only=only_warns)
    else:
        below(wanted, warn_only=only_warns)


def _choose(arithmetic: Arithmetic) -> None:
    """Have the whole process compute so; native arithmetic is what torch does by itself. Raises ConfigurationError."""
    if arithmetic == "portable":
        problem = portable_problem()
        if problem is not None:
            raise ConfigurationError([f"run.arithmetic: {problem[0]}"], problem[1], code="portable.process")
        from orchestrator.numerics.portable import operator_overrides

        operator_overrides.install()
    elif "orchestrator.numerics.portable.operator_overrides" in sys.modules:
        sys.modules["orchestrator.numerics.portable.operator_overrides"].remove()


def portable_problem() -> tuple[str, str] | None:
    """Why this process cannot compute portably, and what to do; None where it can. torch reads the variables when it is loaded
    or first computes, and tells of one of them what it has made of it."""
    import torch

    wrong = [f"{name}={os.environ.get(name, '')}" for name, value in PORTABLE.items() if os.environ.get(name) != value]
    if wrong:
        return (
            f"portable needs other variables than this process has: {', '.join(wrong)}",
            "set " + " ".join(f"{name}={value}" for name, value in PORTABLE.items()) + " before Python starts",
        )
    found = torch.backends.cpu.get_cpu_capability()
    if found != _CAPABILITY:
        return (
            f"portable needs a processor with AVX2, and variables that are set before torch computes; torch uses {found} on "
            f"this {cpu_model()}",
            "set run.arithmetic=native, or run it elsewhere",
        )
    return None
