"""The GPU memory that a worker holds, by purpose, and the error of one that has none left, with what helps most first.

The driver's calls for regions (`comm.transports.device_memory`) and torch's allocator do not know of each other, so both are
counted here. The rest of the card's memory belongs to other processes, or is what the driver keeps for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

import torch

from orchestrator.comm.transports.base import Regions
from orchestrator.comm.transports.device_memory import DeviceMemoryFull, DeviceRegions
from orchestrator.common import gpu_memory
from orchestrator.common.figures import sized
from orchestrator.common.gpu_memory import MemoryUse
from orchestrator.config.plan import Plan
from orchestrator.errors import OutOfDeviceMemory
from orchestrator.numerics import cuda
from orchestrator.worker.model.replica import Replica

_WHOLE: Final = 0.95  # of a card is for workers: the driver takes some for each process
_LITTLE: Final = 0.01  # of a card is not worth a remedy
_GRADIENT_BYTES: Final = 4  # of an element, while a shard's passes run
_EXPANDABLE: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class HeldMemory(NamedTuple):
    """In bytes, by what stays from step to step; and the gradients of one backward pass."""

    parameters: int  # and buffers
    optimizer: int  # its state
    gradients: int  # outside `sums`
    sums: int  # regions that peers map
    trained: int  # no bytes: how many numbers are trained
    contributions: int = 0  # that wait to be encoded, or the integers that clipped ones are added up in

    @property
    def per_parameter(self) -> float:
        """Bytes beside activations."""
        kept = self.parameters + self.optimizer + self.gradients + self.sums + self.contributions
        return kept / max(1, self.trained)

    def by_name(self) -> dict[str, float]:
        """For the summary."""
        return {
            "parameters": self.parameters,
            "optimizer": self.optimizer,
            "gradients": self.gradients,
            "sums": self.sums,
            "contributions": self.contributions,
            "per_parameter": round(self.per_parameter, 3),
        }


def held_memory(
    replica: Replica, optimizer: torch.optim.Optimizer, regions: Regions, contributions: int = 0
) -> HeldMemory:
    """Now. regions: those in host memory do not count; contributions: as of `HeldMemory`."""
    there = replica.flat.device
    state = (value for kept in optimizer.state.values() for value in kept.values() if isinstance(value, torch.Tensor))
    return HeldMemory(
        parameters=_bytes_of([*replica.model.parameters(), *replica.model.buffers()], there),
        optimizer=_bytes_of(state, there),
        gradients=_GRADIENT_BYTES * sum(parameter.numel() for parameter in replica.parameters),
        sums=shared_bytes(regions),
        trained=sum(parameter.numel() for parameter in replica.parameters),
        contributions=contributions,
    )


def shared_bytes(regions: Regions) -> int:
    """The bytes of GPU memory that peers map; host memory does not count."""
    return sum(each.size_bytes for each in regions.descriptors) if isinstance(regions, DeviceRegions) else 0


def limit(plan: Plan, regions: Regions) -> None:
    """Torch's allocator gets what the regions leave of that which this worker may take of its GPU."""
    if plan.cluster.card_bytes is not None:
        cuda.limit(plan.cluster.card_bytes - shared_bytes(regions))


def give_back(plan: Plan) -> None:
    """Empty the cache of torch's allocator, so that other processes can use the memory of this GPU."""
    if plan.run.compute.device == "cuda":
        torch.cuda.empty_cache()


def _bytes_of(tensors: Iterable[torch.Tensor], there: torch.device) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor.device == there)


class Place(NamedTuple):
    """The place where memory ran out. card: its name; sharing: at most so many workers of the run share it; rows: of a
    micro-batch; lost: whether the run has had more workers before."""

    card: str
    sharing: int
    rows: int
    lost: bool = False


def place_of(plan: Plan, beside: int, *, lost: bool) -> Place:
    """The place of this worker, for messages on memory. beside: so many workers are on this machine, itself among them."""
    card = "of this worker"
    with suppress(RuntimeError, AssertionError):  # it may answer nothing any more
        card = cuda.card()["card"]
    return Place(
        card,
        gpu_memory.sharing(plan.cluster.gpus, beside),
        max(1, plan.data.batch_size.at(0) // plan.data.shards),
        lost,
    )


@contextmanager
def explained(
    doing: Callable[[], str], place: Callable[[], Place], holds: Callable[[], HeldMemory | None], plan: Plan
) -> Iterator[None]:
    """Raises OutOfDeviceMemory for what says within the block that a GPU has no memory left, with all that is known. doing:
    what was being done, where the error does not tell; holds: None where the model is not there yet."""
    try:
        yield
    except (OutOfDeviceMemory, DeviceMemoryFull, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not gpu_memory.ran_out(error):
            raise
        found = error if isinstance(error, OutOfDeviceMemory) else gpu_memory.out_of_memory(doing(), error)
        raise explanation(found, place(), holds(), plan) from None


def explanation(error: OutOfDeviceMemory, place: Place, held: HeldMemory | None, plan: Plan) -> OutOfDeviceMemory:
    """The same error with all that is known. It recurs where the card is too small for the workers that share it: what one
    holds does not depend on how many micro-batches it computes."""
    taken: MemoryUse = error.taken
    parts = _parts(taken, held)
    held_here = taken.reserved + parts.get(_SUMS, 0)
    held_elsewhere = max(0, taken.total - taken.free - held_here)
    allowed = plan.cluster.card_bytes
    bounded = allowed is not None and held_here + error.wanted > allowed
    too_small = bounded or place.sharing * (held_here + error.wanted) > _WHOLE * taken.total
    needed = f"{sized(error.wanted)} more were needed, and {sized(taken.free)}" if error.wanted else sized(taken.free)
    listed = ", ".join(f"{name} {sized(size)}" for name, size in parts.items() if size)
    sharing = f", which up to {place.sharing} workers of this run share" if place.sharing > 1 else ""
    sharing += "" if allowed is None else f", of which cluster.gpu_gb allows it {sized(allowed)}"
    lost = (
        "; the run has fewer workers than before, but a worker computes one micro-batch at a time, however many it hosts"
        if place.lost
        else ""
    )
    if not error.wanted and taken.free > (1 - _WHOLE) * taken.total:
        return _of_the_machine(error, taken)
    explained = gpu_memory.full(
        error.what,
        f" ({place.card}, {sized(taken.total)}{sharing})",
        f"{needed} are free. This worker holds {sized(held_here)}: {listed or 'nothing'}; others, and the driver, hold "
        f"{sized(held_elsewhere)}{lost}{error.frames}",
        "; or ".join(
            ["raise cluster.gpu_gb, also in a resume"] * bounded
            + _remedies(parts, held_elsewhere, place, plan, taken.total)
        )
        + ";\n  error.txt in the run's folder has the allocator's summary and its largest segments, and "
        "https://pytorch.org/memory_viz draws memory_snapshot.pickle",
        error.details,
    )
    explained.recurs = too_small or not taken.total
    explained.snapshot = error.snapshot
    return explained


def _of_the_machine(error: OutOfDeviceMemory, now: MemoryUse) -> OutOfDeviceMemory:
    """The same error where the driver has refused memory while the card has some, as torch's allocator would have told how much
    was wanted there."""
    found = gpu_memory.full(
        error.what,
        "'s machine",
        f"the driver refuses it, although {sized(now.free)} of {sized(now.total)} are free on the GPU: most likely page-locked "
        f"memory, which is the machine's{error.frames}",
        "look at the memory of this machine (free, and the limit of the container or job), and end what takes it, or let fewer "
        "workers share it (cluster.workers)",
        error.details,
    )
    found.snapshot = error.snapshot
    return found


_PARAMETERS, _OPTIMIZER, _SUMS = "parameters and buffers", "optimizer's state", "sums"
_CONTRIBUTIONS = "contributions that are held"
_GRAPHS, _TENSORS, _UNUSED = "graphs", "activations, gradients and other tensors", "reserved without a tensor in it"


def _parts(now: MemoryUse, holds: HeldMemory | None) -> dict[str, int]:
    """The bytes that this process holds, by name. Live tensors of graphs lie in their pools."""
    known = holds or HeldMemory(0, 0, 0, 0, 0)
    return {
        _PARAMETERS: known.parameters,
        _OPTIMIZER: known.optimizer,
        _SUMS: known.sums,
        _CONTRIBUTIONS: known.contributions,
        _GRAPHS: now.pools,
        _TENSORS: max(0, now.allocated - now.in_pools - known.parameters - known.optimizer - known.contributions),
        _UNUSED: max(0, now.reserved - now.pools - (now.allocated - now.in_pools)),
    }


def _remedies(parts: dict[str, int], others: int, place: Place, plan: Plan, total: int) -> list[str]:
    """The remedies, in the order of the memory that each is expected to free."""
    tensors, graphs, unused = parts[_TENSORS], parts[_GRAPHS], parts[_UNUSED]
    grows = any("expandable_segments:True" in os.environ.get(name, "") for name in _EXPANDABLE)
    found: list[tuple[float, str]] = []
    if place.rows > 1:
        fewer = "raise data.shards or lower data.batch_size, as a shard computes batch_size / shards rows at once"
        found.append(((tensors + graphs) * (1 - 1 / place.rows), fewer))
    if plan.run.compute.precision == "float32":
        found.append(((tensors + graphs) / 2, "set run.precision=bfloat16"))
    found.append((0.4 * (tensors + graphs), "call layers through torch.utils.checkpoint, which computes them again"))
    if plan.run.compute.graphs:
        found.append((graphs / 3, "set run.graphs=false, also in a resume: recordings keep memory of their own"))
    if place.sharing > 1:
        fewer = "let fewer workers share the card (cluster.workers, cluster.gpus_per_worker), also in a resume"
        found.append((others, fewer))
    else:
        found.append((others, "look in nvidia-smi for what else is on the card"))
    if not grows:
        found.append((unused, "set PYTORCH_ALLOC_CONF=expandable_segments:True"))
    if plan.update.compression is not None:
        found.append(
            (parts[_CONTRIBUTIONS], "leave compression out, which holds the contributions of all hosted shards")
        )
    found.append((parts[_OPTIMIZER] / 2, "take an optimizer that keeps less"))
    worth = [each for each in sorted(found, key=lambda each: -each[0]) if each[0] > _LITTLE * total]
    return [sentence for _, sentence in worth] or ["take a smaller model, or a card with more memory"]
