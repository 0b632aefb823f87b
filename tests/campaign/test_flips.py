"""A bit is flipped where it was drawn, in one worker; and what became of it is told from the journal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from campaign import cells, flips, kinds, modes, parts, plans, table
from campaign.kinds import memory

FAMILY = kinds.of_family("memory")
places = st.floats(0, 1, exclude_max=True)
bits = st.integers(0, memory.BITS - 1)
EVERY = 5
JOURNAL: list[dict[str, Any]] = [
    {"event": "worker_started", "worker": 2, "pid": 7},
    {"event": "answers_differ", "step": 9, "workers": [2]},
    {"event": "worker_lost", "worker": 2, "why": "computed wrongly in step 9"},
]


def differing(one: torch.Tensor, other: torch.Tensor) -> int:
    """In so many bits."""
    pairs = zip(one.reshape(-1).view(torch.int32).tolist(), other.reshape(-1).view(torch.int32).tolist(), strict=True)
    return sum(((left ^ right) & 0xFFFFFFFF).bit_count() for left, right in pairs)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any), places, bits)
def test_one_bit_is_flipped_and_only_in_a_copy(sizes: list[int], place: float, bit: int) -> None:
    tensors = [torch.ones(size) if size else None for size in sizes]
    made = memory.in_copies(tensors, place, bit)
    pairs = [(one, other) for one, other in zip(tensors, made, strict=True) if one is not None and other is not None]
    assert sum(differing(one, other) for one, other in pairs) == 1
    assert all(torch.equal(one, torch.ones_like(one)) for one, _ in pairs)


@given(places, bits)
def test_a_flipped_parameter_raises_no_version(place: float, bit: int) -> None:
    parameters = [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(3))]
    before = [parameter.detach().clone() for parameter in parameters]
    memory.in_place(parameters, place, bit)
    assert sum(differing(one.detach(), other) for one, other in zip(parameters, before, strict=True)) == 1
    assert [parameter._version for parameter in parameters] == [0, 0]


def outcome(kept: Sequence[int] = (7, 8), journal: Sequence[dict[str, Any]] = JOURNAL, **more: Any) -> dict[str, Any]:
    fault = {"kind": memory.GRADIENTS, "struck": True, "step": 7, "pid": 7, **more}
    return {**fault, **flips.outcome(fault, EVERY, kept, journal)}


def test_of_a_flip_that_was_found_in_time_nothing_is_said() -> None:
    told = outcome()
    told["due"] = told["found"]
    assert (told["first"], told["found"], told["wrong"]) == (7, 9, 2)
    assert flips.is_found(told)
    assert list(flips.findings(told, "other", "digest")) == []


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (outcome(journal=JOURNAL[:1]), "was not found"),
        (outcome(journal=[JOURNAL[0], {**JOURNAL[1], "workers": [1]}, JOURNAL[2]]), "another worker was named"),
        (outcome(journal=JOURNAL[:2]), "not left out"),
        (outcome(kept=(7, 8, 9)), "was applied with it"),
        (outcome(journal=[JOURNAL[0], {**JOURNAL[1], "step": 12}, JOURNAL[2]]), "in step 12"),
    ],
)
def test_a_flip_that_was_not_found_or_laid_to_another_is_said(told: dict[str, Any], found: str) -> None:
    assert not flips.is_found(told)
    assert any(found in each for each in flips.findings({"due": 9, **told}, "digest", "digest"))


def test_where_no_wrong_step_was_applied_the_bits_are_those_of_the_undisturbed_run() -> None:
    told = outcome(kept=(), step=9)
    assert [each for each in flips.findings(told, "other", "digest") if each.startswith("bits")]
    assert not [each for each in flips.findings(told, "digest", "digest") if each.startswith("bits")]


def test_a_flipped_parameter_is_wrong_from_the_next_step_on_and_may_change_no_answer() -> None:
    told = outcome(kind=memory.PARAMETER, journal=[])
    assert told["first"] == 8
    assert list(flips.findings(told, "digest", "digest")) == []


@given(seed=st.integers(0, 10_000))
def test_each_flip_has_a_launch_of_its_own_with_three_workers(seed: int) -> None:
    launches = plans.part(seed, 6, FAMILY, modes.NAMES)
    assert [launch.faults[0].kind for launch in launches] == [*FAMILY] * 3
    for launch in launches:
        assert launch.flip is launch.faults[0]
        assert launch.played == replace(modes.BY_NAME[launch.mode], workers=3)
        assert f"cluster.workers={plans.CHECKING}" in launch.layout
        assert launch.flip is not None
        assert launch.flip.flip is not None
        assert f"check.every={launch.flip.flip.every}" in launch.layout


def test_the_table_counts_flips_that_were_found() -> None:
    launch = {"what": "launch", "id": "a", "mode": "bsp", "seed": 1, "storm": False, "load": 1.0, "findings": []}
    fault = {"what": "fault", "id": "a", "moment": "compute", **outcome()}
    made = table.markdown(cells.read([fault, {**fault, "found": None}, launch]), "2 cores")
    assert "| planted flipped bits found within check.every | 1 of 2 | all |" in made
    assert "| flipped bits of parameters found within check.every | not tried |  |" in made


@pytest.mark.long
@pytest.mark.ray
def test_planted_flipped_bits_are_found_and_their_workers_named(tmp_path: Path) -> None:
    with parts.project() as project, closing(parts.Part(project, tmp_path, "part")) as part:
        part.carry_out(plans.part(1, 2, [memory.GRADIENTS], ["bsp"]))
        assert project.leftovers() == []
    found = cells.read(parts.every_line(tmp_path))
    assert [launch["findings"] for launch in found.launches] == [[], []]
    assert [flips.is_found(fault) for fault in found.faults] == [True, True]
