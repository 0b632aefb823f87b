"""Border messages between members: activations to the next stage, gradients to the one before.

    header    JSON: what the tensors are and where they belong, which generators differ from those of the seed
    tensors   the bytes of each, each at a multiple of 64

Both are one payload; the note beside it is the length of the header, 0 where nothing comes: the micro-batch has failed, or
counts nothing. Then all stages behind, or before, are told the same, so that each member's program comes to its end."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy
import torch

from orchestrator.comm.transports.base import Tag, Transport
from orchestrator.errors import PipelineRaised
from orchestrator.numerics.staging import collected
from orchestrator.worker.pipeline_parallel.border_values import (
    Activations,
    BorderValue,
    Generators,
    Gradients,
    same_generators,
    same_of_numpy,
)

# Phases, beside those of engine.exchange.collectives.
ACTIVATIONS, GRADIENTS, DONE, NORMS, TIED, DIGESTED, DIGEST, SAVING, EVALUATED, DRAWN = range(64, 74)
# Where a member waits for another stage, and whether it then goes on with what it did (`CancellableTransport.waits`).
WAITS: Final = {ACTIVATIONS: True, GRADIENTS: True, TIED: True, DONE: False, NORMS: False}

_ALIGNMENT: Final = 64  # bytes
_NOTHING: Final = torch.empty(0, dtype=torch.uint8)
BorderTag = tuple[int, int, int, int]  # step, attempt, phase, shard
Seeded = Generators  # the states with which a micro-batch began


class Border:
    """One member's border messages in one generation. They raise what the transport raises. sent_bytes: so far."""

    def __init__(self, transport: Transport, generation: int, timeout_s: float) -> None:
        self._transport = transport
        self._generation = generation
        self._timeout_s = timeout_s
        self.sent_bytes = 0

    def send(self, peer: int, tag: BorderTag, message: Activations | Gradients | None, seeded: Seeded) -> None:
        """seeded: the generators' states at the start of this micro-batch, which the peer
        knows."""
        payload, note = (_NOTHING, 0) if message is None else encode(message, seeded)
        self.sent_bytes += payload.numel()
        self._transport.send(peer, Tag(self._generation, *tag), payload, note)
        self._transport.flush(self._timeout_s)

    def receive(self, peer: int, tag: BorderTag) -> tuple[torch.Tensor, int]:
        """What `decode` reads."""
        received = self._transport.receive(peer, Tag(self._generation, *tag), self._timeout_s)
        return received.payload, received.note


def encode(message: Activations | Gradients, seeded: Seeded) -> tuple[torch.Tensor, int]:
    """The payload, uint8 in host memory, and the length of its header."""
    header: dict[str, Any]
    if isinstance(message, Activations):
        border_values: list[BorderValue | None] = list(message.border_values)
        places, skips = [list(pair) for pair in message.places], [[list(key), n] for key, n in message.skips]
        header = {"flows": list(message.flows), "places": places, "skips": skips}
    else:
        border_values = [*message.border_values, *message.tied.values()]
        header = {"tied": list(message.tied), "weight": float(message.weight).hex()}
    bodies = [border_value.data for border_value in border_values if border_value is not None]
    header["tensors"] = [None if border_value is None else _described(border_value) for border_value in border_values]
    header["generators"], states = _changed(message.generators, seeded)
    bodies += states
    text = json.dumps(header).encode()
    bodies = [torch.frombuffer(bytearray(text), dtype=torch.uint8), *bodies]
    ends = [0]
    for body in bodies:
        ends.append(-(-(ends[-1] + body.nbytes) // _ALIGNMENT) * _ALIGNMENT)
    return collected(ends.pop(), list(zip(ends, bodies, strict=True))), len(text)


def activations(payload: torch.Tensor, note: int, seeded: Seeded) -> Activations | None:
    """What `encode` made of them; None where nothing comes."""
    if note == 0:
        return None
    header, border_values, generators = _decoded(payload, note, seeded)
    skips = [((key[0], key[1], key[2]), n) for key, n in header["skips"]]
    places = [(place, n) for place, n in header["places"]]
    return Activations([p for p in border_values if p is not None], header["flows"], places, skips, generators)


def gradients(payload: torch.Tensor, note: int, seeded: Seeded) -> Gradients | None:
    """The same of gradients."""
    if note == 0:
        return None
    header, border_values, generators = _decoded(payload, note, seeded)
    count = len(border_values) - len(header["tied"])
    tied = {
        name: border_value
        for name, border_value in zip(header["tied"], border_values[count:], strict=True)
        if border_value is not None
    }
    return Gradients(border_values[:count], generators, tied, float.fromhex(header["weight"]))


def _decoded(payload: torch.Tensor, note: int, seeded: Seeded) -> tuple[Any, list[BorderValue | None], Generators]:
    header = json.loads(payload[:note].numpy().tobytes())
    place = -(-note // _ALIGNMENT) * _ALIGNMENT
    border_values: list[BorderValue | None] = []
    for described in header["tensors"]:
        if described is None:
            border_values.append(None)
            continue
        size, stride, at, kind, elements = described
        dtype = getattr(torch, kind)
        length = elements * dtype.itemsize
        data = _typed(payload[place : place + length], dtype)
        border_values.append(BorderValue(tuple(size), tuple(stride), at, data))
        place += -(-length // _ALIGNMENT) * _ALIGNMENT
    return header, border_values, _restored(header["generators"], payload[place:], seeded)


def _typed(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As elements of that type, which is a copy where the bytes do not lie as those have to."""
    if data.data_ptr() % dtype.itemsize or data.storage_offset() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype)


def _described(border_value: BorderValue) -> list[Any]:
    kind = str(border_value.data.dtype).removeprefix("torch.")
    return [list(border_value.size), list(border_value.stride), border_value.at, kind, border_value.data.numel()]


def _changed(now: Generators, seeded: Seeded) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """What differs from the states of the seed: values for the header, and bytes."""
    changed: dict[str, Any] = {}
    states: list[torch.Tensor] = []
    for number, (state, before) in enumerate(zip(now.of_torch, seeded.of_torch, strict=True)):
        if not torch.equal(state, before):
            changed.setdefault("torch", []).append([number, state.numel()])
            states.append(state)
    if now.python != seeded.python:
        version, words, gauss = now.python
        changed["python"] = [version, list(words), None if gauss is None else gauss.hex()]
    if not same_of_numpy(now.numpy_state, seeded.numpy_state):
        found = now.numpy_state
        key = [int(word) for word in found["state"]["key"]]
        changed["numpy"] = [key, int(found["state"]["pos"]), int(found["has_gauss"]), float(found["gauss"]).hex()]
    return changed, states


def _restored(changed: dict[str, Any], states: torch.Tensor, seeded: Seeded) -> Generators:
    of_torch, python, numpy_state = list(seeded.of_torch), seeded.python, seeded.numpy_state
    start = 0
    for number, elements in changed.get("torch", []):
        if number < len(of_torch):  # another member may see more GPUs
            of_torch[number] = states[start : start + elements].clone()
        start += -(-elements // _ALIGNMENT) * _ALIGNMENT
    if "python" in changed:
        version, words, gauss = changed["python"]
        python = version, tuple(words), None if gauss is None else float.fromhex(gauss)
    if "numpy" in changed:
        key, position, has_gauss, gauss = changed["numpy"]
        state = {"key": numpy.array(key, numpy.uint32), "pos": position}
        numpy_state = {**numpy_state, "state": state, "has_gauss": has_gauss, "gauss": float.fromhex(gauss)}
    return Generators(tuple(of_torch), python, numpy_state)


def check_undrawn(seeded: Seeded) -> None:
    """Behind the loss of a validation batch, where that of the first one has not drawn from the generators. Raises
    PipelineRaised where it has: metrics go on with their states, which the first stage is not told."""
    if not same_generators(Generators.now(), seeded):
        raise PipelineRaised(
            "loss() draws random numbers in the evaluation of some batches only, and metrics() would go on with the "
            "generators as it leaves them",
            "draw them for every batch, or in training only, where model.training is true; or set cluster.stages=1",
            code="stages.random-loss",
        )
