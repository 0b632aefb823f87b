"""The manifest of a checkpoint: its step, its values, and which blobs hold which tensors. Written last, it *is* the checkpoint.

It carries the SHA-256 of its own canonical JSON, so that a changed or torn manifest is seen; a blob is named by a digest of its
content, so that the same holds for them. Pure: no files here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import CheckpointDamaged

FORMAT = 1
_NAME = re.compile(r"checkpoint-(\d{12})\.json")
# of a run state: which checkpoints are written and stay, and what follows from the settings
_BESIDE = ("save_due", "kept", "watched")
_BLOB_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
_OF_STREAM = re.compile(r"shard/\d+/stream/")  # the place of a shard in its stream (`worker/model/stream_readers.py`)


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """Within, whatever data of another form than `to_json` and `write_part` write lead to is a CheckpointDamaged."""
    try:
        yield
    except (ValueError, KeyError, IndexError, AttributeError, TypeError, ArithmeticError, RecursionError) as error:
        raise CheckpointDamaged(
            f"{what} is not whole: {type(error).__name__}: {error}", code="checkpoint.not-whole"
        ) from error


@dataclass(frozen=True)
class TensorEntry:
    """dtype without "torch."; sha256 as `state.digest` gives it."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class Blob:
    """One file: its name, its size, its tensors."""

    name: str
    size_bytes: int
    tensors: dict[str, TensorEntry]

    def as_dict(self) -> dict[str, Any]:
        entries = {name: {**vars(entry), "shape": list(entry.shape)} for name, entry in self.tensors.items()}
        return {"name": self.name, "size_bytes": self.size_bytes, "tensors": entries}

    @classmethod
    def from_dict(cls, blob: Mapping[str, Any]) -> Blob:
        entries = {
            name: TensorEntry(str(entry["dtype"]), tuple(map(_length, entry["shape"])), str(entry["sha256"]))
            for name, entry in blob["tensors"].items()
        }
        return cls(blob_name(blob["name"].removesuffix(".safetensors")), int(blob["size_bytes"]), entries)


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint: which state it holds, and in which blobs. step: applied updates; values: JSON-able; the
    blobs' tensors together are the state's."""

    step: int
    values: dict[str, Any]
    blobs: tuple[Blob, ...]

    @property
    def name(self) -> str:
        return manifest_name(self.step)

    @property
    def size_bytes(self) -> int:
        return sum(blob.size_bytes for blob in self.blobs)

    @property
    @readable("what the manifest says of the best checkpoints")
    def best(self) -> list[int]:
        """The steps of the best evaluations up to here, the best first."""
        return [int(steps) for _, steps in self._kept.get("best", [])]

    @property
    @readable("what the manifest says of its archive")
    def is_archived(self) -> bool:
        return bool(self._kept.get("archived", False))

    @property
    def _kept(self) -> dict[str, Any]:
        run_state = self.values.get("run_state", {}).get("dict", [])
        found: Any = next((value for key, value in run_state if key == "kept"), {"dict": []})
        return dict(found["dict"])

    @property
    @readable("the state in the manifest")
    def state_digest(self) -> str:
        """A digest of what training goes on with, whoever wrote it: equal states have equal digests, whatever the layout; but a
        model in stages keeps no places in streams."""
        return self._digest_of(self._tensors)

    @property
    @readable("the state in the manifest")
    def digest_without_streams(self) -> str | None:
        """The same without the places of shards in their streams; None where there are none."""
        left = {name: entry for name, entry in self._tensors.items() if not _OF_STREAM.match(name)}
        return None if len(left) == len(self._tensors) else self._digest_of(left)

    @property
    def _tensors(self) -> dict[str, Any]:
        return {name: vars(entry) for blob in self.blobs for name, entry in blob.tensors.items()}

    def _digest_of(self, tensors: Mapping[str, Any]) -> str:
        values = {key: _unordered(value) for key, value in self.values.items() if key != "run_state"}
        run_state = [pair for pair in self.values["run_state"]["dict"] if pair[0] not in _BESIDE]
        return _digest({"tensors": tensors, "values": values, "run_state": _unordered({"dict": run_state})})

    def to_json(self) -> bytes:
        """Raises ValueError or TypeError for values that JSON would change."""
        body = {
            "format": FORMAT,
            "step": self.step,
            "values": self.values,
            "blobs": [blob.as_dict() for blob in self.blobs],
        }
        if json.loads(_canonical(body)) != body:
            raise ValueError(f"the values of checkpoint {self.step} are not what JSON makes of them")
        return json.dumps({**body, "sha256": _digest(body)}, sort_keys=True, allow_nan=False).encode() + b"\n"

    @classmethod
    @readable("the manifest")
    def from_json(cls, data: bytes) -> Manifest:
        """Raises CheckpointDamaged, saying what is wrong with it."""
        try:
            body = json.loads(data.decode())
        except (ValueError, RecursionError) as error:
            raise CheckpointDamaged(
                "the manifest is not whole: it cannot be read as JSON", code="checkpoint.manifest-unreadable"
            ) from error
        expected = body.pop("sha256")
        if _digest(body) != expected:
            raise CheckpointDamaged(
                "the manifest was altered: its digest is another one", code="checkpoint.manifest-altered"
            )
        if body["format"] != FORMAT:
            raise CheckpointDamaged(
                f"the manifest has format {body['format']}; this version reads format {FORMAT}",
                code="checkpoint.format",
            )
        if type(body["step"]) is not int or type(body["values"]) is not dict:
            raise TypeError("its step is no number, or its values are none")
        return cls(body["step"], body["values"], tuple(Blob.from_dict(blob) for blob in body["blobs"]))


def _length(given: Any) -> int:
    """Raises TypeError."""
    if type(given) is not int or given < 0:
        raise TypeError(f"{given!r} is no length")
    return given


def manifest_name(step: int) -> str:
    """Names sort as steps do."""
    return f"checkpoint-{step:012d}.json"


def step_of(name: str) -> int | None:
    """The step of a manifest's name; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def steps_among(names: Iterable[str]) -> list[int]:
    """The steps of the manifests among `names`, newest first."""
    return sorted((step for step in map(step_of, names) if step is not None), reverse=True)


def blob_name(digest: str) -> str:
    name = f"{digest}.safetensors"
    if not is_blob(name):
        raise CheckpointDamaged(f"{name!r} is not the name of a blob", code="checkpoint.blob-name")
    return name


def is_blob(name: str) -> bool:
    return _BLOB_NAME.fullmatch(name) is not None


def _unordered(packed: Any) -> Any:
    """With the entries of each dictionary in one order: that of an optimizer's state follows from its history."""
    if isinstance(packed, list):
        return [_unordered(each) for each in packed]
    if not isinstance(packed, dict):
        return packed
    if "dict" in packed:
        return {"dict": sorted(([key, _unordered(value)] for key, value in packed["dict"]), key=_canonical)}
    return {key: _unordered(value) for key, value in packed.items()}


def _canonical(body: Any) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(body: Any) -> str:
    return hashlib.sha256(_canonical(body).encode()).hexdigest()
