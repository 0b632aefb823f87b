"""Manifests that were changed and given a right digest, as by somebody else who writes to the place: one kind of error."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from orchestrator.checkpoint.catalog import Catalog, load, read
from orchestrator.checkpoint.manifest import _digest, manifest_name
from orchestrator.errors import CheckpointDamaged, Inconsistent
from orchestrator.worker.model import snapshot
from tests.attacks.test_records import changed, places
from tests.checkpoint.stores import InMemory, events
from tests.checkpoint.test_catalog import kept
from tests.refusals import refused

STEP = 10
OTHERS: list[Any] = [
    None,
    True,
    -1,
    2**70,
    1.5,
    1e300,
    "text",
    "\ud800",
    [],
    [1],
    [[]],
    {},
    {"a": 1},
    {"dict": 1},
    "REMOVED",
]


def without(value: Any, place: tuple[Any, ...]) -> Any:
    found = changed(value, place, None)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    return found


@pytest.fixture(scope="module")
def saved() -> InMemory:
    storage = InMemory()
    Catalog(storage, 2).commit(STEP, events(storage, kept(STEP, [STEP], archived=True), STEP))
    return storage


def used(storage: InMemory) -> None:
    """In all the ways that a resume, a rerun, an export and a run that begins with it have."""
    manifest = read(storage, STEP)
    assert (len(manifest.best), manifest.is_archived, len(manifest.state_digest)) is not None
    assert manifest.size_bytes >= 0
    state = load(storage, manifest)
    load(storage, manifest, lambda _: True)
    snapshot.run_state_of(state)


@pytest.mark.slow
def test_whatever_stands_anywhere_in_a_manifest_it_is_damaged_or_used(saved: InMemory) -> None:
    name = manifest_name(STEP)
    whole = json.loads(saved.files[name])
    del whole["sha256"]
    used(saved)
    tried = not_used = 0
    for place in places(whole):
        for other in OTHERS:
            if place == () and other == "REMOVED":
                continue
            body = without(whole, place) if other == "REMOVED" else changed(whole, place, other)
            signed = {**body, "sha256": _digest(body)} if isinstance(body, dict) else body
            storage = InMemory({**saved.files, name: json.dumps(signed).encode()})
            tried += 1
            with contextlib.suppress(CheckpointDamaged, Inconsistent):
                not_used += 1
                used(storage)
                not_used -= 1
            with contextlib.suppress(CheckpointDamaged):
                Catalog(storage, 1).latest()
    assert tried > 500
    assert not_used > tried / 2


@pytest.mark.parametrize(
    ("code", "contents"),
    [
        ("checkpoint.manifest-unreadable", (b"", b"\xff", b"[" * 100_000, b'{"a":' * 100_000)),
        ("checkpoint.not-whole", (b"null", b"NaN", b"{}", b"7")),
    ],
)
def test_rubbish_is_damaged(code: str, contents: tuple[bytes, ...]) -> None:
    for content in contents:
        with refused(code):
            read(InMemory({manifest_name(STEP): content}), STEP)


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 8, b"\xff" * 100, b"\0" * 7])
def test_a_file_that_is_none_is_damaged(saved: InMemory, content: bytes) -> None:
    manifest = read(saved, STEP)
    storage = InMemory(saved.files)
    storage.files[manifest.blobs[0].name] = content
    for wanted in (None, lambda _: True):
        with pytest.raises(CheckpointDamaged):
            load(storage, manifest, wanted)
