"""The message of a member that is to restore a checkpoint and cannot have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.checkpoint.catalog import Catalog
from orchestrator.checkpoint.storage import open_storage
from orchestrator.cluster.actors.checkpoint_client import CheckpointClient
from tests.checkpoint.stores import events, example, same
from tests.refusals import refused


@pytest.mark.parametrize("how", ["gone", "cut", "not a file"])
def test_a_checkpoint_that_cannot_be_restored_is_named_with_a_remedy(tmp_path: Path, how: str) -> None:
    storage, state = open_storage(tmp_path), example(3)
    Catalog(storage, 1).commit(3, events(storage, state, 3))
    checkpoint_client = CheckpointClient(lambda _entry: None)
    checkpoint_client.open(str(tmp_path))
    assert same(checkpoint_client.load("3"), state)
    blob = next(tmp_path.glob("*.safetensors"))
    if how == "cut":
        blob.write_bytes(blob.read_bytes()[:9])
    else:
        blob.unlink()
    if how == "not a file":
        blob.mkdir()  # reading it raises an OSError that is no FileNotFoundError
    with refused("checkpoint.not-restored") as raised:
        checkpoint_client.load("3")
    assert "resume the run" in raised.value.remedy
