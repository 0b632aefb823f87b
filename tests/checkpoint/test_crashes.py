"""Crash after any write: the old checkpoint or the new one, whole, never a third thing (law 5 of the design).

Three checkpoints, by two writers and then by three; two are kept or one. The first two have the same blob in part (a frozen
tensor). The storage fails at every change in turn, in every way that a storage can.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from orchestrator.checkpoint.catalog import Catalog, load, read
from orchestrator.checkpoint.storage import LocalFolder, Storage
from orchestrator.errors import CheckpointDamaged
from tests.checkpoint.stores import Dead, Failing, InMemory, events, example, same

pytestmark = pytest.mark.slow

CHECKPOINTS = ((10, 2), (20, 2), (30, 3))  # step, parts


def save(storage: Storage, catalog: Catalog, step: int, parts: int) -> None:
    """As driver and writers do: what fails is given up, and training goes on."""
    with suppress(OSError, CheckpointDamaged):
        catalog.commit(step, events(storage, example(step), step, parts))


def run(storage: Storage, keep: int) -> list[int]:
    """The steps whose checkpoint stood when the storage ended the process, or at the end; in order."""
    stood: list[int] = []
    catalog = Catalog(storage, keep)
    with suppress(Dead):
        for step, parts in CHECKPOINTS:
            save(storage, catalog, step, parts)
            with suppress(CheckpointDamaged):
                read(storage, step)
                stood.append(step)
    return stood


def changes(keep: int) -> int:
    """How many changes an undisturbed run makes."""
    after = 0
    while True:
        failing = Failing(InMemory(), "dead", after)
        run(failing, keep)
        if not failing.fired:
            return after
        after += 1


def test_the_scene_prunes_everything_it_can() -> None:
    assert changes(keep=1) > changes(keep=2) > changes(keep=3) == 2 + 2 + 3 + 3


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("how", ["raises", "full", "dead", "dead_after"])
def test_after_any_failure_a_whole_checkpoint_is_found(how: str, keep: int) -> None:
    for after in range(changes(keep)):
        storage = InMemory()
        failing = Failing(storage, how, after)
        stood = run(failing, keep)
        assert failing.fired or how == "full", (how, after)
        found, reasons = Catalog(storage, keep).latest()
        assert reasons == [], (how, after)
        steps = [step for step, _ in CHECKPOINTS]
        if found is None:
            assert stood == [], (how, after)
        else:
            newer = steps.index(found.step) - (steps.index(stood[-1]) if stood else -1)
            assert newer in (0, 1), (how, after)  # the last that stood, or the one that was being written
            assert same(load(storage, found), example(found.step)), (how, after)


@pytest.mark.parametrize("how", ["raises", "dead", "dead_after"])
def test_after_any_failure_the_next_run_goes_on_and_cleans_up(how: str) -> None:
    """Leftovers of the crash are gone two checkpoints later, if they count as abandoned by then, and nothing else is."""
    for after in range(changes(keep=2)):
        storage = InMemory()
        run(Failing(storage, how, after), keep=2)
        catalog = Catalog(storage, keep=2, abandoned_after_s=0)
        catalog.latest()
        for step in (40, 50, 60):
            save(storage, catalog, step, 2)
        expected = InMemory()
        clean = Catalog(expected, keep=2)
        for step in (50, 60):
            save(expected, clean, step, 2)
        assert storage.files == expected.files, (how, after)


def test_a_local_folder_does_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    for after in range(changes(keep=1)):
        folder = tmp_path_factory.mktemp("crash")
        stood = run(Failing(LocalFolder(folder), "dead_after", after), keep=1)
        storage = LocalFolder(folder)
        found, reasons = Catalog(storage, 1).latest()
        assert reasons == []
        assert found is not None or stood == []
        if found is not None:
            assert found.step >= max(stood, default=0)
            assert same(load(storage, found), example(found.step))
