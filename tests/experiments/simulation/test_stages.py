"""As few stages are chosen as leave each worker room, and each choice says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common.gpu_memory import sharing
from orchestrator.errors import ConfigurationError
from orchestrator.experiments.simulation.stages import Need, Room, card_room, choose_stages, room_of
from tests.refusals import refused

NEEDS = [Need(1, 4_000_000_000), Need(2, 2_100_000_000), Need(3, 1_500_000_000), Need(4, 1_100_000_000)]


def test_the_whole_model_is_kept_wherever_it_fits() -> None:
    def asked() -> object:
        yield NEEDS[0]
        raise AssertionError("no other number is looked at")

    chosen = choose_stages(asked(), room_of(17_200_000_000, 4, 300_000_000))  # type: ignore[arg-type]
    assert (chosen.stages, chosen.room_bytes) == (1, 4_000_000_000)
    assert chosen.reason == "a worker needs about 4000 MB for the whole model, and 4000 MB are there for each"


def test_where_it_does_not_the_fewest_stages_are_taken_that_do() -> None:
    chosen = choose_stages(NEEDS, room_of(8_000_000_000, 4, 300_000_000))
    assert chosen.stages == 3
    assert (
        chosen.reason
        == "a worker needs about 1500 MB with 3 stages and 2100 MB with 2 stages, and 1700 MB are there for each"
    )
    assert choose_stages(NEEDS, room_of(9_600_000_000, 4, 300_000_000)).reason.startswith(
        "a worker needs about 2100 MB with 2 stages and 4000 MB for the whole model"
    )


def test_where_nothing_fits_all_figures_and_the_remedy_are_said() -> None:
    with refused("stages.memory") as caught:
        choose_stages(NEEDS, room_of(4_000_000_000, 4, 300_000_000))
    assert "raise cluster.workers" in str(caught.value.remedy)
    with refused("stages.memory"):
        choose_stages(NEEDS, room_of(4_000_000, 4, 300_000_000))


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
            choose_stages(needs, room_of(available, workers, beside))
    else:
        assert choose_stages(needs, room_of(available, workers, beside)).stages == min(fitting)


ON_CARDS = [
    Need(1, 5_000_000_000, 42_000_000_000),
    Need(2, 10_000_000_000, 24_000_000_000),
    Need(4, 10_000_000_000, 14_000_000_000),
]


def test_on_gpus_the_room_of_the_card_decides_and_both_memories_are_said() -> None:
    chosen = choose_stages(ON_CARDS, Room(6_000_000_000, 20_000_000_000, 20_000_000_000))
    assert (chosen.stages, chosen.card_room_bytes) == (4, 20_000_000_000)
    assert chosen.reason == (
        "a worker needs about 14 GB of its GPU and 10 GB of host memory with 4 stages and 24 GB of its GPU and 10 GB of host "
        "memory with 2 stages, and 20 GB of a GPU and 6 GB of host memory, 20 GB in turns, are there for each"
    )
    with refused("stages.memory") as caught:
        choose_stages(ON_CARDS, Room(6_000_000_000, 20_000_000_000, 13_000_000_000))
    assert "run.recompute=true" in str(caught.value.remedy)


def test_whole_models_are_made_at_once_and_those_to_be_cut_in_turns() -> None:
    wide = 80_000_000_000
    assert choose_stages(ON_CARDS, Room(6_000_000_000, 20_000_000_000, wide)).stages == 1
    assert choose_stages(ON_CARDS, Room(4_000_000_000, 20_000_000_000, wide)).stages == 2
    with refused("stages.memory"):
        choose_stages(ON_CARDS, Room(4_000_000_000, 9_000_000_000, wide))


def test_workers_of_a_card_share_it_up_to_the_limit() -> None:
    assert [sharing(gpus, 4) for gpus in (0.0, 0.1, 0.25, 0.3, 0.5, 0.6, 1.0, 2.0)] == [1, 4, 4, 3, 2, 1, 1, 1]
    assert card_room([80_000_000_000], 4) == 18_500_000_000
    assert card_room([80_000_000_000, 24_000_000_000], 1) == 22_500_000_000
    assert card_room([80_000_000_000], 4, limit=10_000_000_000) == 10_000_000_000
    assert card_room([], 4, limit=10_000_000_000) == 10_000_000_000


sizes = st.integers(0, 10**11)


@given(
    needs=st.lists(st.tuples(sizes, sizes), min_size=1, max_size=8),
    free=st.lists(sizes, min_size=1, max_size=4),
    gpus=st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0]),
    limit=st.none() | sizes,
    available=sizes,
    workers=st.integers(1, 16),
    beside=st.integers(0, 10**9),
)
def test_what_is_chosen_for_gpus_fits_on_each_card_and_nothing_plainer_does(
    needs: list[tuple[int, int]],
    free: list[int],
    gpus: float,
    limit: int | None,
    available: int,
    workers: int,
    beside: int,
) -> None:
    on_one = sharing(gpus, workers)
    assert on_one * gpus <= max(1.0, gpus) + 1e-9
    card = card_room(free, on_one, limit)
    asked = [Need(stages, host, size) for stages, (host, size) in enumerate(needs, 1)]

    def fits(need: Need) -> bool:
        at_once = workers if need.stages == 1 else 1
        return (
            all(on_one * need.card_bytes <= each for each in free)
            and (limit is None or need.card_bytes <= limit)
            and need.card_bytes <= card
            and at_once * need.bytes + workers * beside <= available
        )

    fitting = [need.stages for need in asked if fits(need)]
    if not fitting:
        with pytest.raises(ConfigurationError):
            choose_stages(asked, room_of(available, workers, beside, card))
    else:
        assert choose_stages(asked, room_of(available, workers, beside, card)).stages == min(fitting)
