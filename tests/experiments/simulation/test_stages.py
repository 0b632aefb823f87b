"""As few stages are chosen as leave each worker room, and each choice says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigurationError
from orchestrator.experiments.simulation.stages import Need, choose_stages
from tests.refusals import refused

NEEDS = [Need(1, 4_000_000_000), Need(2, 2_100_000_000), Need(3, 1_500_000_000), Need(4, 1_100_000_000)]


def test_the_whole_model_is_kept_wherever_it_fits() -> None:
    def asked() -> object:
        yield NEEDS[0]
        raise AssertionError("no other number is looked at")

    chosen = choose_stages(asked(), 17_200_000_000, 4, 300_000_000)  # type: ignore[arg-type]
    assert (chosen.stages, chosen.room_bytes) == (1, 4_000_000_000)
    assert chosen.reason == "a worker needs about 4000 MB for the whole model, and 4000 MB are there for each"


def test_where_it_does_not_the_fewest_stages_are_taken_that_do() -> None:
    chosen = choose_stages(NEEDS, 8_000_000_000, 4, 300_000_000)
    assert chosen.stages == 3
    assert (
        chosen.reason
        == "a worker needs about 1500 MB with 3 stages and 2100 MB with 2 stages, and 1700 MB are there for each"
    )
    assert choose_stages(NEEDS, 9_600_000_000, 4, 300_000_000).reason.startswith(
        "a worker needs about 2100 MB with 2 stages and 4000 MB for the whole model"
    )


def test_where_nothing_fits_all_figures_and_the_remedy_are_said() -> None:
    with refused("stages.memory") as caught:
        choose_stages(NEEDS, 4_000_000_000, 4, 300_000_000)
    assert "raise cluster.workers" in str(caught.value.remedy)
    with refused("stages.memory"):
        choose_stages(NEEDS, 4_000_000, 4, 300_000_000)


@given(
    sizes=st.lists(st.integers(1, 10**10), min_size=1, max_size=8),
    available=st.integers(0, 10**11),
    workers=st.integers(1, 16),
    beside=st.integers(0, 10**9),
)
def test_what_is_chosen_fits_and_nothing_plainer_does(
    sizes: list[int], available: int, workers: int, beside: int
) -> None:
    needs = [Need(stages, size) for stages, size in enumerate(sizes, 1)]
    fitting = [need.stages for need in needs if workers * (need.bytes + beside) <= available]
    if not fitting:
        with pytest.raises(ConfigurationError):
            choose_stages(needs, available, workers, beside)
    else:
        assert choose_stages(needs, available, workers, beside).stages == min(fitting)
