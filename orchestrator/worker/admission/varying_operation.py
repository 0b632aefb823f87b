"""Which operation of torch gave other bits when a micro-batch was computed again, for the message.

A kernel that adds up by atomic operations gives other bits each time, and torch refuses only those that it knows of. So the
micro-batch is computed again, several times in a row, while what comes to each operation and what it leaves are fingerprinted
where they are. The first operation that got the same and left something else is at fault.

If none is found, the difference came from outside torch: from samples, state, a kernel that torch does not see, or memory
that nobody has written. A micro-batch that repeats costs nothing.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orchestrator.common import nondeterministic
from orchestrator.numerics import determinism
from orchestrator.numerics.digests import prints_of
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.refused_operation import frames_of, innermost, nodes_of, noting_lines
from orchestrator.worker.model.replica import Replica, parameters_of, whole_gradients

_AGAIN: Final = 4  # times; atomic operations are not out of order each time
_UNWRITTEN: Final = re.compile(r"^aten::(new_)?empty|^aten::resize")  # leave memory that nobody has written


class Operation(NamedTuple):
    """One call of an operator. came: fingerprints of its arguments before it; left: of its results and its arguments after
    it."""

    name: str  # as torch's dispatcher has it
    layer: str  # of the model; empty outside of it
    frames: list[str]  # lines of the user's
    came: list[Any]
    left: list[Any]


class Difference(NamedTuple):
    """The first difference between two repetitions. operation: None if nothing was watched; its_own: whether the same had
    come to it."""

    tensor: str  # whose gradient, or the buffer; empty where none differs
    operation: Operation | None
    its_own: bool

    def in_words(self) -> str:
        """The difference in words, as the end of a sentence."""
        where = f"; the first to differ is {self.tensor}" if self.tensor else ""
        if self.operation is None:
            return where
        name, layer, frames = self.operation[:3]
        what = f"what {name} computes" if self.its_own else f"what comes to {name}"
        return f"{where}, and before it {what}{f', in {layer}' if layer else ''}{''.join(frames)}"

    @property
    def remedy(self) -> str:
        """The remedy for an operation that is at fault."""
        row = nondeterministic.known(self.operation.name) if self.operation is not None else None
        instead = nondeterministic.GENERAL if row is None else f"instead of {row.name}: {row.instead}"
        return f"{instead}; an extension may have a way of its own that is deterministic"


def first_difference(
    workload: PipelineAdapter, replica: Replica, shard: int, *, watches: bool = True
) -> Difference | None:
    """The first difference between repetitions of micro-batch (step 0, shard), which is not empty; None if none differs, or
    if it cannot be computed so. watches: whether operations are watched, which those in compiled code cannot be."""
    try:
        # Filled once: an operation that reads memory which nobody has written shows then.
        with determinism.filled() if watches else nullcontext():
            first = _watched(workload, replica, shard, watches=watches)
        for _ in range(_AGAIN):
            difference = _difference(first, _watched(workload, replica, shard, watches=watches))
            if difference is not None:
                return difference
    except Exception:  # the caller reports its own error
        return None
    finally:
        replica.begin_shard()
    return None


@dataclass
class _Repetition:
    """The fingerprints of one repetition. tensors: gradients as they came, then buffers, by their names in messages."""

    operations: list[Operation] = field(default_factory=list)
    tensors: dict[str, int] = field(default_factory=dict)


def _difference(one: _Repetition, other: _Repetition) -> Difference | None:
    tensor = next((name for name, bits in one.tensors.items() if other.tensors.get(name) != bits), "")
    outside: Operation | None = None
    for first, again in zip(one.operations, other.operations, strict=False):
        if first.name != again.name:
            break
        if first.left == again.left or _UNWRITTEN.match(first.name):
            continue
        if first.came == again.came:
            return Difference(tensor, first, its_own=True)
        outside = outside or first
    return Difference(tensor, outside, its_own=False) if tensor or outside is not None else None


def _watched(workload: PipelineAdapter, replica: Replica, shard: int, *, watches: bool) -> _Repetition:
    replica.begin_shard()
    repetition, places = _Repetition(), _Places(workload.model)
    watching = _Watching(repetition.operations, places) if watches else nullcontext()
    parameters = parameters_of(replica)
    arriving = whole_gradients(parameters, _taking(repetition.tensors))
    with workload.call(0, shard) as call, arriving, places.known(), watching:
        judged = call.judged(call.make())
        if judged is not None:
            places.of_graph(judged[0])
            judged[0].backward()  # type: ignore[no-untyped-call]
    repetition.tensors |= {f"buffer {name}": fingerprint(buffer) for name, buffer in replica.joined.items()}
    return repetition


def _taking(into: dict[str, int]) -> Callable[[str, torch.Tensor], None]:
    """For `whole_gradients`: fingerprints, in the order in which the backward pass has the gradients."""

    def take(name: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            into[f"the gradient of {name}"] = fingerprint(parameter.grad)

    return take


class _Places:
    """The layer and the lines of an operation: in the forward pass those of the call, in the backward pass those where the
    node of the graph was made."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._inside: list[str] = []
        self._layers: dict[Any, str] = {}
        self._node: Any = None
        self._handles: list[Any] = []

    @contextmanager
    def known(self) -> Iterator[None]:
        for name, module in self._model.named_modules():
            called = f"layer {name} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
            self._handles += [
                module.register_forward_pre_hook(self._entering(called), prepend=True),
                module.register_forward_hook(self._leaving(called), always_call=True),
            ]
        try:
            with noting_lines():
                yield
        finally:
            for handle in self._handles:
                handle.remove()

    def now(self) -> tuple[str, list[str]]:
        """The layer, and the lines of the user's."""
        if self._node is not None:
            return self._layers.get(self._node, ""), frames_of(self._node)
        frame = sys._getframe(1)
        stack = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
        return self._inside[-1] if self._inside else "", innermost(stack)

    def of_graph(self, root: torch.Tensor) -> None:
        """From now on operations are those of the backward pass of this tensor."""
        self._claim([root], "")
        for node in nodes_of(root):
            self._handles.append(node.register_prehook(self._reaching(node)))

    def _reaching(self, node: Any) -> Callable[[Any], None]:
        def reach(_: Any) -> None:
            self._node = node

        return reach

    def _entering(self, called: str) -> Callable[[Any, Any], None]:
        def enter(_: Any, args: Any) -> None:
            self._claim(args, self._inside[-1] if self._inside else "")
            self._inside.append(called)

        return enter

    def _leaving(self, called: str) -> Callable[[Any, Any, Any], None]:
        def leave(_: Any, __: Any, result: Any) -> None:
            self._claim(result, called)
            self._inside.pop()

        return leave

    def _claim(self, tensors: Any, layer: str) -> None:
        """Note this layer for the nodes of the graph that lead to these tensors and belong to no other layer."""
        roots = [each for each in tree_leaves(tensors) if isinstance(each, torch.Tensor)]
        for root in roots:
            for node in nodes_of(root, self._layers):
                self._layers[node] = layer


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, operations: list[Operation], places: _Places) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations, self._places = operations, places

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, only to keep it from what follows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = args, kwargs or {}
        seen_before = _seen(inputs)
        result = func(*inputs[0], **inputs[1])
        layer, frames = self._places.now()
        seen_after = _seen((result, inputs))  # operations write into arguments, too
        self._operations.append(Operation(func.name(), layer, frames, seen_before, seen_after))
        return result


def _seen(values: Any) -> list[Any]:
    return list(map(_bits, tree_leaves(values)))


def _bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return fingerprint(value)
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, torch.ScriptObject):  # a handle, as of the profiler's record_function, which shows its address
        return type(value).__name__
    return repr(value)


def fingerprint(tensor: torch.Tensor) -> int:
    """A fingerprint of a tensor's bits, computed where it lies. 0 for one that is not in strided memory."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return 0
    return prints_of([tensor.detach().resolve_conj().resolve_neg()])[0]
