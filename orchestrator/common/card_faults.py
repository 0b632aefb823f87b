"""The failures of a GPU under a worker: a table with a row for each kind, and the kind of an exception.

An error of a card that is *sticky* makes every later call of that process fail, so the process is lost, whatever it computed.
Its shards are computed elsewhere, to the same bits, unless the row says that they would fail there, too. Memory that runs out
is no such failure, and neither is what a kernel refuses before it starts.
Source: NVIDIA, "CUDA Runtime API", cudaError_t, and "XID Errors"; the words are those of torch, of cudaGetErrorString, of
`cuda.bindings`, of NVML and of the kernel's log.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.errors import OrchestratorError, RunFailed, UsageError


@dataclass(frozen=True)
class CardFault:
    """A kind of failure. error: what a run ends with that cannot go on; says: how the kind is known, where the first row that
    matches counts."""

    error: OrchestratorError
    says: re.Pattern[str]
    card_suspected: bool = True  # the card itself may be at fault: failing twice it is left out
    elsewhere: bool = True  # the run may go on with another worker
    by_code: bool = False  # most likely the code of the pipeline: again in the same micro-batch, it is

    @property
    def code(self) -> str:
        return self.error.code

    @property
    def sentence(self) -> str:
        return self.error.message

    @property
    def remedy(self) -> str:
        return self.error.remedy

    def told(self, what: str, details: str = "") -> OrchestratorError:
        """The error of one such failure. what: the words by which it was known; details: a traceback."""
        return type(self.error)(f"{self.sentence}: {what}", self.remedy, details, code=self.code)


def _row(error: OrchestratorError, says: str, **kind: bool) -> CardFault:
    return CardFault(error, re.compile(says, re.IGNORECASE), **kind)


_INDEX = "look for an index or a label out of range in what the pipeline computes; CUDA_LAUNCH_BLOCKING=1 names the operation"

# Nothing says so: it is seen from outside, as the process answers and its compute thread does not come back from the card.
STANDS_STILL: Final = _row(
    RunFailed(
        "a card does not end what it was given",
        "look at dmesg of that machine for Xid, and at nvidia-smi; where the pipeline's own kernel never ends, "
        "CUDA_LAUNCH_BLOCKING=1 has the journal name its line",
        code="gpu.stands-still",
    ),
    r"(?!)",
)
FAULTS: Final = (
    STANDS_STILL,
    _row(
        UsageError(
            "the driver's module in the kernel and its library on this machine are of different versions",
            "reboot, or reload the module (rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia): the driver was "
            "updated",
            code="gpu.driver-mismatch",
        ),
        r"driver/library version mismatch|unsupported display driver|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        card_suspected=False,
        elsewhere=False,
    ),
    _row(
        UsageError(
            "the driver of this machine is older than this torch needs",
            "update the driver, or install a torch built for an older CUDA",
            code="gpu.driver-old",
        ),
        r"driver version is insufficient|driver on your system is too old|forward compatibility was attempted",
        card_suspected=False,
        elsewhere=False,
    ),
    _row(
        UsageError(
            "the cards of this machine are not set up: it has switches between them, whose service does not run",
            "start it (systemctl start nvidia-fabricmanager), in the version of the driver, and wait until nvidia-smi -q says "
            "Completed under Fabric",
            code="gpu.not-set-up",
        ),
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY",
        card_suspected=False,
        elsewhere=False,
    ),
    _row(
        RunFailed("an assertion failed in a kernel", _INDEX, code="gpu.assertion"),
        r"device-side assert triggered|CUDA_ERROR_ASSERT",
        card_suspected=False,
        by_code=True,
    ),
    _row(
        RunFailed(
            "the memory of a card, or its link to another one, has an error that cannot be corrected",
            "reset the card (nvidia-smi --gpu-reset) or reboot; where it comes again, have the card replaced",
            code="gpu.ecc",
        ),
        r"uncorrectable (ecc|nvlink) error|ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|Xid \(PCI:[^)]*\): (48|63|64|94|95)\b",
    ),
    _row(
        RunFailed(
            "a card does not answer on its bus any more",
            "reboot the machine; where it comes again, look at the card's power and cooling",
            code="gpu.fell-off",
        ),
        r"fallen off the bus|GPU is lost|GPU_IS_LOST|unable to determine the device handle|CUDA_ERROR_DEVICE_UNAVAILABLE"
        r"|device\(s\) is/are busy or unavailable"
        r"|Xid \(PCI:[^)]*\): 79\b|cuInit|CUDA driver initialization failed",
    ),
    _row(
        RunFailed(
            "the card that was there is gone",
            "start the container again; systemd takes cards away from containers where units are reloaded, unless their device "
            "files are passed by name",
            code="gpu.taken-away",
        ),
        r"failed to initialize nvml: unknown error|no CUDA-capable device|CUDA_ERROR_NO_DEVICE|no CUDA GPUs are available",
    ),
    _row(
        RunFailed("a kernel used memory that is not its own", _INDEX, code="gpu.illegal-access"),
        r"illegal (memory access|address|instruction)|misaligned address|ILLEGAL_(ADDRESS|INSTRUCTION)|MISALIGNED_ADDRESS"
        r"|invalid (program counter|address space)|INVALID_(PC|ADDRESS_SPACE)|unspecified launch failure|LAUNCH_FAILED",
        by_code=True,
    ),
    _row(
        RunFailed(
            "a kernel ran longer than the card's watchdog allows",
            "use a card that drives no display, or smaller micro-batches (data.shards)",
            code="gpu.kernel-timeout",
        ),
        r"launch timed out and was terminated|LAUNCH_TIMEOUT",
        card_suspected=False,
        by_code=True,
    ),
    _row(
        RunFailed(
            "a card failed and does not say of what",
            "look at dmesg of that machine for Xid; run once with CUDA_LAUNCH_BLOCKING=1 to learn the operation",
            code="gpu.failed",
        ),
        r"CUDA( driver)? error: (unknown error|hardware stack|external device)|CUDA unknown error"
        r"|CUDA_ERROR_(UNKNOWN|HARDWARE_STACK_ERROR)"
        # cuDNN 9 names causes after these words, and memory that ran out is no failure.
        r"|(CUBLAS|CUDNN|CUSPARSE|CUFFT)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR(?!_\w+_ALLOCATION_FAILED))",
    ),
)
BY_CODE: Final = {fault.code: fault for fault in FAULTS}
_KINDS: Final = ("AcceleratorError", "RuntimeError", "ConfigurationError")  # torch's own, and those made of it
_OF_A_LIBRARY: Final = re.compile(r"(CUBLAS|CUDNN|CUSPARSE|CUFFT|CUSOLVER)_STATUS_")
# The words of libstdc++, and those of Ray, whose handler a worker has in its place.
_UNCAUGHT: Final = re.compile(
    r"(terminate called after throwing an instance of '|Unhandled exception: )\S*(c10\S*Error|runtime_error)\S*\s+"
    r"what\(\):(?P<what>.*)"
)
# Behind all that CUDA says torch tells how to find the place, and that it has a build with device-side assertions.
_ADVICE: Final = re.compile(r"\s*\n(Search for `cu|CUDA kernel errors might be).*", re.DOTALL)
_OF_A_CARD: Final = re.compile(r"CUDA|NVML|NVIDIA|CUBLAS|CUDNN|GPU|Xid", re.IGNORECASE)


def named_in(text: str) -> CardFault | None:
    """The failure that this text tells of; None where it tells of none."""
    return next((fault for fault in FAULTS if fault.says.search(text)), None)


def words(error: BaseException) -> str:
    """The text of an exception, without the advice that torch adds to each error of CUDA."""
    return _ADVICE.sub("", str(error))


def of(error: BaseException) -> CardFault | None:
    """The failure of a card that an exception, or one that led to it, comes from. Words in exceptions of other types count
    for nothing, as user code may say anything; nor do words that may come from elsewhere than a card."""
    for each in chain(error):
        if type(each).__name__ in _KINDS and _OF_A_CARD.search(text := str(each)):
            fault = (behind() if _OF_A_LIBRARY.search(text) else None) or named_in(text)
            if fault is not None:
                return fault
    return None


def aborted(said: str) -> tuple[CardFault, str] | None:
    """The failure of a card for which the runtime of C++ has aborted a process, and the words by which it is known; None where
    it was not that. said: what the process has written to its standard error. Destructors of torch call the card, and nothing
    catches what they raise, such as where memory is let go of that another stream has used."""
    for exception in _UNCAUGHT.finditer(said):
        what = exception["what"].strip()
        fault = named_in(what) if _OF_A_CARD.search(what) else None
        if fault is not None:
            return fault, what
    return None


def behind() -> CardFault | None:
    """The failure that the card of this process tells of when it is asked: a library that is called after a kernel has failed
    says only that it does not work. None where this process has started no CUDA."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return named_in(str(error))
    return None


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, and those that it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
