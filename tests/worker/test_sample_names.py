"""Which samples a message names."""

from __future__ import annotations

import math

import torch

from orchestrator.worker.model.sample_names import listed, strange


def test_many_are_named_by_the_first_and_a_stretch_by_its_ends() -> None:
    assert listed([7]) == "7"
    assert listed([4, 17, 9]) == "4, 17, 9"
    assert listed(range(3, 300)) == "3 to 299"
    assert listed([*range(25, 0, -1)]) == ", ".join(map(str, range(25, 5, -1))) + " and 5 more"


def test_those_that_are_not_finite_themselves_are_found_in_any_tensor_with_a_row_for_each() -> None:
    values = torch.ones(3, 2, 2)
    values[1, 0, 1] = math.inf
    targets = torch.tensor([0.0, 1.0, math.nan], dtype=torch.bfloat16)
    other = torch.full((2,), math.nan)  # of another length: nothing is known of its samples
    assert strange({"x": values, "y": [targets, other]}, [40, 7, 12]) == [7, 12]
    assert strange((torch.arange(3), torch.empty(3, 0), "text", torch.tensor(math.nan)), [40, 7, 12]) == []
