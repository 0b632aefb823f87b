"""The newest good checkpoint is found, whatever happened to a newer one; pruning never touches what is needed."""

from __future__ import annotations

import errno
import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.checkpoint.catalog import ABANDONED_AFTER_S, Catalog, NewestGood, carry, load, read
from orchestrator.checkpoint.manifest import Blob, Manifest, is_blob, manifest_name
from orchestrator.checkpoint.state import TrainingState, pack
from orchestrator.checkpoint.storage import LocalFolder, Remote, Storage
from orchestrator.errors import CheckpointDamaged
from tests.checkpoint.stores import InMemory, events, example, same
from tests.refusals import refused


def saved(
    storage: Storage, *steps: int, keep: int = 2, parts: int = 2, abandoned_after_s: float = ABANDONED_AFTER_S
) -> Catalog:
    catalog = Catalog(storage, keep, abandoned_after_s=abandoned_after_s)
    for step in steps:
        assert catalog.commit(step, events(storage, example(step), step, parts)).trouble == ""
    return catalog


def steps_in(storage: InMemory) -> list[str]:
    return sorted(name for name in storage.files if not is_blob(name))


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_what_was_saved_is_loaded(parts: int) -> None:
    storage = InMemory()
    saved(storage, 10, parts=parts)
    manifest, reasons = Catalog(storage, 2).latest()
    assert manifest is not None
    assert (manifest.step, len(manifest.blobs), reasons) == (10, parts, [])
    assert manifest.size_bytes == sum(size for name, size in storage.sizes().items() if is_blob(name)) or parts == 7
    assert same(load(storage, manifest), example(10))


def test_nothing_saved_is_nothing_found() -> None:
    assert Catalog(InMemory(), 1).latest() == (None, [])


def test_only_the_newest_stay() -> None:
    storage = InMemory()
    saved(storage, 10, 20, 30, 40, keep=2)
    assert steps_in(storage) == [manifest_name(30), manifest_name(40)]
    referenced = {blob.name for step in (30, 40) for blob in read(storage, step).blobs}
    assert {name for name in storage.files if is_blob(name)} == referenced


def kept(step: int, best: list[int], *, archived: bool = False, order: int = 1) -> TrainingState:
    """A state whose run state tells which checkpoints stay. order: in which the optimizer came by what it keeps."""
    state = example(step)
    tensors: dict[str, torch.Tensor] = {}
    told = {"best": [[(0.5).hex(), each] for each in best], "archived": archived, "save_here": False}
    run_state = pack({"steps": step, "save_due": archived, "kept": told}, tensors, "run_state")
    optimizer = pack(dict([("a", 1), ("b", 2.0)][::order]), tensors, "optimizer")
    return replace(state, values={"run_state": run_state, "optimizer": optimizer})


def test_a_commit_reads_as_much_with_a_long_archive_as_with_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each archived manifest was read at each commit, by the driver, which hears no member meanwhile."""
    storage, read_names = InMemory(), list[str]()
    get = storage.get

    def noted(name: str, *place: int) -> bytes:
        read_names.append(name)
        return get(name, *place)

    monkeypatch.setattr(storage, "get", noted)
    catalog = Catalog(storage, 2)
    for step in range(10, 210, 10):
        read_names.clear()
        catalog.commit(step, events(storage, kept(step, [], archived=True), step))
    assert len(steps_in(storage)) == 20
    assert read_names == [manifest_name(step) for step in (200, 190, 180)]
    catalog.commit(
        10, events(storage, kept(10, []), 10)
    )  # in the place of the archived one, as after a loss of all state
    catalog.commit(210, events(storage, kept(210, []), 210))
    assert manifest_name(10) not in storage.files


def test_the_best_and_the_archived_stay_beside_the_newest() -> None:
    storage = InMemory()
    catalog = Catalog(storage, 1)
    for step, best in ((10, [10]), (20, [20, 10]), (30, [20, 10]), (40, [40, 20]), (50, [40, 20]), (60, [40, 20])):
        catalog.commit(step, events(storage, kept(step, best, archived=step == 30), step))
    assert steps_in(storage) == [manifest_name(step) for step in (20, 30, 40, 60)]
    assert same(load(storage, read(storage, 20)), kept(20, [20, 10]))


def test_the_digest_of_a_state_is_that_of_the_state_alone() -> None:
    """Not of how it is divided, of which checkpoints stay, or in which order an optimizer came by what it keeps."""
    digests = []
    for parts, state in ((1, kept(10, [])), (3, kept(10, [10, 4], archived=True, order=-1)), (2, kept(11, []))):
        storage = InMemory()
        digests.append(Catalog(storage, 1).commit(10, events(storage, state, 10, parts)).manifest.state_digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_checkpoint_is_carried_whole_or_refused(tmp_path: Path) -> None:
    source, linked, copied = LocalFolder(tmp_path / "a"), LocalFolder(tmp_path / "b"), InMemory()
    Catalog(source, 1).commit(10, events(source, kept(10, []), 10))
    for target in (linked, linked, copied):
        manifest = carry(source, target, 10)
        assert same(load(target, manifest), kept(10, []))
    blob = manifest.blobs[0].name
    (tmp_path / "a" / blob).write_bytes(b"x" * manifest.blobs[0].size_bytes)
    with pytest.raises(CheckpointDamaged):
        carry(source, InMemory(), 10)


def test_steps_are_compared_as_numbers() -> None:
    storage = InMemory()
    saved(storage, 9, 10, 1_000_000, keep=3)
    found = Catalog(storage, 3).latest().manifest
    assert found is not None
    assert found.step == 1_000_000


DAMAGES: dict[str, tuple[Callable[[bytes], bytes | None], str]] = {
    "missing": (lambda _: None, "is missing"),
    "empty": (lambda _: b"", "0 bytes instead of|cannot be read as JSON"),
    "torn": (lambda data: data[: len(data) // 2], "bytes instead of|cannot be read as JSON"),
    "longer": (lambda data: data + data, "bytes instead of|cannot be read as JSON"),
    "other": (lambda data: b"x" * len(data), "altered|cannot be read as JSON"),
}


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_leads_to_the_checkpoint_before(damage: str, part: int) -> None:
    storage = InMemory()
    catalog = saved(storage, 10, 20)
    own = [blob.name for blob in read(storage, 20).blobs if blob not in read(storage, 10).blobs]
    change(storage, own[part % len(own)], damage)
    expect_10(storage, catalog, damage)


@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage != "missing"])
def test_a_damaged_manifest_leads_to_the_checkpoint_before(damage: str) -> None:
    storage = InMemory()
    catalog = saved(storage, 10, 20)
    change(storage, manifest_name(20), damage)
    expect_10(storage, catalog, damage)


def change(storage: InMemory, name: str, damage: str) -> None:
    data = DAMAGES[damage][0](storage.files.pop(name))
    if data is not None:
        storage.files[name] = data


def expect_10(storage: InMemory, catalog: Catalog, damage: str) -> None:
    for finder in (catalog, Catalog(storage, 2)):
        manifest, (reason,) = finder.latest()
        assert manifest is not None
        assert manifest.step == 10
        assert reason.startswith("checkpoint 20 is not used: ")
        assert any(words in reason for words in DAMAGES[damage][1].split("|")), reason
        assert same(load(storage, manifest), example(10))


def test_a_store_that_does_not_give_a_file_is_no_damage_to_who_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume began at the first step, as its store failed for a moment after it had been listed."""
    storage = Remote(f"memory://{secrets.token_hex(8)}")
    saved(storage, 10, 20)
    get = storage.get

    def fails(name: str, *span: Any) -> bytes:
        if name == manifest_name(20):
            raise OSError(errno.EIO, "Internal Server Error")
        return get(name, *span)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "get", fails)
        with refused("checkpoint.not-read", "step 20 is there and cannot be read: [Errno 5] Internal Server Error"):
            Catalog(storage, 2).latest(can_wait=True)
        expect_step(Catalog(storage, 2).latest(), 10)
    expect_step(Catalog(storage, 2).latest(can_wait=True), 20)
    storage.delete(manifest_name(20))
    expect_step(Catalog(storage, 2).latest(can_wait=True), 10)


def expect_step(found: NewestGood, step: int) -> None:
    assert found.manifest is not None
    assert found.manifest.step == step


def test_a_place_that_cannot_be_listed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is gone, not a run without checkpoints."""
    storage = InMemory()

    def fails() -> None:
        raise OSError("no way to the host")

    monkeypatch.setattr(storage, "sizes", fails)
    with refused("checkpoint.not-listed"):
        Catalog(storage, 1).latest()


def test_a_checkpoint_that_is_to_be_forgotten_and_cannot_be_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = InMemory()
    saved(storage, 10, 20)

    def fails(_: str) -> None:
        raise OSError("no right to remove")

    monkeypatch.setattr(storage, "delete", fails)
    with refused("checkpoint.not-removed", "step 20 cannot be removed: no right to remove"):
        Catalog(storage, 2).latest(until=10)


@given(st.data())
def test_no_flipped_bit_is_overlooked(data: st.DataObject) -> None:
    storage = InMemory()
    saved(storage, 10, 20)
    name = data.draw(st.sampled_from(sorted(storage.files)))
    damaged = bytearray(storage.files[name])
    position = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[position // 8] ^= 1 << position % 8
    storage.files[name] = bytes(damaged)
    manifest, reasons = Catalog(storage, 2).latest()
    if manifest is None:  # what both share was hit
        assert len(reasons) == 2
    else:
        assert len(reasons) == (0 if manifest.step == 20 else 1)
        assert same(load(storage, manifest), example(manifest.step))


def test_a_good_checkpoint_outlives_newer_ones_that_are_not() -> None:
    """10 is good, 20 and 30 are damaged; the run went back to 10 and saves 15: that may not push out what is good, nor be
    pushed out itself by what only looks newer."""
    storage = InMemory()
    saved(storage, 10, 20, 30, keep=3)
    change(storage, manifest_name(30), "torn")
    change(storage, read(storage, 20).blobs[1].name, "other")
    catalog = Catalog(storage, 1)
    assert catalog.latest().manifest == read(storage, 10)
    catalog.commit(15, events(storage, example(15), 15))
    assert [storage.files.get(manifest_name(step)) is not None for step in (10, 15)] == [False, True]
    found, reasons = catalog.latest()
    assert found is not None
    assert (found.step, len(reasons)) == (15, 2)
    for step in (20, 30):  # computed again
        catalog.commit(step, events(storage, example(step), step))
    assert Catalog(storage, 1).latest() == (read(storage, 30), [])
    assert steps_in(storage) == [manifest_name(30)]


def test_what_was_found_damaged_does_not_count_among_those_that_stay() -> None:
    storage = InMemory()
    saved(storage, 10, 20)
    change(storage, read(storage, 20).blobs[1].name, "other")
    catalog = Catalog(storage, 2)
    catalog.latest()
    for step in (15, 16):
        catalog.commit(step, events(storage, example(step), step))
    assert steps_in(storage) == [manifest_name(step) for step in (15, 16, 20)]


def test_what_was_just_saved_is_never_pruned() -> None:
    """Also where nobody looked whether the newer ones are good."""
    storage = InMemory()
    saved(storage, 20, 30)
    Catalog(storage, 1).commit(10, events(storage, example(10), 10))
    assert manifest_name(10) in storage.files
    assert same(load(storage, read(storage, 10)), example(10))


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 1)])
def test_a_step_computed_again_replaces_its_checkpoint(before: int, after: int) -> None:
    """By another number of writers, too."""
    storage = InMemory()
    saved(storage, 10, 20, parts=before)
    change(storage, read(storage, 20).blobs[1].name, "torn")
    catalog = Catalog(storage, 2, abandoned_after_s=0)
    catalog.latest()
    catalog.commit(20, events(storage, example(20), 20, after))
    assert catalog.latest() == (read(storage, 20), [])
    assert same(load(storage, read(storage, 20)), example(20))
    catalog.commit(30, events(storage, example(30), 30, after))
    catalog.commit(40, events(storage, example(40), 40, after))
    assert {name for name in storage.files if is_blob(name)} == blobs_of(storage, 30, 40)


def blobs_of(storage: InMemory, *steps: int) -> set[str]:
    return {blob.name for step in steps for blob in read(storage, step).blobs}


def test_parts_of_an_open_checkpoint_are_not_pruned() -> None:
    """Its writer has put it, but the driver has not heard of it when the checkpoint before is committed."""
    storage = InMemory()
    catalog = saved(storage, 10)
    twenty = events(storage, example(20), 20)
    thirty = events(storage, example(30), 30)
    catalog.commit(20, twenty)
    catalog.commit(30, thirty)
    assert same(load(storage, read(storage, 30)), example(30))


def test_a_driver_that_is_behind_prunes_nothing_that_it_has_not_heard_of_yet() -> None:
    """It commits three checkpoints one after the other, when a fourth has been written long since."""
    storage = InMemory()
    catalog = saved(storage, 10)
    told = {step: events(storage, example(step), step) for step in (20, 30, 40, 50)}
    for step, parts in told.items():
        catalog.commit(step, parts)
    assert same(load(storage, read(storage, 50)), example(50))


def test_a_driver_that_is_behind_for_minutes_prunes_nothing_of_that_either() -> None:
    """As with a slow MLflow server: all of them were there already at the first of its prunings."""
    storage = InMemory()
    catalog = Catalog(storage, 2, abandoned_after_s=0)
    told = {step: events(storage, example(step), step) for step in (20, 30, 40, 50)}
    for step, parts in told.items():
        catalog.commit(step, parts)
    assert same(load(storage, read(storage, 50)), example(50))


def test_parts_that_never_became_a_checkpoint_go_after_a_while() -> None:
    storage = InMemory()
    catalog = saved(storage, 10, abandoned_after_s=0)
    events(storage, example(20), 20)  # its writer died before it could tell
    catalog.commit(30, events(storage, example(30), 30))
    catalog.commit(40, events(storage, example(40), 40))
    assert {name for name in storage.files if is_blob(name)} == blobs_of(storage, 30, 40)


def test_pinned_parts_stay_until_they_are_unpinned() -> None:
    storage = InMemory()
    catalog = saved(storage, 10, keep=1, abandoned_after_s=0)
    pinned = {part["blob"]["name"] for part in events(storage, example(99), 99)}
    catalog.pin(pinned)
    for step in (20, 30, 40):
        catalog.commit(step, events(storage, example(step), step))
    assert pinned <= storage.files.keys()
    catalog.unpin(pinned)
    for step in (50, 60):
        catalog.commit(step, events(storage, example(step), step))
    assert {name for name in storage.files if is_blob(name)} == blobs_of(storage, 60)


def test_files_of_others_are_left_alone() -> None:
    storage = InMemory({"notes.txt": b"mine", "checkpoint-best.json": b"{}", "model.safetensors": b""})
    saved(storage, 10, 20, 30, keep=1)
    assert {"notes.txt", "checkpoint-best.json", "model.safetensors"} <= storage.files.keys()


def _without_blob(storage: InMemory, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    storage.delete(parts[1]["blob"]["name"])  # the other is the same in every checkpoint
    return parts


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda _, parts: parts[:1], "checkpoint.mixed-parts"),
        (lambda _, parts: [parts[0], parts[0]], "checkpoint.mixed-parts"),
        (lambda _, parts: [parts[0], {**parts[1], "generation": 2}], "checkpoint.mixed-parts"),
        (lambda _, parts: [{**part, "step": 21} for part in parts], "checkpoint.parts-of-other-step"),
        (lambda _, parts: [parts[0], {**parts[1], "blob": parts[0]["blob"]}], "checkpoint.tensor-twice"),
        (_without_blob, "checkpoint.part-absent"),
    ],
)
def test_parts_that_are_no_whole_are_refused(spoil: Any, code: str) -> None:
    storage = InMemory()
    catalog = saved(storage, 10)
    with refused(code):
        catalog.commit(20, spoil(storage, events(storage, example(20), 20)))
    assert catalog.latest() == (read(storage, 10), [])


def _torn_blob(storage: InMemory, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    name = parts[1]["blob"]["name"]
    storage.files[name] = storage.files[name][:-1]
    return parts


class Stale(InMemory):
    """Lists what was there when a file was written from here last, as NFS may for a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: dict[str, int] = {}

    def put(self, name: str, pieces: Any) -> None:
        super().put(name, pieces)
        self.listed = super().sizes()

    def sizes(self) -> dict[str, int]:
        return dict(self.listed)


@pytest.mark.parametrize(("spoil", "code"), [(_without_blob, "part-absent"), (_torn_blob, "part-absent"), (None, None)])
def test_parts_that_others_wrote_count_though_a_listing_lacks_them(spoil: Any, code: str | None) -> None:
    storage, elsewhere = Stale(), InMemory()
    catalog = saved(storage, 10)
    parts = events(elsewhere, example(20), 20)
    storage.files |= elsewhere.files
    if spoil is None:
        assert catalog.commit(20, parts).trouble == ""
        assert catalog.latest() == (read(storage, 20), [])
        return
    with refused(f"checkpoint.{code}"):
        catalog.commit(20, spoil(storage, parts))


def test_keeping_none_is_refused() -> None:
    with pytest.raises(ValueError, match="keep=0"):
        Catalog(InMemory(), 0)


def test_a_manifest_of_another_step_or_format_is_refused() -> None:
    storage = InMemory()
    saved(storage, 10, 20)
    storage.files[manifest_name(30)] = storage.files[manifest_name(20)]
    with refused("checkpoint.other-step"):
        read(storage, 30)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


BLOB = events(InMemory(), example(1), 1, parts=1)[0]["blob"]


@pytest.mark.slow
@given(st.dictionaries(st.text(), VALUES))
def test_a_manifest_is_what_it_was(values: dict[str, Any]) -> None:
    manifest = Manifest(1, values, (Blob.from_dict(json.loads(json.dumps(BLOB))),))
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize("values", [{"a": (1, 2)}, {"a": {1: 2}}, {"a": float("nan")}])
def test_values_that_json_would_change_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"JSON|not compliant"):
        Manifest(1, values, ()).to_json()
