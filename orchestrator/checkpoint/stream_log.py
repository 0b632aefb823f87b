"""A log of what live streams have given, so that a run which has learned from a queue or an API can be repeated.

A worker writes the samples of its shards beside the checkpoints after the vote of a step, and before anything is sent without
which nobody can commit it. So whatever is learned from lies there, though its worker was killed a moment later. A file is
named by its step, its generation and the SHA-256 of its content. The next host of a shard takes from there what had been
taken already, also after all have gone back to a checkpoint. If two generations have written a step, the later one counts. At
the end of the run the driver makes one file of all:

    {"step": 3, "shard": 0, "samples": [...], "sha256": "..."}     a line for each step and shard, in that order

and `Logged` is the stream that gives these samples again. No pickle: samples are
what `state.pack` takes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from orchestrator.checkpoint.state import from_text
from orchestrator.checkpoint.storage import open_storage
from orchestrator.data.files.stream import Stream
from orchestrator.errors import DataDamaged, RunFailed

_FOLDER = "streams"
_SUFFIX = ".json"


class StreamedSamples(NamedTuple):
    """The samples that a stream gave from its `first` on, each as `state.to_text` writes it. row: where the stream was then,
    likewise."""

    first: int
    samples: list[str]
    row: str


class StreamLog:
    """A worker's, in one generation. storage: where the checkpoints of the run lie."""

    def __init__(self, storage: str, generation: int) -> None:
        self._before: dict[int, dict[int, StreamedSamples]] | None = None
        self._place = f"{storage}/{_FOLDER}"
        self._storage = open_storage(self._place)
        self._generation = generation

    def before(self, step: int, shard: int) -> Mapping[int, StreamedSamples]:
        """By its first sample, what earlier generations have taken of a shard's stream after so many steps. step: where this
        generation began. Raises RunFailed, DataDamaged."""
        if self._before is None:
            self._before = {}
            with self._telling(step, "read from"):
                names = sorted(
                    (name for name in self._storage.sizes() if _is_later(name, step)), key=_step_and_generation
                )
                for name in names:
                    for each, given in _read(self._storage.get(name), name).items():
                        self._before.setdefault(each, {})[given.first] = given
        return self._before.get(shard, {})

    def put(self, step: int, samples: Mapping[int, StreamedSamples]) -> None:
        """By shard, what was taken for a step. Raises RunFailed."""
        content = json.dumps({str(shard): list(each) for shard, each in samples.items()}).encode()
        name = f"{step:010d}-{self._generation:06d}-{hashlib.sha256(content).hexdigest()}{_SUFFIX}"
        with self._telling(step, "written to"):
            self._storage.put(name, [content])

    @contextmanager
    def _telling(self, step: int, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunFailed(
                f"step {step}: what live streams gave cannot be {what} {self._place}: {error}",
                "see to the room, the rights and the way to it; the checkpoints of the run stay as they are",
                code="streams.log-failed",
            ) from error


def collect(storage: str, target: Path, steps: int) -> bool:
    """Make the file of all of a run that has done so many steps; returns whether it has any. Raises OSError, DataDamaged."""
    if "://" not in storage and not (Path(storage) / _FOLDER).exists():
        return False
    place = open_storage(f"{storage}/{_FOLDER}")
    names = sorted((name for name in place.sizes() if name.endswith(_SUFFIX)), key=_step_and_generation)
    if not names:
        return False
    unfinished = target.with_name(f"{target.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        found: dict[int, StreamedSamples] = {}
        for name, following in zip(names, [*names[1:], None], strict=True):
            found |= _read(place.get(name), name)  # of a later generation in the place of an earlier one
            step = _step_and_generation(name)[0]
            if following is None or _step_and_generation(following)[0] != step:
                for shard in sorted(found) if step <= steps else ():
                    file.write(_line(step, shard, found[shard].samples))
                found = {}
    unfinished.replace(target)
    return True


class Logged(Stream):
    """The samples that live streams gave in another run, in the same order. Raises DataDamaged.

    If that run began with the state of a further one, samples before are not here: those of its first micro-batch stand for
    them, since they are only passed over. taken: how many a shard takes in so many steps."""

    def __init__(self, file: str, taken: Callable[[int, int], int]) -> None:
        self._file = Path(file)
        self._places: dict[int, list[int]] = {}
        self._before: dict[int, int] = {}
        place = 0
        try:
            with self._file.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    fields = self._fields(line, number)
                    self._before.setdefault(fields["shard"], taken(fields["step"] - 1, fields["shard"]))
                    self._places.setdefault(fields["shard"], []).append(place)
                    place += len(line)
        except OSError as error:
            raise DataDamaged(
                f"{file} cannot be read, which holds what the streams of the run gave: {error.strerror}",
                "it has to be at the same path on each node that has workers",
                code="streams.log-unreadable",
            ) from error

    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Iterator[Any]:  # noqa: ARG002
        if epoch:
            return
        with self._file.open("rb") as lines:
            for number, place in enumerate(self._places.get(shard, ()), 1):
                lines.seek(place)
                samples = self._fields(lines.readline(), number)["samples"]
                before = self._before[shard] if number == 1 and samples else 0
                yield from map(from_text, itertools.islice(itertools.cycle(samples), before))
                yield from map(from_text, samples)

    def _fields(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            fields: dict[str, Any] = json.loads(line)
            if _sha256(fields["samples"]) == fields["sha256"]:
                return fields
            why = "its samples are others than its digest says"
        except (ValueError, KeyError, TypeError) as error:
            why = str(error)
        raise DataDamaged(
            f"{self._file}, line {number}: {why}",
            "remove it, and it is taken from the run's artifacts again",
            code="streams.log-line",
        )


def digest(file: Path) -> str:
    """The digest of the file of all."""
    hashed = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            hashed.update(piece)
    return hashed.hexdigest()


def _is_later(name: str, step: int) -> bool:
    return name.endswith(_SUFFIX) and _step_and_generation(name)[0] > step


def _step_and_generation(name: str) -> tuple[int, int]:
    step, generation, _ = name.split("-", 2)
    return int(step), int(generation)


def _read(content: bytes, name: str) -> dict[int, StreamedSamples]:
    if hashlib.sha256(content).hexdigest() != name.rpartition("-")[2].removesuffix(_SUFFIX):
        raise DataDamaged(
            f"{name} in the log of live streams has another content than its name says",
            "the run cannot be repeated exactly",
            code="streams.log-content",
        )
    return {int(shard): StreamedSamples(*given) for shard, given in json.loads(content).items()}


def _line(step: int, shard: int, samples: list[str]) -> str:
    return json.dumps({"step": step, "shard": shard, "samples": samples, "sha256": _sha256(samples)}) + "\n"


def _sha256(samples: list[str]) -> str:
    return hashlib.sha256("\n".join(samples).encode()).hexdigest()
