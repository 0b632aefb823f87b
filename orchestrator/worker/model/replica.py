"""One worker's copy of the model, prepared for exact exchange: what is summed, what must agree, what may not change.

    exchanged   trainable parameters' gradients; running statistics of normalisation layers (their exact mean over shards)
    counters    small integer buffers: every shard must leave the same value (num_batches_tracked)
    joined      buffers that move by other rules, such as the first shard's or the sum (`moving_buffers.py`)
    fixed       every other buffer, and while a shard computes all parameters: a change is an error that names it (rule A8)

A change through `.data` raises no version, and reading every parameter for each shard would cost too much. So all of them are
compared until the first step is applied, and from then on a few pieces, others in each step.

Each shard starts from the step's buffers, so what a shard computes does not depend on which shards its worker computed before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from orchestrator.errors import PipelineRaised
from orchestrator.numerics import foreach
from orchestrator.numerics.byte_layout import bytes_of, same_bits
from orchestrator.numerics.copy_stream import page_locked
from orchestrator.numerics.exact import overwritten
from orchestrator.numerics.layout import Layout
from orchestrator.numerics.staging import Direct, Staging
from orchestrator.worker.model.construction import layout_of
from orchestrator.worker.model.moving_buffers import MEAN, BufferRemains, Moving, fits
from orchestrator.worker.model.packed_buffers import PackedBuffers
from orchestrator.worker.model.refusals import refuse_unsupported

# A backward pass looks at the version of what it has kept, and finds one of another micro-batch under way.
_SET_VERSIONS: Callable[[tuple[torch.Tensor, ...], tuple[int, ...]], None] | None = getattr(
    getattr(torch._C, "_autograd", None), "_unsafe_set_version_counter", None
)
_PIECE = 2**12  # elements
_FEW_BYTES = 2**20  # of statistics, which are kept for each shard of a step as they are; of more, whether they changed
_PIECES = 2  # of trainable parameters, and as many of frozen ones, that are compared in a step
_IN_PLACE = "change it in place"
_IN_MODEL = "make all layers in model(): what comes later is not trained, and no other worker has it"
_COMPUTED = (
    "; a weight that forward() computes of another one, as WeightDrop does, is a tensor: assign it without nn.Parameter(...), "
    "and a copy of what dropout gives (.clone()), which in evaluation is the parameter itself"
)


class Unread(NamedTuple):
    """Values that one shard has left where it was computed, and at which nobody has looked yet."""

    present: list[bool]  # for each trainable parameter, whether there is a gradient
    left: torch.Tensor  # the bytes of the statistics, if they are few, and of the counters
    changed: torch.Tensor | None  # for each element of the statistics; None if they are few


class Replica:
    """One worker's copy of the model, prepared for exact exchange. It owns the model and moves it to the device that
    computes; parameters are moved into one flat buffer there, each at a 64-byte boundary.

    Raises PipelineRaised for models that cannot be trained exactly, naming the tensor and the remedy.
    """

    def __init__(
        self,
        model: torch.nn.Module,  # which it owns from now on
        staging: Staging | None = None,  # to the device that computes; None: the model is in host memory
        # where the exchanged tensors lie, if that does not follow from them alone: of a part of a model
        layout: Layout | None = None,
        *,
        # whether all tensors are watched until the first step; not so where a part of this model makes a replica before
        watches_all: bool = True,
        # whether buffers may be moved into one piece of memory; torch's compiler takes none that a model moves there
        packs: bool = True,
        rules: Mapping[str, str] | None = None,  # those that are declared, by the name of a buffer
    ) -> None:
        self.staging = staging = staging or Direct()
        refuse_unsupported(model)
        self.model = model
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._parameters = dict(model.named_parameters())
        self.rules = dict(rules or {})
        moving = Moving.of(model, self.rules)
        self.statistics, self.counters = list(moving.means.values()), moving.counters
        self.joined, self._joined = moving.in_joined, moving.joined
        self._moving = [*self.statistics, *self.counters.values(), *self.joined.values()]
        self.layout = layout or layout_of(model, moving)
        self._frozen = {name: p for name, p in self._parameters.items() if not p.requires_grad}
        staging.move([*self._frozen.values(), *model.buffers()])
        self._move_into_flat_buffer(staging.device)
        self._buffers = dict(model.named_buffers())
        others = list(self._buffers.values())
        self._piece = PackedBuffers(self._moving, others, staging.empty, moves=packs and staging.answers_late)
        ends = self._piece.layout.offsets
        self._statistics_end, self._counters_end = (
            ends[len(self.statistics)],
            ends[len(self.statistics) + len(self.counters)],
        )
        self._start_bytes = self._piece.memory(ends[-1])
        self._start = self._piece.layout.views(self._start_bytes)
        self._places = list(_places(list(self.counters.values()), ends[len(self.statistics) :]))
        # The contents of each module, now and when the run began: a walk through the tree for each shard would cost more.
        self._held = [
            (kind, name, held, dict(held))
            for name, module in model.named_modules()
            for kind, held in _holdings(module).items()
        ]
        self._fixed_start = {name: buffer.clone() for name, buffer in moving.fixed.items()}
        self._given: list[torch.Tensor | None] = []
        self._given_versions: list[int] = []
        self._replayed: tuple[Sequence[torch.Tensor | None], Sequence[torch.Tensor | None]] = (), ()
        flat = [("", self._flat)]
        frozen = [(name, _in_memory(parameter)) for name, parameter in self._frozen.items()]
        self._turns = [itertools.cycle(_in_pieces(whole)) for whole in (flat, frozen)]
        self.begin_step()
        if watches_all:
            self._watch([*flat, *frozen])
        self.begin_shard()

    @property
    def flat(self) -> torch.Tensor:
        """The trainable parameters, as they lie in the layout. Call `begin_step` after writing there."""
        return self._flat

    def buffers(self) -> list[torch.Tensor]:
        """Copies of the statistics, then of the counters, then of those that are joined."""
        return [buffer.clone() for buffer in self._moving]

    @torch.no_grad()
    def set_buffers(self, values: Sequence[torch.Tensor]) -> None:
        """As `buffers` gave them. `begin_step` makes every shard start from them."""
        if values:
            foreach.copy(self._moving, list(values))

    def begin_step(self) -> None:
        """Remember the present buffers: every shard of the step to come starts from them, and so does its repetition when the
        step is given up half-way (which leaves them as the last shard made them)."""
        self._piece.take(self._start_bytes, self._start)
        self._statistics_start = [self.staging.to_sums(start) for start in self._start[: len(self.statistics)]]
        self._watch([piece for turn in self._turns for piece in itertools.islice(turn, _PIECES)])

    def begin_shard(self) -> None:
        """Reset the buffers to those of the step, and drop all gradients."""
        if self._start:
            self._piece.put(self._start_bytes, self._start)
        for parameter in self._parameters.values():
            parameter.grad = None

    def versions(self) -> tuple[int, ...]:
        """How often each buffer has been changed in place, in their order."""
        return tuple(buffer._version for buffer in self._moving)

    def continue_shard(self, buffers: Sequence[torch.Tensor], versions: Sequence[int] = ()) -> None:
        """Go on with a shard that left the buffers like this, while others are under way: no version is raised that their
        backward passes would miss. versions: as the shard left them; none where its own pass looks at none."""
        if buffers:
            foreach.copy([buffer.data for buffer in self._moving], list(buffers))
        if versions and _SET_VERSIONS is not None:
            _SET_VERSIONS(tuple(self._moving), tuple(versions))

    def give_up_shard(self) -> None:
        """Reset the buffers to those of the step after whatever happened. A GPU that has failed copies nothing any
        more: its error is reported already, or is raised by whatever is done next."""
        with suppress(torch.AcceleratorError):
            self.begin_shard()

    def contribution(self) -> list[torch.Tensor | None]:
        """After a backward pass: what this shard puts into the sum, in the order of the layout; None for a parameter without
        gradient. The tensors are the caller's: `check_shard` sees to it that the next shard does not touch them. Raises
        PipelineRaised for a sparse gradient."""
        gradients = self.gradients()
        self._given, self._given_versions = gradients, _versions(gradients)
        self._replayed = (), ()  # nor is the memory of a recording held that may be gone
        return [*gradients, *[statistic.clone() for statistic in self.statistics]]

    def replayed(self, gradients: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """As `contribution`, of a shard that was replayed from a recording and left these gradients. It is added up before
        the next shard, so statistics stay where the model has them. The same object as long as the gradients are."""
        if gradients is not self._replayed[0]:
            self._replayed = gradients, (*_detached(gradients), *self.statistics)
        return self._replayed[1]

    def gradients(self) -> list[torch.Tensor | None]:
        """After a backward pass: those of the trainable parameters, None where there is none. Raises PipelineRaised for a
        sparse gradient."""
        gradients = [parameter.grad for parameter in self.parameters]
        for slot, gradient in zip(self.layout.slots, gradients, strict=False):
            if gradient is not None and gradient.layout != torch.strided:
                raise PipelineRaised(
                    f"parameter {slot.name!r} has a sparse gradient",
                    "use sparse=False for embeddings",
                    code="model.sparse-gradient",
                )
        return _detached(gradients)

    def forget(self) -> None:
        """The last contribution is added up: from now on its tensors may change."""
        self._given, self._given_versions = [], []

    def present(self, contribution: Sequence[torch.Tensor | None]) -> list[bool]:
        """For each tensor of a contribution (where it is added up): whether its shard has a gradient for it, or has changed it.
        Statistics that no shard changes keep their bits (a frozen layer's); of others the mean is over all shards, changed or
        not."""
        count = len(self.parameters)
        present = [tensor is not None for tensor in contribution[:count]]
        # Versions do not tell: batch normalisation writes its statistics without raising them.
        changed = [
            not torch.equal(statistic.view(torch.int32), start.view(torch.int32))
            for statistic, start in zip(contribution[count:], self._statistics_start, strict=True)
            if statistic is not None
        ]
        return [*present, *changed]

    def unread(self, contribution: Sequence[torch.Tensor | None]) -> Unread:
        """The values from which `read` tells later what `present` and `counter_values` tell. Waits for nothing."""
        present = [tensor is not None for tensor in contribution[: len(self.parameters)]]
        if not self._counters_end:
            return Unread(present, self._start_bytes[:0], None)
        left = self._piece.taken(self._counters_end)
        if self._statistics_end <= _FEW_BYTES:
            return Unread(present, left, None)
        return Unread(present, left[self._statistics_end :].clone(), self._changed(left))

    def read(self, unread: Sequence[Unread]) -> list[tuple[list[bool], list[int]]]:
        """For each of these shards what `present` and `counter_values` would have told. Asks a device once at most."""
        if not unread or not self._counters_end:
            return [(each.present, []) for each in unread]
        rows = torch.stack([each.left for each in unread])
        few = self._statistics_end <= _FEW_BYTES
        changed = (
            self._changed(rows) if few else torch.stack([each.changed for each in unread if each.changed is not None])
        )
        counters = rows[:, self._statistics_end :] if few else rows
        in_host = torch.cat([changed.view(torch.uint8), counters], 1).cpu()
        changed, counters = torch.split(in_host, [changed.shape[1], counters.shape[1]], 1)
        values = numpy.empty((len(unread), sum(len(columns) for _, _, columns in self._places)), numpy.int64)
        for dtype, positions, columns in self._places:
            values[:, columns] = counters.view(dtype)[:, positions].long().numpy()
        if self.statistics:
            starts = [offset // 4 for offset in self._piece.layout.offsets[: len(self.statistics)]]
            statistics = numpy.logical_or.reduceat(changed.numpy(), starts, 1)
        else:
            statistics = numpy.empty((len(unread), 0), bool)
        return [
            ([*each.present, *has_statistics], numbers)
            for each, has_statistics, numbers in zip(unread, statistics.tolist(), values.tolist(), strict=True)
        ]

    def _changed(self, left: torch.Tensor) -> torch.Tensor:
        """For each element of the statistics, whether it has other bits than at the start of the step. left: bytes that begin
        with them, or rows of such bytes."""
        end = self._statistics_end
        return left[..., :end].view(torch.int32) != self._start_bytes[:end].view(torch.int32)

    def counter_values(self) -> list[int]:
        """The counters' present values, concatenated. Asks a device once."""
        counters = [counter.reshape(-1).long() for counter in self.counters.values()]
        return torch.cat(counters).tolist() if counters else []

    def counter_names(self) -> list[str]:
        """For each value of `counter_values`, the buffer it belongs to."""
        return [name for name, counter in self.counters.items() for _ in range(counter.numel())]

    def left(self) -> BufferRemains:
        """For what shards leave in the buffers that are joined; of none yet."""
        return BufferRemains(self._joined, self._start[len(self._moving) - len(self.joined) :])

    @torch.no_grad()
    def adopt(
        self,
        statistics: Sequence[torch.Tensor | None],
        counters: Sequence[int],
        joined: Sequence[torch.Tensor] = (),
    ) -> None:
        """Set the buffers to the agreed values of the step; None: no shard changed it. joined: of the buffers that are; where
        there are any. `begin_step` makes the next step start from them."""
        for buffer, value in zip(self.joined.values(), joined, strict=True):
            buffer.copy_(value)
        pairs = zip(statistics, self._start, strict=False)
        foreach.copy(self.statistics, [start if agreed is None else agreed for agreed, start in pairs])
        if self.counters:
            own = [*self.counters.values()]
            there = page_locked(torch.tensor(counters), self.staging.device).to(self.staging.device, non_blocking=True)
            parts = torch.split(there, [counter.numel() for counter in own])
            foreach.copy(own, [part.view(counter.shape) for part, counter in zip(parts, own, strict=True)])

    def moved(self) -> None:
        """Code that may do so has changed the parameters within a step: changes are looked for from here on."""
        self._marks = _marks(self._parameters.values())
        self._watched = [(name, bits, bits.clone()) for name, bits in self._views]

    def _watch(self, pieces: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Remember all parameters' versions, and copies of these pieces, to see whether they change before the step is
        applied."""
        self._marks = _marks(self._parameters.values())
        # A short turn has one piece twice.
        views = {piece.data_ptr(): (name, piece.view(torch.int32)) for name, piece in pieces}
        self._views = list(views.values())
        self._watched = [(name, bits, bits.clone()) for name, bits in self._views]

    def _move_into_flat_buffer(self, device: torch.device) -> None:
        slots = self.layout.slots[: len(self.parameters)]
        self._flat = torch.zeros(self.layout.size, dtype=torch.float32, device=device)
        self._former = {}
        for slot, parameter in zip(slots, self.parameters, strict=True):
            if parameter.numel():
                memory = parameter.untyped_storage()
                self._former[memory.data_ptr()] = slot.name, StorageWeakRef(memory)  # type: ignore[no-untyped-call]
        for slot, parameter in zip(slots, self.parameters, strict=True):
            place = slot.view(self._flat)
            place.copy_(parameter.detach())
            parameter.data = place

    def former_memory(self) -> dict[int, str]:
        """The addresses at which the model had its trained parameters before, where something still holds that memory, such as
        a view that model() has made; with their names."""
        held = self._former.items()
        return {address: name for address, (name, memory) in held if not memory.expired()}  # type: ignore[no-untyped-call]

    def check_shard(self, *, buffers: bool = True) -> None:
        """After each shard: raises PipelineRaised when the user's code touched the contribution before, which still waits, or a
        buffer that has to be the same for every shard. buffers: whether those may have changed."""
        now = _versions(self._given)
        if now != self._given_versions:
            i = next(i for i, version in enumerate(now) if version != self._given_versions[i])
            raise overwritten(self.layout.slots[i].name)
        if buffers:
            self._check_places()
        fixed = self._fixed_start if buffers else {}
        for i in self._differing([(self._buffers[name], start) for name, start in fixed.items()]):
            name, start = [*fixed.items()][i]
            is_mean = fits(MEAN, start)
            rules = f'{{"{name}": "{MEAN if is_mean else "first"}"}}'
            others = ""
            if is_mean:
                others = (
                    '; "first" for a queue, and for what is drawn at random; "changed" for rows that each sample has'
                )
            elif fits("sum", start):
                others = '; "sum" for what rows count'
            is_flag = start.dtype == torch.bool
            flag = (
                "where the first batch sets this flag, send one through the model in model(); else " if is_flag else ""
            )
            raise PipelineRaised(
                f"the buffer {name!r} of the model changed while a batch was computed",
                f"{flag}say by which rule shards share it, in the pipeline: def buffers(self): return {rules}; in a "
                f"LightningModule: buffer_rules = {rules}{others}; no rule fits an average of weights, such as EMA: "
                "docs/porting.md, a moving average of the weights",
                code="model.buffer-changed",
            )

    def _check_places(self) -> None:
        """Raises PipelineRaised for a buffer that moves and no longer has the size, or the memory, that the next shard is to
        begin with."""
        for buffer, start, place in zip(self._moving, self._start, self._piece.places, strict=True):
            if buffer.shape == start.shape and (place is None or buffer.data_ptr() == place):
                continue
            name = next(name for name, each in self._buffers.items() if each is buffer)
            what = (
                "was put into other memory"
                if buffer.shape == start.shape
                else f"went from the shape {list(start.shape)} to {list(buffer.shape)}"
            )
            raise PipelineRaised(
                f"the buffer {name!r} {what} while a batch was computed",
                f"give it its size in model(), as by one batch through the model, and {_IN_PLACE}",
                code="model.buffer-moved",
            )

    def fixed_versions(self) -> dict[str, int]:
        """The versions of buffers that have to be the same for every shard. A write raises one, also where no value changes."""
        return {name: self._buffers[name]._version for name in self._fixed_start}

    def check_step(self) -> None:
        """After the last shard of a step, whose first change is seen here still: raises PipelineRaised when the user's code
        changed parameters, or what the model's layers hold."""
        now = zip(self._parameters, self._marks, _marks(self._parameters.values()), strict=True)
        changed = [name for name, before, after in now if before != after]
        for i in self._differing([(piece, copy) for _, piece, copy in self._watched]):
            name, piece, copy = self._watched[i]
            changed.append(name or self._at(piece, copy))
        if changed:
            raise PipelineRaised(
                f"the parameter {changed[0]!r} was changed in place while a batch was computed",
                "only the optimizer may change parameters: leave out Embedding(max_norm=...), flatten_parameters(), clamping "
                "and moving averages, or do the last two in the step() of an optimizer of your own; layers that set themselves "
                "by the first batch, as ActNorm does, have it in model()",
                code="model.parameter-changed",
            )
        for name, parameter in self._frozen.items():
            if parameter.grad is not None:
                raise PipelineRaised(
                    f"the parameter {name!r}, frozen when the run began, has a gradient",
                    "let it require one in model() if it is ever to be trained: others are not summed over the shards",
                    code="model.frozen-gradient",
                )
        for kind, module, held, before in self._held:
            for name in [*before, *held]:
                if name not in held or name not in before or held[name] is not before[name]:
                    raise PipelineRaised(
                        f"the {kind} {f'{module}.{name}' if module else name!r} was replaced, added or removed while a batch "
                        "was computed",
                        _change_of_buffer(module, name, before, held)
                        if kind == "buffer"
                        else _made_later(kind, name, before),
                        code="model.tensor-replaced",
                    )

    def check_frozen(self) -> None:
        """After an optimizer's step that only this replica takes: raises PipelineRaised when it changed what no other worker
        hears of."""
        for (name, parameter), before in zip(self._parameters.items(), self._marks, strict=True):
            if name in self._frozen and (parameter._version, parameter.data_ptr()) != before:
                raise PipelineRaised(
                    f"the optimizer changed the parameter {name!r}, which is frozen",
                    "use sync=bsp without local: elsewhere shards contribute changes of trained parameters alone",
                    code="optimizer.changes-frozen",
                )

    def _differing(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
        """The places of pairs that are not equal to the bit. Asks a device once."""
        if not self.staging.answers_late:
            return [i for i, pair in enumerate(pairs) if not same_bits(*pair)]
        alike = [i for i, (one, other) in enumerate(pairs) if one.shape == other.shape]
        found = set(range(len(pairs))) - set(alike)
        if alike:
            differ = [(_exactly(pairs[i][0]) != _exactly(pairs[i][1])).any() for i in alike]
            found.update(itertools.compress(alike, torch.stack(differ).tolist()))
        return sorted(found)

    def _at(self, piece: torch.Tensor, copy: torch.Tensor) -> str:
        """The trainable parameter that a piece of the flat buffer differs in."""
        element = piece.storage_offset() + int((piece != copy).nonzero()[0])
        return next(slot.name for slot in reversed(self.layout.slots) if slot.offset <= element)


def _detached(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [each.detach() if each is not None and each.requires_grad else each for each in gradients]


def _marks(parameters: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    return [(parameter._version, parameter.data_ptr()) for parameter in parameters]


def _holdings(module: torch.nn.Module) -> dict[str, Mapping[str, Any]]:
    """By kind, what may not be exchanged for something else; TorchScript allows that for buffers only."""
    if isinstance(module, torch.jit.ScriptModule):
        return {"buffer": module._buffers}
    return {"buffer": module._buffers, "parameter": module._parameters, "module": module._modules}


def _made_later(kind: str, name: str, before: Mapping[str, Any]) -> str:
    """The remedy for a parameter or a module that is another one than before."""
    return f"{_IN_MODEL}{_COMPUTED}" if kind == "parameter" and name not in before else _IN_MODEL


def _change_of_buffer(module: str, name: str, before: Mapping[str, Any], held: Mapping[str, Any]) -> str:
    """The remedy for a buffer of that module that is another one than before."""
    if before.get(name) is None or name not in held:
        return "make all buffers in model(), as by one batch of the largest size through it, and change them in place"
    layer = f"model.get_submodule({module!r})"
    return (
        f"{_IN_PLACE}; one that each batch sets anew, as layers of snntorch do, may be an attribute, in model(): "
        f"layer = {layer}; value = layer.{name}; del layer.{name}; layer.{name} = value"
    )


def parameters_of(replica: Replica) -> dict[str, torch.nn.Parameter]:
    """The trained parameters by the names of their tensors."""
    return dict(zip((slot.name for slot in replica.layout.slots), replica.parameters, strict=False))


@contextmanager
def whole_gradients(
    parameters: Mapping[str, torch.nn.Parameter], take: Callable[[str, torch.Tensor], None]
) -> Iterator[None]:
    """Within this, `take` gets each parameter with its name as soon as a backward pass has its gradient; none that a loss has
    frozen for now, which takes no hook."""
    handles = [
        each.register_post_accumulate_grad_hook(partial(take, name))  # type: ignore[no-untyped-call]
        for name, each in parameters.items()
        if each.requires_grad
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """All elements as they lie there, without a copy; none of a tensor that has gaps or was expanded."""
    dense = torch.ops.aten.is_non_overlapping_and_dense(tensor)
    return tensor.detach().as_strided((tensor.numel() if dense else 0,), (1,))


def _in_pieces(named: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    return [(name, piece) for name, tensor in named for piece in torch.split(tensor, _PIECE)]


def _versions(tensors: Sequence[torch.Tensor | None]) -> list[int]:
    return [-1 if tensor is None else tensor._version for tensor in tensors]


def _places(
    tensors: Sequence[torch.Tensor], offsets: Sequence[int]
) -> Iterator[tuple[torch.dtype, torch.Tensor, list[int]]]:
    """By type, where the elements of the tensors lie in memory in which these begin, as `PackedBuffers` has them, and the
    place of each among all elements. offsets: of the tensors, in other memory."""
    found: dict[torch.dtype, tuple[list[int], list[int]]] = {}
    count = 0
    for tensor, offset in zip(tensors, offsets, strict=False):
        positions, columns = found.setdefault(tensor.dtype, ([], []))
        inside = torch.arange(tensor.numel()).as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride())
        first = (offset - offsets[0]) // tensor.element_size()
        positions += [first + each for each in inside.reshape(-1).tolist()]
        columns += range(count, count + tensor.numel())
        count += tensor.numel()
    for dtype, (positions, columns) in found.items():
        yield dtype, torch.tensor(positions, dtype=torch.int64), columns


def _exactly(tensor: torch.Tensor) -> torch.Tensor:
    """Elements that are equal only where the bits are."""
    return bytes_of(tensor) if tensor.dtype.is_floating_point or tensor.dtype.is_complex else tensor
