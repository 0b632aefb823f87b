"""Damage to the files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path


def spoil(checkpoints: Path) -> None:
    """Turn a bit in a file of the newest checkpoint."""
    newest = max(checkpoints.glob("checkpoint-*.json"))
    blob = checkpoints / json.loads(newest.read_text())["blobs"][0]["name"]
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
