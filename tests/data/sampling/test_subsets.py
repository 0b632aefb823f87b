"""Subsets of the training samples: what members of an ensemble are trained on is a pure function of seed, member and number."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.settings import from_yaml
from orchestrator.data.sampling.subsets import SUBSETS, chosen, misfit, problems
from tests.refusals import refused

SEEDS = st.integers(0, 2**63 - 1)


@given(samples=st.integers(1, 400), members=st.integers(1, 20), seed=SEEDS)
def test_disjoint_parts_are_a_cover_of_equal_sizes(samples: int, members: int, seed: int) -> None:
    members = min(members, samples)
    parts = [
        chosen("disjoint", {"member": member, "members": members, "shared_seed": seed}, samples)
        for member in range(members)
    ]
    assert all(part is not None for part in parts)
    assert sorted(number for part in parts for number in part.tolist()) == list(range(samples))  # type: ignore[union-attr]
    sizes = [len(part) for part in parts]  # type: ignore[arg-type]
    assert max(sizes) - min(sizes) <= 1


@given(samples=st.integers(1, 400), member=st.integers(0, 1000), seed=SEEDS)
def test_bagging_draws_as_many_as_there_are(samples: int, member: int, seed: int) -> None:
    found = chosen("bagging", {"member": member, "shared_seed": seed}, samples)
    assert found is not None
    assert len(found) == samples
    assert misfit(found, samples) is None
    again = chosen("bagging", {"member": member, "shared_seed": seed}, samples)
    assert again is not None
    assert numpy.array_equal(found, again)


def test_a_bag_holds_as_many_different_samples_as_chance_gives() -> None:
    """1 - 1/e of them; another member and another seed hold others."""
    bags = [chosen("bagging", {"member": m, "shared_seed": s}, 10_000) for m, s in ((0, 0), (1, 0), (0, 1))]
    assert all(bag is not None and abs(len(set(bag.tolist())) / 10_000 - 0.632) < 0.01 for bag in bags)
    assert len({bag.tobytes() for bag in bags if bag is not None}) == 3


def test_what_is_drawn_does_not_change_from_version_to_version() -> None:
    """A rerun years later draws the same."""
    assert chosen("all", {"shared_seed": 3}, 5) is None
    assert [chosen("disjoint", {"member": m, "members": 3, "shared_seed": 1}, 10).tolist() for m in range(3)] == [  # type: ignore[union-attr]
        [2, 4, 9], [0, 3, 7], [1, 5, 6, 8],
    ]  # fmt: skip
    assert chosen("bagging", {"member": 1, "shared_seed": 1}, 10).tolist() == [1, 1, 2, 3, 4, 6, 6, 6, 6, 8]  # type: ignore[union-attr]


def test_impossible_parts_are_refused() -> None:
    for options, code in (
        ({"member": 3, "members": 3}, "data.subset-member"),
        ({"member": 0, "members": 11}, "data.subset-members"),
    ):
        with refused(code):
            chosen("disjoint", options, 10)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ([1, 2], "a list; expected"),
        (numpy.array([0.5]), "a ndarray; expected"),
        (numpy.array([[1]]), "a ndarray; expected"),
        (numpy.array([], numpy.int64), "no sample"),
        (numpy.array([0, 5]), "the sample 5; they are numbered from 0 to 4"),
        (numpy.array([-1]), "the sample -1;"),
    ],
)
def test_what_is_no_subset_is_told(found: Any, problem: str) -> None:
    said = misfit(found, 5)
    assert said is not None
    assert said.startswith(problem)


def every_other(samples: int, *, start: int = 0) -> Any:
    return numpy.arange(start, samples, 2)


def at_random(samples: int) -> Any:
    return numpy.random.permutation(samples)[: samples // 2]


def raising(samples: int) -> Any:
    return 1 // (samples - samples)


def test_ones_own_is_tried_before_the_run() -> None:
    here = "tests.data.sampling.test_subsets"
    assert problems(f"{here}:every_other", {"start": 1}) == []
    assert chosen(f"{here}:every_other", {"start": 1}, 6).tolist() == [1, 3, 5]  # type: ignore[union-attr]
    assert "is not pure" in problems(f"{here}:at_random", {})[0]
    assert "ZeroDivisionError" in problems(f"{here}:raising", {})[0]


def test_the_options_are_those_of_the_settings() -> None:
    run = "run: {steps: 1}\npipeline: {target: 'a:B'}\n"
    settings = from_yaml(f"{run}data: {{subset: {{name: disjoint, member: 1, members: 4}}}}\n")
    assert settings.data.subset.options == {"member": 1, "members": 4}
    with refused("settings.option-required", "data.subset.member"):
        from_yaml(f"{run}data: {{subset: bagging}}\n")
    noise = "privacy: {clipping_norm: 1.0, noise_multiplier: 1.0, delta: 1.0e-4}\n"
    data = "data: {shards: 8, batch_size: 64, partition: iid, subset: {name: bagging, member: 0}}\n"
    with refused("privacy.subset"):
        from_yaml(run + noise + data)
    assert list(SUBSETS) == ["all", "bagging", "disjoint"]
