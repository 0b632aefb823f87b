"""The memory that a process holds on its GPU, as torch's allocator tells it, also at the moment when no more can be had.

torch is asked only where an error or a run on a GPU has loaded it already.
"""

from __future__ import annotations

import pickle
import re
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from orchestrator.common import card_faults
from orchestrator.errors import OutOfDeviceMemory

_SIGNS: Final = (
    "CUDA error: out of memory",  # of the runtime, in what torch raises
    "CUDA driver error: out of memory",  # of the driver: expandable segments, kernels that torch compiles
    "Triton Error [CUDA]: out of memory",  # likewise, for a kernel that is loaded
    "CUDA_ERROR_OUT_OF_MEMORY",  # in what is said of calls of our own
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",  # the same since cuDNN 9
)
# It has no memory of its own, and says no more; or a kernel has failed before.
_NO_LIBRARY: Final = "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate"
# The driver takes so much of a GPU for each process. For two workers on an H200 3.1 GB were measured.
PROCESS_BYTES: Final = 1_500_000_000
_TRIED: Final = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS: Final = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_DEFAULT_POOL: Final = (0, 0)
_SEGMENTS: Final = 40  # in a table, the largest
_MOST_BYTES: Final = 16 << 20  # of a snapshot, which travels with the error


def sharing(gpus: float, workers: int) -> int:
    """How many of so many workers share a card at most. gpus: that are reserved for each."""
    return max(1, min(workers, int(1 / gpus))) if 0 < gpus < 1 else 1


class MemoryUse(NamedTuple):
    """In bytes. A graph's private pool keeps what its passes need between two replays."""

    total: int = 0  # the whole card has
    free: int = 0  # of it nobody has taken
    allocated: int = 0  # by tensors of this process
    peak: int = 0  # the most of that at once
    reserved: int = 0  # by torch's allocator in this process
    largest_free: int = 0  # the largest block of that in which no tensor lies
    pools: int = 0  # of `reserved`, in private pools of graphs
    in_pools: int = 0  # of `allocated`, in these


def memory_use(segments: Sequence[Any] | None = None) -> MemoryUse:
    """Now, by this process on its current GPU. segments: as torch's allocator tells them; None: it is asked."""
    import torch

    gpu: Any = torch.cuda
    free, total = gpu.mem_get_info()
    segments = _segments() if segments is None else segments
    private = [each for each in segments if tuple(each.get("segment_pool_id", _DEFAULT_POOL)) != _DEFAULT_POOL]
    blocks = (block for segment in segments for block in segment["blocks"])
    unused = (int(block["size"]) for block in blocks if block["state"] == "inactive")
    return MemoryUse(
        total=total,
        free=free,
        allocated=gpu.memory_allocated(),
        peak=gpu.max_memory_allocated(),
        reserved=gpu.memory_reserved(),
        largest_free=max(unused, default=0),
        pools=sum(segment["total_size"] for segment in private),
        in_pools=sum(segment["allocated_size"] for segment in private),
    )


def ran_out(error: BaseException) -> bool:
    """Whether this says that a GPU has no memory left. By its name and its words, so that torch need not be imported."""
    if type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error) if isinstance(error, RuntimeError) else ""
    return any(sign in text for sign in _SIGNS) or (_NO_LIBRARY in text and card_faults.behind() is None)


def out_of_memory(what: str, error: BaseException, frames: str = "") -> OutOfDeviceMemory:
    """For an error of which `ran_out` is true, measured before what it was needed for is let go. what: was being done; frames:
    of the user's, a line each."""
    details = traceback.format_exc()
    now, table, kept = MemoryUse(), "", b""
    with suppress(RuntimeError, AssertionError, AttributeError):  # of a card that answers nothing any more, or of none
        segments = _segments()
        kept = snapshot(segments)
        now, table = memory_use(segments), _table(segments)
    # The activations of a pass that was given up hang on its frames, and others have to go on.
    traceback.clear_frames(error.__traceback__)
    said = next(iter(str(error).strip().splitlines()), type(error).__name__)
    remedy = (
        "raise data.shards or lower data.batch_size, as a shard computes batch_size / shards rows at once; or let fewer "
        "workers share a GPU"
    )
    raised = full(what, "", f"{said}{frames}", remedy, f"{details}\n{table}".rstrip())
    raised.what, raised.frames, raised.taken, raised.wanted = what, frames, now, wanted_by(error)
    raised.snapshot = kept
    return raised


def snapshot(segments: Sequence[Any]) -> bytes:
    """A pickle in the form of torch's own snapshots, which https://pytorch.org/memory_viz draws. It has the stacks of
    allocations where torch was told to record them, and is empty where it has more bytes than an error may bring along.

    Source: PyTorch, "Understanding CUDA Memory Usage", Snapshot API Reference."""
    devices = 1 + max((int(each.get("device", 0)) for each in segments), default=0)
    for these in (segments, [_without_frames(each) for each in segments]):
        # The fourth protocol is the one of torch's own files.
        pickled = pickle.dumps({"segments": these, "device_traces": [[] for _ in range(devices)]}, protocol=4)
        if len(pickled) <= _MOST_BYTES:
            return pickled
    return b""


def _without_frames(segment: Any) -> Any:
    blocks = [{**block, "frames": []} for block in segment["blocks"]]
    return {**segment, "blocks": blocks} | ({"frames": []} if "frames" in segment else {})


def _segments() -> Sequence[Any]:
    """Empty with the allocator of CUDA (`backend:cudaMallocAsync`), which does not tell its blocks."""
    import torch

    if torch.cuda.get_allocator_backend() != "native":
        return []
    found: Any = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return list(found)


def full(what: str, card: str, why: str, remedy: str, details: str) -> OutOfDeviceMemory:
    """The error of a GPU without memory. card: its name and size in brackets, after a space, where they are known."""
    return OutOfDeviceMemory(
        f"{what} found no memory left on the GPU{card}: {why}", remedy, details, code="gpu.out-of-memory"
    )


def wanted_by(error: BaseException) -> int:
    """The bytes that could not be had; 0 where the error does not tell."""
    found = _TRIED.search(str(error))
    return int(float(found[1]) * _UNITS[found[2]]) if found else int(getattr(error, "size_bytes", 0))


def _table(segments: Sequence[Any]) -> str:
    """For the run's folder: the allocator's own summary, and its largest segments."""
    import torch

    gpu: Any = torch.cuda
    segments = sorted(segments, key=lambda segment: -int(segment["total_size"]))
    lines = [
        f"{segment['total_size']:>16,} {segment['allocated_size']:>16,}  {segment.get('segment_pool_id', '')}"
        for segment in segments[:_SEGMENTS]
    ]
    return "\n".join(
        [str(gpu.memory_summary()), f"{'segment':>16} {'in tensors':>16}  pool, (0, 0) is no graph's", *lines]
    )
