"""One worker's copy of the model, prepared for exact exchange: what is summed, what must agree, what may not change.

    exchanged   trainable parameters' gradients; running statistics of normalisation layers (their exact mean over shards)
    counters    small integer buffers: every shard must leave the same value (num_batches_tracked)
    fixed       every other buffer: a change during a step is an error that names it (rule A8)

Each shard starts from the step's buffers, so what a shard computes does not depend on which shards its worker computed before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.nn.modules.batchnorm import _NormBase

from orchestrator.errors import PipelineRaised
from orchestrator.numerics.layout import Layout

COUNTER_ELEMENTS = 16  # an integer buffer with more elements than this is data, not a counter


class Replica:
    """Owns the model. Parameters are moved into one flat buffer, each at a 64-byte boundary.

    Raises PipelineRaised for models that cannot be trained exactly, naming the tensor and the remedy.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        _refuse_unsupported(model)
        self.model = model
        trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.parameters = [parameter for _, parameter in trainable]
        statistics = dict(_norm_statistics(model))
        self.statistics = list(statistics.values())
        self.layout = Layout.of([*trainable, *statistics.items()])
        self._move_into_flat_buffer()
        others = [(name, b) for name, b in model.named_buffers() if id(b) not in {id(s) for s in self.statistics}]
        self.counters = {name: b for name, b in others if _is_counter(b)}
        self._fixed = {name: b for name, b in others if name not in self.counters}
        self._fixed_start = {name: buffer.clone() for name, buffer in self._fixed.items()}
        self._places = {name: _holder(model, name) for name, _ in others}
        self.begin_step()
        self.begin_shard()

    def begin_step(self) -> None:
        """Remember the buffers that every shard of this step starts from."""
        self._start = [buffer.clone() for buffer in [*self.statistics, *self.counters.values()]]

    def begin_shard(self) -> None:
        """The step's buffers again, and no gradients."""
        if self._start:
            torch._foreach_copy_([*self.statistics, *self.counters.values()], self._start)
        self.model.zero_grad(set_to_none=True)

    def contribution(self) -> list[torch.Tensor | None]:
        """After a backward pass: what this shard puts into the sum, in the order of the layout; None for a parameter without
        gradient and for statistics that the shard left alone (a frozen layer's keep their bits). Views, valid until the
        next `begin_shard`. Raises PipelineRaised for a buffer that may not change and for a sparse gradient."""
        self._check_fixed_buffers()
        touched = [None if _same(b, start) else b for b, start in zip(self.statistics, self._start, strict=False)]
        return [*(_dense(p, p.grad) for p in self.parameters), *touched]

    def counter_values(self) -> list[int]:
        """The counters' present values, concatenated."""
        return [value for counter in self.counters.values() for value in counter.reshape(-1).tolist()]

    def counter_names(self) -> list[str]:
        """For each value of `counter_values`, the buffer it belongs to."""
        return [name for name, counter in self.counters.items() for _ in range(counter.numel())]

    def adopt(self, statistics: Sequence[torch.Tensor | None], counters: Sequence[int]) -> None:
        """Take the step's agreed buffers over; None: no shard touched it."""
        for buffer, agreed, start in zip(self.statistics, statistics, self._start, strict=False):
            buffer.copy_(start if agreed is None else agreed)
        position = 0
        for counter in self.counters.values():
            values = torch.tensor(counters[position : position + counter.numel()], dtype=counter.dtype)
            counter.copy_(values.view(counter.shape))
            position += counter.numel()

    def _move_into_flat_buffer(self) -> None:
        slots = self.layout.slots[: len(self.parameters)]
        flat = torch.zeros(self.layout.size, dtype=torch.float32)
        for slot, parameter in zip(slots, self.parameters, strict=True):
            place = slot.view(flat)
            place.copy_(parameter.detach())
            parameter.data = place

    def _check_fixed_buffers(self) -> None:
        for name, buffer in self._fixed.items():
            module, attribute = self._places[name]
            if getattr(module, attribute) is buffer and _same(buffer, self._fixed_start[name]):
                continue
            raise PipelineRaised(
                f"the buffer {name!r} of the model changed in a training step",
                "only running statistics of normalisation layers and small integer counters may change; keep other state "
                "out of the model, or make it a parameter",
            )
        for name in self.counters:
            module, attribute = self._places[name]
            if getattr(module, attribute) is not self.counters[name]:
                raise PipelineRaised(
                    f"the buffer {name!r} was replaced in a training step", "change it in place instead"
                )


def _refuse_unsupported(model: torch.nn.Module) -> None:
    owners: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise PipelineRaised(
                f"parameter {name!r} has no shape yet",
                "give lazy layers their sizes, or run one batch through them in model()",
            )
        if parameter.dtype != torch.float32:
            raise PipelineRaised(f"parameter {name!r} is {parameter.dtype}", "parameters have to be torch.float32")
        if parameter.is_sparse or parameter.is_quantized:
            raise PipelineRaised(f"parameter {name!r} is not an ordinary dense tensor", "use dense parameters")
        storage = parameter.untyped_storage().data_ptr()
        if parameter.numel() and owners.setdefault(storage, name) != name:
            raise PipelineRaised(
                f"parameters {owners[storage]!r} and {name!r} share memory but are two objects",
                "tie them by assigning the same Parameter to both places",
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise PipelineRaised("the model has no parameter that requires a gradient", "nothing could be trained")


def _norm_statistics(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Floating buffers of normalisation layers, tied layers once."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        if not isinstance(module, _NormBase):
            continue
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.dtype == torch.float32 and id(buffer) not in seen:
                seen.add(id(buffer))
                yield (f"{prefix}.{name}" if prefix else name), buffer


def _is_counter(buffer: torch.Tensor) -> bool:
    integral = not buffer.dtype.is_floating_point and not buffer.dtype.is_complex and buffer.dtype != torch.bool
    return integral and buffer.numel() <= COUNTER_ELEMENTS


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal to the bit. (A tensor's version does not tell: batch normalisation writes its statistics without raising it.)"""
    if left.is_contiguous() and right.is_contiguous() and left.numel():
        left, right = left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8)
    return torch.equal(left, right)


def _holder(model: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return model.get_submodule(path), attribute


def _dense(parameter: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None:
        return None
    if gradient.is_sparse:
        raise PipelineRaised(
            f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient", "use sparse=False for embeddings"
        )
    return gradient
