"""Parts become a checkpoint when all of one generation and step have come, in whatever order, and not before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.catalog import Catalog
from orchestrator.checkpoint.parts import read_part
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import open_storage
from orchestrator.checkpoint.writer import PartWriter
from orchestrator.driver.run.checkpointing import Saving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def saving(folder: Path) -> Saving:
    return Saving(Catalog(open_storage(folder), keep=2))


def parts(folder: Path, step: int, generation: int, count: int = 2) -> list[dict[str, Any]]:
    """The workers' messages about their parts."""
    said: list[dict[str, Any]] = []
    state = TrainingState({"steps": step}, {f"t{i}": torch.full((4,), float(step + i)) for i in range(3)})
    for part in range(count):
        writer = PartWriter(open_storage(folder), said.append)
        writer.begin(state, step=step, generation=generation, part=part, parts=count)
        writer.wait()
        writer.close()
    return said


def test_a_checkpoint_exists_when_its_last_part_has_come(folder: Path, saving: Saving) -> None:
    first, second = parts(folder, 7, 0)
    assert saving.heard(second) is None
    assert saving.newest() == (None, [])
    saved = saving.heard(first)
    assert saved is not None
    assert (saved.step, saved.parts) == (7, 2)
    assert saving.newest() == (7, [])
    saving.generation_ended()
    assert not saving.given_up


def test_what_an_ended_generation_left_incomplete_is_given_up(folder: Path, saving: Saving) -> None:
    (early, late), (first, second) = parts(folder, 7, 0), parts(folder, 9, 1)
    assert saving.heard(early) is None
    saving.generation_ended()
    assert saving.given_up
    assert [saving.heard(entry) is None for entry in (first, late, second)] == [True, True, False]
    assert saving.newest() == (9, [])


def test_parts_of_two_checkpoints_may_come_mixed(folder: Path, saving: Saving) -> None:
    (early, late), (first, second) = parts(folder, 7, 0), parts(folder, 9, 0)
    found = [saving.heard(entry) for entry in (early, first, late, second)]
    assert [each.step if each is not None else None for each in found] == [None, None, 7, 9]
    assert saving.newest() == (9, [])


def test_a_checkpoint_that_is_complete_after_a_newer_one_is_not_wanted(folder: Path, saving: Saving) -> None:
    (early, late), newer = parts(folder, 7, 0), parts(folder, 9, 0)
    found = [saving.heard(entry) for entry in (early, *newer, late)]
    assert [each.step if each is not None else None for each in found] == [None, None, 9, None]
    saving.generation_ended()
    assert not saving.given_up


def test_a_part_that_could_not_be_written_is_told_and_harms_no_other_checkpoint(folder: Path, saving: Saving) -> None:
    for entry in parts(folder, 3, 0):
        saving.heard(entry)
    (written, _) = parts(folder, 5, 0)
    failed = {"event": "part_failed", "step": 5, "generation": 0, "part": 1, "parts": 2, "why": "no space left"}
    assert saving.heard(written) is None
    assert saving.heard(failed) is None
    assert saving.trouble == "no space left"
    told: list[str | None] = []
    for another in ({**failed, "step": 6}, {**failed, "part": 0}):
        saving.trouble = None
        saving.heard(another)
        told.append(saving.trouble)
    assert told == ["no space left", None]  # a full disk is told once, and not for each part, whenever the others come
    assert saving.newest() == (3, [])
    assert [saving.heard(entry) is not None for entry in parts(folder, 8, 0)] == [False, True]


def test_a_checkpoint_with_a_part_that_failed_is_begun_again_behind_its_generation(
    folder: Path, saving: Saving
) -> None:
    """The card of a member fails while it writes: it tells that, and is lost."""
    (written, _) = parts(folder, 5, 0)
    failed = {"event": "part_failed", "step": 5, "generation": 0, "part": 1, "parts": 2, "why": "the card has failed"}
    given_up = []
    for entry in (written, failed):
        saving.heard(entry)
    given_up.append(saving.given_up)  # not yet: by the next step a full disk would still be full
    saving.generation_ended()
    given_up.append(saving.given_up)
    saving.given_up = False
    saving.generation_ended()
    given_up.append(saving.given_up)
    saving.heard({**failed, "generation": 2})
    for entry in parts(folder, 6, 2):
        saving.heard(entry)
    saving.generation_ended()
    assert [*given_up, saving.given_up] == [False, True, False, False]


@pytest.mark.parametrize("repeats", [True, False])
def test_what_was_passed_over_is_gone_where_its_steps_are_others_by_now(
    folder: Path, monkeypatch: pytest.MonkeyPatch, repeats: bool
) -> None:
    """Its place failed for a moment, and it can be read again later. In an asynchronous mode it is of another history then."""
    saving = Saving(Catalog(open_storage(folder), keep=2), repeats=repeats)
    for step in (7, 9):
        for entry in parts(folder, step, 0):
            saving.heard(entry)

    def fail_once(*_: Any) -> Any:
        monkeypatch.setattr(catalog, "read_part", read_part)
        raise BlockingIOError("the place is away")

    monkeypatch.setattr(catalog, "read_part", fail_once)
    assert saving.newest() == (7, ["checkpoint 9 is not used: the place is away"])
    assert saving.newest() == (9 if repeats else 7, [])


@pytest.mark.parametrize("repeats", [True, False])
def test_late_parts_of_before_a_return_are_of_another_history_where_steps_come_out_otherwise(
    folder: Path, repeats: bool
) -> None:
    """A worker that ran on alone was cut off, and is given up. Its words come once another one has begun again."""
    saving = Saving(Catalog(open_storage(folder), keep=2), repeats=repeats)
    for entry in parts(folder, 7, 0, count=1):
        saving.heard(entry)
    saving.generation_ended()
    saving.goes_back(1)
    (late,), (again,) = parts(folder, 9, 0, count=1), parts(folder, 8, 1, count=1)
    assert (saving.heard(late) is not None) == repeats
    assert saving.newest() == (9 if repeats else 7, [])
    assert saving.heard(again) is not None
    assert saving.newest() == (9 if repeats else 8, [])
