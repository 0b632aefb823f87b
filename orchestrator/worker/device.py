"""Opens a member's device before its first generation. If sums stay there, it has memory that peers map, and kernels. If only
contributions do, which are compressed or clipped, what is made of them is added up in host memory. A compression has kernels
that round and add up what a worker hosts.

Without kernels operations of torch give their bits. If memory cannot be shared, the run goes on as with a device whose
gradients leave for host memory: the same bits, slower. The member tells so once. Sums that are not exact would have other bits
there, so such a run ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from orchestrator.comm.transports.base import Regions, SharableRegions
from orchestrator.comm.transports.cuda_memory import CudaDriver
from orchestrator.comm.transports.device_memory import DeviceRegions
from orchestrator.config.plan import Plan
from orchestrator.errors import ConfigurationError
from orchestrator.numerics import staging
from orchestrator.numerics.device import compiling
from orchestrator.numerics.device.compiling import CompilationFailed
from orchestrator.numerics.device.kernels import Kernels, Operations, Plain
from orchestrator.numerics.staging import Staging
from orchestrator.worker.model.recorder import CudaRecorder, Recorder


class Summing(NamedTuple):
    """The memory and the kernels with which a worker or a server adds up on a device."""

    regions: SharableRegions  # memory there that peers map
    kernels: Kernels  # that add there


class Device(NamedTuple):
    """The device on which a worker computes, and the memory in which its sums are made."""

    staging: Staging  # of the model
    regions: Regions  # memory that peers map: there, or in host memory
    kernels: Kernels | None = None  # that add there; None: sums are made in host memory
    recorder: Recorder | None = None  # of passes, where they are to be recorded
    encoding: Kernels | None = None  # that round and add up contributions which are compressed there


def opened(plan: Plan, regions: Regions, tell: Callable[[str], None]) -> Device:
    """The device of a worker of this plan, where CUDA was started if it is a GPU. regions: for sums in host memory; tell: takes
    a line on what is slower. Raises ConfigurationError where sums would have other bits."""
    device = plan.run.compute.device
    found = _summing(plan, tell) if plan.sums_stay_on_device or plan.updates_stay_on_device else None
    if found is None and not plan.encodes_on_device:
        return Device(staging.on(device), regions)
    recorder = CudaRecorder() if plan.run.compute.graphs else None
    encoding = None if plan.update.compression is None else _kernels(tell)
    there = Device(staging.Resident(torch.device(device)), regions, recorder=recorder, encoding=encoding)
    return there if found is None else there._replace(regions=found.regions, kernels=found.kernels)


def summing(plan: Plan, tell: Callable[[str], None]) -> Summing | None:
    """The memory and the kernels of a server that adds up on its device, where CUDA was started; None if it adds up in host
    memory. tell: as `opened` takes it."""
    return _summing(plan, tell) if plan.sums_stay_on_device else None


def _summing(plan: Plan, tell: Callable[[str], None]) -> Summing | None:
    try:
        driver = CudaDriver()
        found = _kernels(tell)
        kernels = found if plan.exchange.exact else Plain(found)
        regions = DeviceRegions(driver, kernels)
    except (ImportError, RuntimeError) as error:
        if not plan.exchange.exact:
            raise ConfigurationError(
                [f"reduction: fast sums are made on the GPU, whose memory cannot be shared here: {error}"],
                "set reduction=exact",
                code="gpu.fast-sums",
            ) from None
        tell(f"memory of the GPU cannot be shared, so gradients are added up in host memory, which is slower: {error}")
        return None
    return Summing(regions, kernels)


def _kernels(tell: Callable[[str], None]) -> Kernels:
    try:
        return compiling.for_this_card()
    except (CompilationFailed, RuntimeError) as error:
        tell(f"sums on the GPU are made by operations of torch, which take about four times as long: {error}")
        return Operations()
