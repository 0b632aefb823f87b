"""Buffers that move while a batch is computed, and by which rule they are one again at the end of a step (rule A8).

    mean      the exact mean over the shards, weighted as their gradients are: it lies in the layout, and rides on the sum
    equal     every shard has to leave the same; the largest after local steps: it rides on the vote
    first     what the first shard of the step leaves, of those that have rows
    largest   by element, the largest that a shard leaves
    sum       what all shards add to it
    changed   by element, what a shard has changed, the largest where several have

All shards begin a step with the same buffers. All but `equal` may be declared, by `buffers()` of the pipeline; without that
running statistics have `mean`, small integers `equal`, and the vectors of spectral normalisation `first`.

A new rule of the kind of the last four is a function and a line in `RULES`. It depends on shards alone, never on workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import torch
from torch.nn.modules import batchnorm
from torch.nn.utils import parametrizations
from torch.nn.utils.spectral_norm import SpectralNorm

from orchestrator.errors import PipelineRaised
from orchestrator.numerics.byte_layout import bytes_of
from orchestrator.pipeline import Pipeline, naming

MEAN = "mean"
COUNTER_ELEMENTS = 16  # an integer buffer with more elements than this is data, not a counter
_CONTRACT = 'return a mapping of names to rules, as {"codebook": "mean", "queue*": "first"}'
_INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_AS_INTEGERS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}

DIFFERING = (
    "say by which rule shards share it, by buffers() of the pipeline or buffer_rules of a LightningModule: "
    '"first", "sum" where each adds what its rows count, or "largest" where it only grows'
)

Join = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Buffers = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Rule:
    """A rule by which a buffer that moves becomes one again. needs, fits: in words, and whether it may be declared for a
    buffer of this dtype. join: of what two sets of shards leave, that of the lower first shard first, and of the values at the
    start of the step, what both leave; None: it is added up with the gradients. alone: only the first shard of all counts;
    others' do in any order. reads_start: whether the join looks at these values."""

    needs: str
    fits: Callable[[torch.dtype], bool]
    join: Join | None = None
    alone: bool = False
    reads_start: bool = False


def _first(lower: torch.Tensor, higher: torch.Tensor, start: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return lower


def _largest(one: torch.Tensor, other: torch.Tensor, start: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """A value that is not a number is larger than any, with the bits of torch's own; zero is larger than minus zero."""
    one, other = _one_nan(one), _one_nan(other)
    return torch.where(_order(one) >= _order(other), one, other)


def _sum(one: torch.Tensor, other: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Integers that are too large for their type begin at its smallest again, so the order of shards does not count."""
    return one + (other - start)


def _changed(one: torch.Tensor, other: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Values that are not a number are one and the same, as in `_largest`."""
    largest = _largest(one, other, start)
    first, second, before = (_order(_one_nan(each)) for each in (one, other, start))
    return torch.where(first == before, _one_nan(other), torch.where(second == before, _one_nan(one), largest))


def _one_nan(values: torch.Tensor) -> torch.Tensor:
    return values.masked_fill(values.isnan(), math.nan) if values.is_floating_point() else values


def _order(values: torch.Tensor) -> torch.Tensor:
    """Integers in the order of these numbers."""
    if values.dtype not in _AS_INTEGERS:
        return values
    kind = _AS_INTEGERS[values.dtype]
    bits = values.contiguous().view(kind)
    return torch.where(bits < 0, bits ^ torch.iinfo(kind).max, bits)


def _ordinary(dtype: torch.dtype) -> bool:
    return dtype in _INTEGERS or dtype in _AS_INTEGERS


RULES: Final[Mapping[str, Rule]] = {
    MEAN: Rule("torch.float32", lambda dtype: dtype == torch.float32),
    "first": Rule("any dtype", lambda _: True, _first, alone=True),
    "largest": Rule("ordinary numbers", _ordinary, _largest),
    "sum": Rule("integers", lambda dtype: dtype in _INTEGERS - {torch.bool}, _sum, reads_start=True),
    "changed": Rule("ordinary numbers", _ordinary, _changed, reads_start=True),
}


@dataclass(frozen=True)
class Moving:
    """By name, the buffers of a model, or of a part of one, that may move. joined: of the rules that join, by rule; fixed:
    those that may not."""

    means: Buffers
    counters: Buffers
    joined: Mapping[str, Buffers]
    fixed: Buffers

    @classmethod
    def of(cls, model: torch.nn.Module, declared: Mapping[str, str]) -> Moving:
        """Find the buffers of a model that move, and their rules. declared: the rules of buffers, by name; others have that
        of their kind."""
        buffers = dict(model.named_buffers())
        rules = {name: declared[name] for name in buffers if name in declared}
        taken = {id(buffers[name]) for name in rules}
        own = {id(buffer): buffer for buffer in buffers.values() if id(buffer) not in taken}
        found: dict[str, Buffers] = {rule: {} for rule in RULES}
        for name, rule, buffer in _by_layers(model):
            if own.pop(id(buffer), None) is not None:
                found[rule][name] = buffer
        for name, rule in rules.items():
            found[rule][name] = buffers[name]
        rest = {name: buffer for name, buffer in buffers.items() if id(buffer) in own}
        counters = {name: buffer for name, buffer in rest.items() if _is_counter(buffer)}
        fixed = {name: buffer for name, buffer in rest.items() if name not in counters}
        joined = {rule: found[rule] for rule, how in RULES.items() if how.join is not None}
        return cls(found[MEAN], counters, joined, fixed)

    @property
    def in_joined(self) -> Buffers:
        """All that are joined, in the order of the rules."""
        return {name: buffer for buffers in self.joined.values() for name, buffer in buffers.items()}


class BufferRemains:
    """The values that the shards of one worker leave in the buffers that are joined."""

    def __init__(self, joined: Mapping[str, Buffers], start: Sequence[torch.Tensor]) -> None:
        """start: the values at the start of the step, of all these buffers in order."""
        self._rules = [(RULES[rule], list(buffers.values())) for rule, buffers in joined.items() if buffers]
        rest = iter(start)
        self._start = [list(itertools.islice(rest, len(buffers))) for _, buffers in self._rules]
        self._lowest: int | None = None
        self._kept: list[list[torch.Tensor]] = []

    def __bool__(self) -> bool:
        """Whether there is anything to join."""
        return bool(self._rules)

    def add(self, shard: int) -> None:
        """Add what this shard has just left in the buffers."""
        lowest = self._lowest
        self._lowest = shard if lowest is None else min(lowest, shard)
        if lowest is None:
            self._kept = [[buffer.detach().to("cpu", copy=True) for buffer in buffers] for _, buffers in self._rules]
            return
        for place, (rule, buffers) in enumerate(self._rules):
            if rule.alone and shard > lowest:
                continue
            new = [buffer.detach().to("cpu", copy=True) for buffer in buffers]
            both = (new, self._kept[place]) if shard < lowest else (self._kept[place], new)
            self._kept[place] = self._both(place, *both)

    def payload(self, first: int) -> torch.Tensor:
        """The values that other workers have to know, as bytes; first: the first shard of all. First come the rules that want
        it of all."""
        tensors = [
            kept
            for alone in (False, True)
            for kept, (rule, _) in zip(self._kept, self._rules, strict=False)
            if rule.alone is alone and not (alone and self._lowest != first)
        ]
        return torch.cat([torch.empty(0, dtype=torch.uint8), *map(bytes_of, itertools.chain.from_iterable(tensors))])

    def joined(self, payloads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The values that all shards leave together, in the order of the buffers. payloads: of all workers."""
        found: list[list[torch.Tensor] | None] = [None] * len(self._rules)
        for payload in payloads:
            rest = payload
            for alone in (False, True):
                for place, (rule, buffers) in enumerate(self._rules):
                    if rule.alone is not alone or (not rest.numel() and any(buffer.nbytes for buffer in buffers)):
                        continue
                    values, rest = _read(rest, buffers)
                    found[place] = values if (known := found[place]) is None else self._both(place, known, values)
        assert all(values is not None for values in found), "a step has a first shard"
        return [value for values in found if values is not None for value in values]

    def _both(self, place: int, lower: list[torch.Tensor], higher: list[torch.Tensor]) -> list[torch.Tensor]:
        rule, start = self._rules[place][0], self._start[place]
        assert rule.join is not None
        if rule.reads_start:
            start = self._start[place] = [each.cpu() for each in start]
        return list(map(rule.join, lower, higher, start))


def fits(rule: str, buffer: torch.Tensor) -> bool:
    return RULES[rule].fits(buffer.dtype)


def declared(pipeline: Pipeline, model: torch.nn.Module) -> dict[str, str]:
    """The rules that `buffers()` of the pipeline gives, by the name of a buffer. Raises PipelineRaised."""
    with naming("buffers()"):
        given: Any = pipeline.buffers()
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise PipelineRaised(f"buffers() returned {given!r:.200}", _CONTRACT, code="pipeline.buffers")
    strange = next((rule for rule in given.values() if not isinstance(rule, str) or rule not in RULES), None)
    if strange is not None:
        raise PipelineRaised(
            f"buffers() names the rule {strange!r}, of which there is none",
            f"one of {', '.join(RULES)}",
            code="pipeline.buffers-rule",
        )
    names = {id(buffer): name for name, buffer in model.named_buffers()}
    found: dict[str, str] = {}
    for pattern, rule in given.items():
        of_pattern = [
            (names.get(id(buffer), name), buffer)
            for name, buffer in model.named_buffers(remove_duplicate=False)
            if name == pattern or fnmatchcase(name, pattern)
        ]
        if not of_pattern:
            has = ", ".join(sorted(names.values())[:5]) or "none"
            raise PipelineRaised(
                f"buffers() names {pattern!r}, and the model has no such buffer",
                f"it has {has}",
                code="pipeline.buffers-name",
            )
        for name, buffer in of_pattern:
            if name not in found:
                _refuse_unfit(name, buffer, rule)
                found[name] = rule
    return found


def _refuse_unfit(name: str, buffer: torch.Tensor, rule: str) -> None:
    if not fits(rule, buffer):
        raise PipelineRaised(
            f"the buffer {name!r} is {buffer.dtype}, and the rule {rule!r} is for {RULES[rule].needs}",
            'give it another type in model(), or declare another rule in buffers(), as "first", before a pattern that fits too',
            code="model.buffer-dtype",
        )
    if not torch.ops.aten.is_non_overlapping_and_dense(buffer):
        raise PipelineRaised(
            f"the buffer {name!r}, for which buffers() has a rule, has gaps in memory or elements that share it",
            "register a copy: register_buffer(name, tensor.contiguous())",
            code="model.buffer-gaps",
        )


def _by_layers(model: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Name, rule and buffer of what layers of torch move by themselves; of a part of a model also those of others."""
    for prefix, module in model.named_modules():
        own = dict(module.named_buffers(recurse=False))
        for name, rule in _kinds(module, own).items():
            yield f"{prefix}.{name}" if prefix else name, rule, own[name]


def _kinds(module: torch.nn.Module, own: Buffers) -> dict[str, str]:
    """By the names of those of a layer's own buffers that it moves, their rules."""
    if isinstance(module, batchnorm._NormBase):
        return {name: MEAN for name, buffer in own.items() if buffer.dtype == torch.float32}
    if isinstance(module, parametrizations._SpectralNorm):
        return dict.fromkeys(own, "first")
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
    return {name: "first" for hook in hooks for name in (f"{hook.name}_u", f"{hook.name}_v") if name in own}


def _is_counter(buffer: torch.Tensor) -> bool:
    integral = not buffer.dtype.is_floating_point and not buffer.dtype.is_complex and buffer.dtype != torch.bool
    return integral and buffer.numel() <= COUNTER_ELEMENTS


def _read(payload: torch.Tensor, buffers: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Values like these buffers, and what comes after them."""
    values = []
    for buffer in buffers:
        raw, payload = payload[: buffer.nbytes], payload[buffer.nbytes :]
        values.append(raw.clone().view(buffer.dtype).view(buffer.shape))
    return values, payload
