"""Workers that share a GPU: how they fit there is decided from figures, and nothing computes."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common.gpu_memory import PROCESS_BYTES
from orchestrator.driver.preflight import crowded_cards
from orchestrator.driver.preflight.crowded_cards import CardMemory, Tenant
from orchestrator.provenance.environment.cards import Card

GB = 1_000_000_000


def on(card: str, *needed: float, free: float = 79, total: float = 80, first: int = 0) -> list[Tenant]:
    there = CardMemory(card, "NVIDIA H100", round(free * GB), round(total * GB))
    return [Tenant(f"worker {first + each}", there, round(size * GB)) for each, size in enumerate(needed)]


def test_four_workers_that_do_not_fit_are_refused_with_the_card_the_figures_and_the_remedies() -> None:
    error = crowded_cards.refusal([*on("GPU-a", 20, 20, 20, 21), *on("GPU-b", 20, first=4)])
    assert error is not None
    assert (error.code, error.exit_code) == ("gpu.crowded", 2)
    assert error.message == (
        "the configuration is wrong: no room on a GPU: 4 workers share GPU GPU-a (NVIDIA H100, 80 GB), of which 79 GB were "
        "free before; each needs 20 GB to 21 GB beside activations, 81 GB together (worker 0, worker 1, worker 2, worker 3)"
    )
    assert error.remedy.startswith(
        "let fewer workers share a GPU (lower cluster.workers, or raise cluster.gpus_per_worker)"
    )
    assert "nvidia-smi" not in error.remedy


def test_what_others_use_of_a_card_is_no_room_and_is_told() -> None:
    (alone,) = on("GPU-a", 30, free=25)
    error = crowded_cards.refusal([alone])
    assert error is not None
    assert "worker 0 computes on GPU GPU-a (NVIDIA H100, 80 GB), of which 25 GB were free before" in error.message
    assert error.remedy.startswith("end what else is on it (nvidia-smi); or cut the model into stages")


def test_where_only_the_driver_leaves_no_room_it_is_a_note() -> None:
    four = on("GPU-a", 19, 19, 19, 19)
    assert crowded_cards.refusal(four) is None
    (note,) = crowded_cards.notes(four)
    assert "needs 19 GB beside activations, 76 GB together" in note
    assert "the driver takes about 1.5 GB for each process: memory may run out" in note
    assert [*crowded_cards.notes(four[:3])] == []


def test_spares_and_servers_that_share_a_card_are_counted_and_named() -> None:
    there = CardMemory("GPU-a", "X", 10 * GB, 80 * GB)
    members = [("worker 0", 4), ("spare 1", 4), ("spare 2", 4), ("server 3", 1)]
    error = crowded_cards.refusal(Tenant(name, there, size * GB) for name, size in members)
    assert error is not None
    assert "1 worker, 2 spares and 1 server share GPU GPU-a" in error.message
    assert "each needs 1 GB to 4 GB beside activations, 13 GB together (worker 0, spare 1, spare 2" in error.message
    assert "(lower cluster.spares, cluster.workers, or raise cluster.gpus_per_worker)" in error.remedy
    roles = [name.split()[0] for name, _ in members]
    before = crowded_cards.refusal_of_all([size * GB for _, size in members], [(gpu(0), 10 * GB)], roles)
    assert before is not None
    assert "1 worker, 2 spares and 1 server need 1 GB to 4 GB each" in before.message
    assert "lower cluster.spares" in before.remedy


TENANTS = st.lists(
    st.tuples(st.sampled_from(["", "GPU-a", "GPU-b"]), st.integers(0, 40 * GB), st.integers(0, 80 * GB)), max_size=6
).map(
    lambda drawn: [
        Tenant(f"worker {i}", CardMemory(uuid, "X", free, 80 * GB), size) for i, (uuid, size, free) in enumerate(drawn)
    ]
)


@given(TENANTS)
def test_a_run_is_refused_where_one_card_has_less_than_its_workers_need_and_noted_where_it_is_close(
    tenants: list[Tenant],
) -> None:
    """The card of each that tells no UUID is its own."""
    there: dict[str, list[Tenant]] = {}
    for each in tenants:
        there.setdefault(each.card.uuid or each.name, []).append(each)
    spare = {
        card: max(each.card.free_bytes for each in sharing) - sum(each.needed_bytes for each in sharing)
        for card, sharing in there.items()
    }
    error = crowded_cards.refusal(tenants)
    assert (error is not None) is any(size < 0 for size in spare.values())
    close = [card for card, size in spare.items() if 0 <= size < (len(there[card]) - 1) * PROCESS_BYTES]
    assert len([*crowded_cards.notes(tenants)]) == len(close)
    if error is not None:
        assert error.message.count("were free before") == sum(size < 0 for size in spare.values())


def gpu(index: int) -> Card:
    return Card(index, f"GPU-{index}", "NVIDIA H100", "580.95", 80 * GB, "9.0", False, None)


def test_before_the_start_all_cards_of_the_machine_are_told() -> None:
    error = crowded_cards.refusal_of_all([50 * GB] * 3, [(gpu(0), 80 * GB), (gpu(1), 70 * GB)])
    assert error is not None
    assert error.message == (
        "the configuration is wrong: no room on a GPU: 3 workers need 50 GB each, 150 GB together, beside activations, and "
        "80 GB are free on GPU 0 (NVIDIA H100, GPU-0), and 70 GB are free on GPU 1 (NVIDIA H100, GPU-1)"
    )
    assert crowded_cards.refusal_of_all([50 * GB] * 2, [(gpu(0), 80 * GB), (gpu(1), 70 * GB)]) is None
    assert crowded_cards.refusal_of_all([81 * GB], [(gpu(0), 80 * GB), (gpu(1), 70 * GB)]) is not None
    assert crowded_cards.refusal_of_all([81 * GB], []) is None


def fits(needed: list[int], free: list[int]) -> bool:
    """Whether any placement does: each worker has a card, and each card what its workers need."""
    if not needed:
        return True
    if not free:
        return False
    chosen = range(len(needed))
    return any(
        sum(needed[each] for each in here) <= free[0]
        and fits([needed[each] for each in chosen if each not in here], free[1:])
        for count in range(len(needed) + 1)
        for here in combinations(chosen, count)
    )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.lists(st.integers(0, 20), min_size=1, max_size=3))
def test_before_the_start_nothing_is_refused_that_fits_anyhow(needed: list[int], free: list[int]) -> None:
    error = crowded_cards.refusal_of_all(needed, [(gpu(index), size) for index, size in enumerate(free)])
    if error is not None:
        assert not fits(needed, free)
    if len(free) == 1:
        assert (error is None) is fits(needed, free)
