"""Damage to a run whose driver was ended: a bit is flipped in a file that a resume reads, or its end is cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Literal

DAMAGED: Final = "damaged file"
PART, MANIFEST, RESTS = "checkpoint part", "manifest", "rests.jsonl"
OF_CHECKPOINT: Final = (PART, MANIFEST)
FILES: Final = (*OF_CHECKPOINT, "journal.jsonl", "trace.jsonl", RESTS)
BITS: Final = 8  # of a byte

How = Literal["bit", "end"]


def manifests(run_folder: Path) -> list[Path]:
    """Those of its checkpoints, the newest last."""
    return sorted((run_folder / "checkpoints").glob("checkpoint-*.json"))


def find(run_folder: Path, what: str, place: float) -> Path:
    """The file that is meant; of checkpoints that of the newest. place: which of its parts, as a part of the way through."""
    if what not in OF_CHECKPOINT:
        return run_folder / what
    newest = manifests(run_folder)[-1]
    if what == MANIFEST:
        return newest
    blobs = json.loads(newest.read_bytes())["blobs"]
    return newest.with_name(blobs[int(place * len(blobs))]["name"])


def damaged(content: bytes, how: How, place: float, bit: int) -> bytes:
    """place: where, as a part of the way through the file; what lies behind it is cut off, one byte at least."""
    where = int(place * len(content))
    if how == "end":
        return content[:where]
    return content[:where] + bytes([content[where] ^ 1 << bit]) + content[where + 1 :]
