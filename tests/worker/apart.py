"""A device that is none: the CPU, watched so that what lies "there" is never computed with together with what lies here.

    compute_apart(monkeypatch)
    train(Mlp)      # raises where tensors of two devices meet, and where numpy or an address would read one that is there

Tensors are there when `Copying` or the replica put them there, and when they are computed from such ones. As with a GPU, only
copies may cross, and a single number in host memory may take part anywhere. It knows nothing of kernels: neither which
operations a GPU has, nor what they cost, nor whether they are deterministic; and a tensor that is made by name of the device
(`device=x.device`) is here, since the name is `cpu`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orchestrator.comm.transports.base import Descriptor, Mapped, Regions
from orchestrator.comm.transports.device_memory import DeviceRegions
from orchestrator.numerics import chosen, exact, levels, staging
from orchestrator.numerics.device import kernels
from orchestrator.numerics.layout import Layout
from orchestrator.optim.privacy import quantization_grid
from orchestrator.optim.transforms import State
from orchestrator.worker import device, worker
from orchestrator.worker.model import shard_states, snapshot
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.pipeline_parallel import hosted_stage
from orchestrator.worker.step import carriers
from tests.comm.transports.device_double import HostDriver
from tests.numerics.device import host

CARRIERS = {"copy_", "_foreach_copy_"}


class There:
    """The storages there. They are kept, so that no address is used again here."""

    __module__ = staging.__name__  # objects of the user's, as of a test, are put back for a second computation

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in self._storages

    def add(self, tensors: Any) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                storage = tensor.untyped_storage()
                self._storages[storage.data_ptr()] = storage


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """crossings: how many copies went from one side to the other."""

    def __init__(self, there: There) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._there = there

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = operation.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.numel()]
        there = [tensor for tensor in tensors if tensor in self._there]
        here = [tensor for tensor in tensors if tensor not in self._there and tensor.dim()]
        if there and here and name not in CARRIERS:
            raise AssertionError(f"{operation} computes with tensors of two devices")
        result = operation(*args, **kwargs)
        if there and name not in CARRIERS:
            self._there.add(result)
        return result


class WatchedCopying(staging.Copying):
    __module__ = staging.__name__

    def __init__(self, there: There) -> None:
        super().__init__(torch.device("cpu"))
        self._there = there

    def move(self, tensors: Sequence[torch.Tensor]) -> None:
        super().move(tensors)
        self._there.add(tensors)

    def begin(self, batch: Any) -> staging.Arriving:
        return self._watched(super().begin(batch))

    def begin_together(self, tensors: Sequence[torch.Tensor], rows: Sequence[int]) -> list[staging.Arriving]:
        return [self._watched(each) for each in super().begin_together(tensors, rows)]

    def _watched(self, arriving: staging.Arriving) -> staging.Arriving:
        def bring() -> Any:
            moved = arriving.there()
            self._there.add(moved)
            return moved

        return staging.Arriving(arriving.host, bring)

    def empty(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        made = super().empty(elements, dtype)
        self._there.add(made)
        return made

    def host_transfer(self, layout: Layout, result: torch.Tensor) -> staging.HostTransfer:
        host_transfer = super().host_transfer(layout, result)
        self._there.add(host_transfer.result)
        return host_transfer


class WatchedResident(WatchedCopying, staging.Resident):
    """And sums are made there."""

    __module__ = staging.__name__

    def flat(self, elements: int) -> torch.Tensor:
        return self._made(super().flat(elements))

    def integers(self, elements: int) -> torch.Tensor:
        return self._made(super().integers(elements))

    def from_peer(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor in self._there else self._made(tensor.clone())

    def _made(self, tensor: torch.Tensor) -> torch.Tensor:
        self._there.add(tensor)
        return tensor


class WatchedRegions(DeviceRegions):
    """Regions there, those of peers included."""

    def __init__(self, there: There) -> None:
        self._there = there
        super().__init__(HostDriver())

    def allocate(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        region = super().allocate(elements, dtype)
        self._there.add(region)
        return region

    def map_peer(self, descriptor: Descriptor) -> Mapped:
        return WatchedMapping(super().map_peer(descriptor), self._there)


class WatchedMapping(NamedTuple):
    """A peer's region there."""

    mapped: Mapped
    there: There

    def tensor(self, dtype: torch.dtype, offset_bytes: int, elements: int) -> torch.Tensor:
        found = self.mapped.tensor(dtype, offset_bytes, elements)
        self.there.add(found)
        return found


def sum_apart(monkeypatch: pytest.MonkeyPatch) -> There:
    """As `compute_apart`, and sums are made there by operations of torch."""
    there = compute_apart(monkeypatch)
    plain_moved = kernels.moved

    def moved(numbers: Any, beside: torch.Tensor) -> torch.Tensor:
        found = plain_moved(numbers, beside)
        there.add(found)
        return found

    monkeypatch.setattr(kernels, "moved", moved)

    def opened(*_: object) -> device.Device:
        return device.Device(WatchedResident(there), WatchedRegions(there), kernels.Operations())

    monkeypatch.setattr(device, "opened", opened)
    return there


def encode_apart(monkeypatch: pytest.MonkeyPatch) -> There:
    """As `compute_apart`, and contributions are compressed or clipped there."""
    there = compute_apart(monkeypatch)
    for module in (exact, levels, chosen, carriers, quantization_grid):
        monkeypatch.setattr(module, "in_host_memory", lambda tensor: tensor not in there)

    def opened(_: object, regions: Regions, __: object) -> device.Device:
        return device.Device(WatchedResident(there), regions, encoding=host.kernels())

    monkeypatch.setattr(device, "opened", opened)
    plain_fitted = shard_states.fitted

    def fitted(whose: str, state: Mapping[str, torch.Tensor], expected: State) -> State:
        """A state from elsewhere goes where the expected one is."""
        found = plain_fitted(whose, state, expected)
        return {name: exact.there(tensor, expected[name]) for name, tensor in found.items()}

    monkeypatch.setattr(shard_states, "fitted", fitted)
    return there


def compute_apart(monkeypatch: pytest.MonkeyPatch) -> There:
    """From now on, and until the test ends, workers compute there."""
    there = There()
    monkeypatch.setattr(staging, "on", lambda _: WatchedCopying(there))
    for name in ("prepare", "run", "state"):
        monkeypatch.setattr(worker.Worker, name, _watched(getattr(worker.Worker, name), there))

    class PlacedReplica(Replica):
        def __init__(self, model: torch.nn.Module, where: staging.Staging, *more: Any, **named: Any) -> None:
            self._is_apart = isinstance(where, WatchedCopying)
            super().__init__(model, where, *more, **named)

        def _move_into_flat_buffer(self, device: torch.device) -> None:
            super()._move_into_flat_buffer(device)
            if self._is_apart:
                there.add(self.parameters)

    monkeypatch.setattr(worker, "Replica", PlacedReplica)
    monkeypatch.setattr(hosted_stage, "Replica", PlacedReplica)
    plain_placed = snapshot.placed

    def placed(entries: Any, optimizer: torch.optim.Optimizer) -> Any:
        found = plain_placed(entries, optimizer)
        for parameter, entry in found.items():
            there.add([value for value in entry.values() if getattr(value, "shape", None) == parameter.shape])
        return found

    monkeypatch.setattr(snapshot, "placed", placed)
    plain_numpy, plain_cpu = torch.Tensor.numpy, torch.Tensor.cpu

    def numpy(tensor: torch.Tensor, **options: Any) -> Any:
        assert tensor not in there, "numpy cannot read the memory of a device"
        return plain_numpy(tensor, **options)

    def cpu(tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in there:
            return plain_cpu(tensor)
        return torch.from_numpy(plain_numpy(tensor.detach()).copy())

    plain_add = exact.Accumulator.add

    def add(accumulator: exact.Accumulator, tensors: staging.Tensors, *weight_and_grid: Any) -> None:
        assert not any(tensor in there for tensor in tensors if tensor is not None), (
            "sums read host memory, by addresses"
        )
        plain_add(accumulator, tensors, *weight_and_grid)

    monkeypatch.setattr(exact.Accumulator, "add", add)
    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    return there


def _watched(method: Callable[..., Any], there: There) -> Callable[..., Any]:
    @functools.wraps(method)
    def within(*args: Any, **kwargs: Any) -> Any:
        with Watching(there):
            return method(*args, **kwargs)

    return within
