"""Border messages between members: activations to the next stage, gradients to the one before.

    header    JSON: what the tensors are and where they belong, which generators differ from those of the seed
    tensors   the bytes of each, each at a multiple of 64

Both are one payload; the note beside it is the length of the header, 0 where nothing comes: the micro-batch has failed, or
counts nothing. Then all stages behind, or before, are told the same, so that each member's program comes to its end. To a peer
that maps this member's device memory, tensors are left there (`border_memory.py`), and a second message says where.

A message of tensors on a device leaves when they are there, and this member goes on meanwhile (`departures.py`)."""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy
import torch

from orchestrator.comm.transports.base import ProtocolError, Received, Tag, Transport
from orchestrator.errors import PipelineRaised
from orchestrator.numerics.byte_layout import of_bytes
from orchestrator.numerics.enqueued import collecting, mark_of
from orchestrator.worker.pipeline_parallel.border_memory import BorderMemory
from orchestrator.worker.pipeline_parallel.border_values import (
    TOGETHER,
    Activations,
    BorderValue,
    Generators,
    Gradients,
    same_generators,
    same_of_numpy,
)
from orchestrator.worker.pipeline_parallel.departures import Departures

# Phases, beside those of comm.collectives.
ACTIVATIONS, GRADIENTS, DONE, NORMS, TIED, DIGESTED, DIGEST, SAVING, EVALUATED, DRAWN = range(64, 74)
# The phases in which a member waits for another stage, and whether it then goes on with what it did
# (`CancellableTransport.waits`).
WAITS: Final = {ACTIVATIONS: True, GRADIENTS: True, TIED: True, DONE: False, NORMS: False}

# The phases of messages that a member sends while it computes, and looks for before it has sent its own.
_IN_PASSING: Final = frozenset((ACTIVATIONS, GRADIENTS))
_LOOK_S: Final = 20e-6  # between two looks for what comes, and for what the device has done

_LEFT: Final = 1  # the piece of a message that says where tensors were left
_NOTHING: Final = torch.empty(0, dtype=torch.uint8)
BorderTag = tuple[int, int, int, int]  # step, attempt, phase, shard
Seeded = Generators  # the states with which a micro-batch began


class Message(NamedTuple):
    """As it travels, when the device of its tensors has done what was enqueued. left: the bytes of tensors that do not travel
    with it; None where all do."""

    payload: torch.Tensor
    note: int
    left: torch.Tensor | None = None


class Border:
    """One member's border messages in one generation. They raise what the transport raises. sent_bytes: so far. Before this
    member sends other messages it calls `finish`."""

    def __init__(self, transport: Transport, generation: int, timeout_s: float, memory: BorderMemory | None) -> None:
        self._transport = transport
        self._generation = generation
        self._timeout_s = timeout_s
        self._memory = memory
        self._departures = Departures()
        # by peer, what came while own ones waited
        self._came: dict[int, deque[tuple[Tag, Received]]] = defaultdict(deque)
        self.sent_bytes = 0

    def send(self, peer: int, tag: BorderTag, message: Activations | Gradients | None, seeded: Seeded) -> None:
        """Send a message over a border. seeded: the generators' states at the start of this micro-batch, which the peer
        knows."""
        sent = Message(_NOTHING, 0) if message is None else encode(message, seeded, self._place(peer, tag))
        self.sent_bytes += sent.payload.numel() + (0 if sent.left is None else sent.left.numel())
        mark = None if message is None else mark_of(_device(message))
        self._departures.add(mark, partial(self._leave, peer, tag, sent))
        if tag[2] not in _IN_PASSING:
            self.finish()

    def finish(self) -> None:
        """Send what the device has not done yet, when it has."""
        self._departures.finish()

    def _leave(self, peer: int, tag: BorderTag, sent: Message) -> None:
        self._transport.send(peer, Tag(self._generation, *tag), sent.payload, _note(sent), done=True)
        if sent.left is not None:
            self._transport.send(peer, Tag(self._generation, *tag, _LEFT), sent.left, done=True)
        self._transport.flush(self._timeout_s)

    def receive(self, peer: int, tag: BorderTag) -> Message:
        """Receive a message, which `activations` or `gradients` reads."""
        received = self._receive(peer, Tag(self._generation, *tag))
        if received.note >= 0:
            return Message(received.payload, received.note)
        left = self._receive(peer, Tag(self._generation, *tag, _LEFT))
        return Message(received.payload, -received.note, left.payload)

    def _receive(self, peer: int, tag: Tag) -> Received:
        """The next message of a peer. Before it comes, own ones leave when they may, since the peer may wait for them."""
        came = self._came[peer]
        while not came and not self._departures.empty:
            if not self._departures.go() and not self._look():
                time.sleep(_LOOK_S)
        if not came:
            return self._transport.receive(peer, tag, self._timeout_s)
        found, received = came.popleft()
        if found != tag:
            raise ProtocolError(f"expected {tag} from member {peer}, got {found}")
        return received

    def _look(self) -> bool:
        """Take what has come; returns whether there was anything."""
        found = self._transport.poll(_IN_PASSING, 0.0)
        for peer, tag, received in found:
            self._came[peer].append((tag, received))
        return bool(found)

    def _place(self, peer: int, tag: BorderTag) -> torch.Tensor | None:
        """The memory in which tensors of this message may be left for the peer; None if they have to travel."""
        _, _, phase, shard = tag
        if self._memory is None or phase not in (ACTIVATIONS, GRADIENTS) or self._transport.travels(peer):
            return None
        return self._memory.place(shard, onward=phase == ACTIVATIONS)


def _device(message: Activations | Gradients) -> torch.device:
    """The device of its tensors."""
    tied = message.tied.values() if isinstance(message, Gradients) else ()
    return next((value.data.device for value in (*message.border_values, *tied) if value is not None), _NOTHING.device)


def _note(message: Message) -> int:
    return message.note if message.left is None else -message.note


def encode(message: Activations | Gradients, seeded: Seeded, place: torch.Tensor | None = None) -> Message:
    """The payload is uint8 in host memory, the note the length of its header. The bytes of tensors on a device are there when
    it has done all that was enqueued. place: bytes on the device where tensors that cross the border are left if they fit."""
    header: dict[str, Any]
    if isinstance(message, Activations):
        border_values: list[BorderValue | None] = list(message.border_values)
        places, skips = [list(pair) for pair in message.places], [[list(key), n] for key, n in message.skips]
        header = {"flows": list(message.flows), "places": places, "skips": skips, "told": message.told}
    else:
        border_values = [*message.border_values, *message.tied.values()]
        header = {"tied": list(message.tied), "weight": float(message.weight).hex()}
    crossing = [border_value.data for border_value in message.border_values if border_value is not None]
    left = None if place is None else _left(crossing, place)
    header["left"] = 0 if left is None else len(message.border_values)
    bodies = [border_value.data for border_value in border_values[header["left"] :] if border_value is not None]
    header["tensors"] = [None if border_value is None else _described(border_value) for border_value in border_values]
    header["generators"], states = _changed(message.generators, seeded)
    bodies += states
    text = json.dumps(header).encode()
    bodies = [of_bytes(text), *bodies]
    *starts, end = _offsets(bodies)
    return Message(collecting(end, list(zip(starts, bodies, strict=True))), len(text), left)


def _offsets(bodies: Sequence[torch.Tensor]) -> list[int]:
    """The start of each, in bytes, and the end of all."""
    return list(itertools.accumulate((-(-body.nbytes // TOGETHER) * TOGETHER for body in bodies), initial=0))


def _left(bodies: Sequence[torch.Tensor], place: torch.Tensor) -> torch.Tensor | None:
    """The bytes there; None where they do not fit, or are none."""
    *starts, end = _offsets(bodies)
    if not 0 < end <= place.numel():
        return None
    for start, body in zip(starts, bodies, strict=True):
        place[start : start + body.nbytes].copy_(body.view(torch.uint8))
    return place[:end]


def activations(message: Message, seeded: Seeded) -> Activations | None:
    """The activations that `encode` packed; None if nothing comes."""
    if message.note == 0:
        return None
    header, border_values, generators = _decoded(message, seeded)
    skips = [((key[0], key[1], key[2]), n) for key, n in header["skips"]]
    places = [(place, n) for place, n in header["places"]]
    crossing = [value for value in border_values if value is not None]
    return Activations(crossing, header["flows"], places, skips, generators, header["told"])


def gradients(message: Message, seeded: Seeded) -> Gradients | None:
    """The same of gradients."""
    if message.note == 0:
        return None
    header, border_values, generators = _decoded(message, seeded)
    count = len(border_values) - len(header["tied"])
    tied = {
        name: border_value
        for name, border_value in zip(header["tied"], border_values[count:], strict=True)
        if border_value is not None
    }
    return Gradients(border_values[:count], generators, tied, float.fromhex(header["weight"]))


def _decoded(message: Message, seeded: Seeded) -> tuple[Any, list[BorderValue | None], Generators]:
    payload, note, left = message
    header = json.loads(payload[:note].numpy().tobytes())
    rest = payload[-(-note // TOGETHER) * TOGETHER :]
    border_values: list[BorderValue | None] = []
    for number, described in enumerate(header["tensors"]):
        if described is None:
            border_values.append(None)
        elif number < header["left"]:
            assert left is not None, "a second message says where they are"
            found, left = _split_off(described, left)
            border_values.append(found)
        else:
            found, rest = _split_off(described, rest)
            border_values.append(found)
    return header, border_values, _restored(header["generators"], rest, seeded)


def _split_off(described: Sequence[Any], source: torch.Tensor) -> tuple[BorderValue, torch.Tensor]:
    """The first that lies there, and what lies behind it."""
    size, stride, at, kind, elements = described
    dtype = getattr(torch, kind)
    length = elements * dtype.itemsize
    found = BorderValue(tuple(size), tuple(stride), at, _typed(source[:length], dtype))
    return found, source[-(-length // TOGETHER) * TOGETHER :]


def _typed(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As elements of that type, which is a copy where the bytes do not lie as those have to."""
    if data.data_ptr() % dtype.itemsize or data.storage_offset() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype)


def _described(border_value: BorderValue) -> list[Any]:
    kind = str(border_value.data.dtype).removeprefix("torch.")
    return [list(border_value.size), list(border_value.stride), border_value.at, kind, border_value.data.numel()]


def _changed(now: Generators, seeded: Seeded) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The differences from the states of the seed: values for the header, and bytes."""
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
        start += -(-elements // TOGETHER) * TOGETHER
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
