"""The second vote of a step: what the members of a stage have to agree on before anybody applies it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.errors import Inconsistent
from orchestrator.numerics.exact import wrap
from orchestrator.worker.pipeline_parallel.commit_vote import Ballot

PRINTS = [2**63 - 5, -(2**63) + 1, 7]  # of stages 0, 1 and 2


def agreed(*told: tuple[int, int]) -> tuple[int, ...]:
    """The outcome of a vote among members, each of (stage, fingerprint)."""
    vectors: list[torch.Tensor] = []

    def maximum(_step: int, _attempt: int, _phase: int, vector: torch.Tensor) -> torch.Tensor:
        vectors.append(vector)
        return vector

    exchange: Any = SimpleNamespace(maximum=maximum)
    for stage, printed in told:
        Ballot(stage, len(PRINTS), None, torch.device("cpu")).vote(exchange, 4, 0, printed, lambda _: [])
    return tuple(torch.stack(vectors).amax(0).tolist())


def test_the_fingerprint_of_the_whole_is_put_together_of_those_of_stages() -> None:
    found = agreed(*enumerate(PRINTS), (1, PRINTS[1]))
    for stage, printed in enumerate(PRINTS):
        assert Ballot(stage, len(PRINTS), None, torch.device("cpu")).learn(4, printed, (found,)) == wrap(sum(PRINTS))


@pytest.mark.parametrize("bit", [0, 31, 32, 62])
def test_members_of_a_stage_with_different_sums_are_told_to_all_with_what_to_look_at(bit: int) -> None:
    found = agreed(*enumerate(PRINTS), (1, PRINTS[1] ^ 1 << bit))
    for stage, printed in enumerate(PRINTS):
        with pytest.raises(Inconsistent, match="step 4: the members that host stage 1 have different sums") as caught:
            Ballot(stage, len(PRINTS), None, torch.device("cpu")).learn(4, printed, (found,))
        assert "a copy from one to another may have arrived otherwise" in (caught.value.remedy or "")
