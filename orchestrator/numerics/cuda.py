"""All that is particular to CUDA: whether this process can compute there, what makes it deterministic, what to record of it.

Deterministic algorithms as such are switched on for every device (`determinism.prepare_thread`); an operation that has none
raises then, and names itself. `docs/benchmarks/gpu.md` says on which cards it ran. The tests try it as far as a build without
CUDA goes.
Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from orchestrator.common import card_faults, gpu_memory
from orchestrator.errors import ConfigurationError, coded

_PARTS = (0, 1, 2)  # library_types.h: major, minor and patch level
_NONE_VISIBLE = "No CUDA GPUs are available"  # of torch, where CUDA finds none and gives no other reason
_WAITS = "called a synchronizing CUDA operation"  # what torch warns of in its debug mode
_WORKSPACES = (":4096:8", ":16:8")  # those under which cuBLAS is deterministic
_locked: dict[int, DriverCalls] = {}  # of memory that is page-locked, by its address


def build_problem() -> str | None:
    """Why no process with this torch can compute on a GPU. Starts nothing."""
    import torch

    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return None
    return coded(
        "gpu.torch-without",
        f"run.device: torch {torch.__version__} is built without CUDA; install a build with CUDA, or launch a new "
        "run with run.device=cpu",
    )


def start() -> None:
    """Start CUDA in this process. Raises ConfigurationError where that cannot give deterministic results, or any."""
    problem = build_problem() or _workspace_problem() or _tuning_problem()
    if problem is not None:
        raise ConfigurationError([problem])
    error = _start_failure()
    if error is None:
        return
    if _NONE_VISIBLE in str(error):  # a setting or a machine without one, rather than a card that failed
        raise ConfigurationError([_none_visible()])
    fault = card_faults.named_in(str(error))
    if fault is not None and not fault.elsewhere:  # the machine is to be mended, and no other try helps
        problem = f"run.device: {fault.sentence} ({error}, driver {driver()}); {fault.remedy}"
        raise ConfigurationError([problem], code=fault.code) from error
    raise ConfigurationError(
        [
            f"run.device: the GPU does not compute: {error}; look at nvidia-smi on this node (driver, memory, and compute "
            "mode: Default, where workers share a GPU), take a torch built for this GPU, or launch a new run with "
            "run.device=cpu"
        ],
        code="gpu.does-not-compute",
    ) from error


def _start_failure() -> Exception | None:
    """Start CUDA, and compute; returns what was raised. `is_available` is not asked before: where a driver fails it says no,
    and the reason is lost."""
    import torch

    try:
        # Now, because a device's generators are seeded only where CUDA was started.
        torch.cuda.init()  # type: ignore[no-untyped-call]
        _compute()
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
        return error
    return None


def prepare() -> dict[str, Any]:
    """Switch off what would choose kernels by the clock, and give what torch has only without an order one; returns what is
    in force."""
    import torch

    from orchestrator.numerics import image_losses

    image_losses.install()
    cudnn: Any = torch.backends.cudnn
    cudnn.benchmark = False
    cudnn.deterministic = True
    return {"device": "cuda", "cudnn_benchmark": cudnn.benchmark}


@contextmanager
def waits() -> Iterator[list[str]]:
    """The places, FILE:LINE, at which code of this thread waits for the card within the block, as it does to look at a value.

    Source: PyTorch, `torch.cuda.set_sync_debug_mode`."""
    import torch

    found: list[str] = []
    here, mode = threading.get_ident(), torch.cuda.get_sync_debug_mode()

    def take(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
        if not str(message).startswith(_WAITS):
            shown(message, category, filename, lineno, *rest)
        elif threading.get_ident() == here:
            found.append(f"{filename}:{lineno}")

    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_WAITS)
        # It finds the waits that are looked for.
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        shown: Any = warnings.showwarning
        warnings.showwarning = take  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(mode)


def describe() -> dict[str, Any]:
    """The GPUs that this process sees, and the libraries that compute on them: what may bear upon bits. Starts CUDA in it."""
    import torch

    cudnn: Any = torch.backends.cudnn
    devices = _devices()
    return {
        "models": sorted({f"{device.name}, compute capability {device.major}.{device.minor}" for device in devices}),
        # By their number kernels are cut, so two cards of one architecture may add up in different orders.
        "multiprocessors": sorted({device.multi_processor_count for device in devices}),
        "mig": any(" MIG " in f"{device.name} " for device in devices),
        "driver": driver(),
        "cuda": torch.version.cuda,
        "cublas": cublas(),
        "cudnn": cudnn.version(),
    }


def answered(answer: Any, call: str = "") -> Any:
    """The result of a call of `cuda.bindings` without its error code: the value, or a list of several or of none. call: its
    name. Raises RuntimeError where CUDA refuses."""
    code, *values = answer if isinstance(answer, tuple) else (answer,)
    if int(code) != 0:
        # By its name, which `card_faults` knows: as text some versions give the number alone.
        name = getattr(code, "name", None)
        raise RuntimeError(f"CUDA refuses{call and f' {call}'}: {f'{name} ({int(code)})' if name else int(code)}")
    return values[0] if len(values) == 1 else values


class DriverCalls:
    """Calls of the CUDA driver by `cuda.bindings`, from any thread, in the context of torch's current device, which this makes.
    torch makes it current in a thread only when that computes."""

    def __init__(self) -> None:
        import torch
        from cuda.bindings import driver

        torch.zeros(1, device="cuda")
        self.driver: Any = driver
        self._context = answered(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
        self._of_thread = threading.local()

    def __call__(self, name: str, *arguments: Any) -> Any:
        """The value. Raises RuntimeError."""
        return answered(self.answer(name, *arguments), name)

    def answer(self, name: str, *arguments: Any) -> Any:
        """As the driver gives it."""
        if not getattr(self._of_thread, "has_context", False):
            answered(self.driver.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
            self._of_thread.has_context = True
        return getattr(self.driver, name)(*arguments)


def page_lock(address: int, size_bytes: int) -> None:
    """Have a GPU copy to this host memory three times as fast, until `page_unlock`. Copies are slower, and as right, where the
    driver refuses."""
    with suppress(ImportError, RuntimeError):
        call = DriverCalls()
        call("cuMemHostRegister", address, size_bytes, 0)
        _locked[address] = call


def page_unlock(address: int, size_bytes: int) -> None:
    """Undo it within this memory, before it is unmapped: a GPU would go on copying to its pages, also when others have their
    address. From any thread."""
    for start in [each for each in list(_locked) if address <= each < address + size_bytes]:
        import torch

        call = _locked.pop(start)
        with suppress(RuntimeError):
            if not torch.cuda.is_current_stream_capturing():  # a recording waits for nothing
                torch.cuda.synchronize()
        with suppress(RuntimeError):
            call.answer("cuMemHostUnregister", start)


def card() -> dict[str, str]:
    """The GPU of this process, by its name and, as others may call it `cuda:0` too, by its UUID."""
    import torch

    found: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"card": str(found.name), "uuid": str(getattr(found, "uuid", found.name))}


def uuid() -> str:
    """The UUID of the GPU of this process, as `nvidia-smi -L` names it; empty if torch does not tell."""
    import torch

    found: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f"GPU-{found.uuid}" if hasattr(found, "uuid") else ""


def card_memory() -> dict[str, Any]:
    """`{"name", "free_bytes", "total_bytes"}` of the GPU of this process, whoever has taken the rest."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return {"name": card()["card"], "free_bytes": free, "total_bytes": total}


def limit(size_bytes: int) -> None:
    """From now on torch's allocator takes at most so much of the GPU of this process, and has no memory left beyond that."""
    import torch

    whole = int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, size_bytes / whole)))


def memory() -> dict[str, int]:
    """Bytes that this process has of its GPU. peak: that tensors took at once; reserved: by torch's allocator; largest_free:
    block of those; graphs: of those in private pools."""
    now = gpu_memory.memory_use()
    return {"peak": now.peak, "reserved": now.reserved, "largest_free": now.largest_free, "graphs": now.pools}


def uuids() -> list[str]:
    """Which cards they are, as `nvidia-smi -L` names them; none where torch does not tell. As `describe`."""
    return sorted(f"GPU-{device.uuid}" for device in _devices() if hasattr(device, "uuid"))


def _devices() -> list[Any]:
    import torch

    return [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]


def cublas() -> str | None:
    """The version of cuBLAS, asked of the library that torch has loaded; None where it does not tell."""
    import torch

    part = ctypes.c_int()
    try:
        ask = ctypes.CDLL(f"libcublas.so.{str(torch.version.cuda).partition('.')[0]}").cublasGetProperty
        told = [part.value for number in _PARTS if ask(number, ctypes.byref(part)) == 0]
    except (OSError, AttributeError):
        return None
    return ".".join(map(str, told)) or None


def driver(text: str | None = None) -> str | None:
    """The version of NVIDIA's kernel module; None where there is none. text: what the module says of itself."""
    if text is None:
        try:
            text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", text)
    return found.group(1) if found else None


def _none_visible() -> str:
    return coded(
        "gpu.not-visible",
        f"run.device: no GPU is visible to this process (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}, "
        f"driver {driver()}); look at nvidia-smi on this node, raise cluster.gpus_per_worker, or launch a new run with "
        "run.device=cpu; where there was one before, start the container again, or reboot",
    )


def _compute() -> None:
    """The first kernel: a driver, or a build of torch, that does not fit the GPU shows only now."""
    import torch

    torch.ones(1, device="cuda").sum().item()


def _tuning_problem() -> str | None:
    if os.environ.get("PYTORCH_TUNABLEOP_ENABLED") != "1":
        return None
    return coded(
        "gpu.tunable",
        "run.device: PYTORCH_TUNABLEOP_ENABLED=1 chooses the kernels of products by the clock, so they come out differently "
        "from time to time; unset it",
    )


def _workspace_problem() -> str | None:
    given = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if given in _WORKSPACES:
        return None
    return coded(
        "gpu.workspace",
        f"run.device: CUBLAS_WORKSPACE_CONFIG={given} makes products on a GPU come out differently from time to time; "
        f"unset it, or set {' or '.join(_WORKSPACES)}",
    )
