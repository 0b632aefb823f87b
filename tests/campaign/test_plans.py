"""Plans are functions of their seeds, hold what a run can bear, and some seeds together meet every cell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign import cells, hosts, kinds, modes, moments, plans
from campaign.kinds import BY_NAME, storage
from campaign.plans import Fault, Launch

PROCESS = kinds.of_family("process")
SEEDS = st.integers(0, 10_000)


def every_fault(launch: Launch) -> list[Fault]:
    return [each for fault in launch.faults for each in (fault, fault.partner) if each is not None]


def launches(seed: int, names: tuple[str, ...] = PROCESS) -> list[Launch]:
    return plans.part(seed, 100, names, modes.NAMES, storms=2)


@given(seed=SEEDS)
def test_a_part_is_a_function_of_its_seed(seed: int) -> None:
    assert launches(seed) == launches(seed)
    assert launches(seed) != launches(seed + 1)


@given(
    seed=SEEDS,
    names=st.sampled_from([PROCESS, kinds.of_family("driver"), ("SIGKILL",), ("long stop", "out of memory")]),
)
def test_only_cells_that_can_be_are_planned(seed: int, names: tuple[str, ...]) -> None:
    for launch in launches(seed, names):
        for fault in every_fault(launch):
            kind, moment = BY_NAME[fault.kind], moments.BY_NAME[fault.moment]
            assert fault.kind in names
            assert cells.impossible(kind, moment, modes.BY_NAME[launch.mode]) is None


@given(seed=SEEDS)
def test_numbers_are_unique_and_what_ends_a_run_comes_last(seed: int) -> None:
    for launch in launches(seed):
        numbers = [fault.number for fault in every_fault(launch)]
        assert len(numbers) == len(set(numbers))
        at_end = [moments.BY_NAME[fault.moment].once for fault in launch.faults]
        assert at_end == sorted(at_end)
        assert not (launch.storm and any(at_end))


@given(seed=SEEDS)
def test_what_fails_a_run_is_alone_in_its_launch(seed: int) -> None:
    for launch in launches(seed):
        effects = [BY_NAME[fault.kind].effect for fault in every_fault(launch)]
        assert "fails" not in effects or effects == ["fails"]


@given(seed=SEEDS)
def test_few_faults_wait_for_a_timeout(seed: int) -> None:
    for launch in launches(seed):
        stalls = [fault for fault in every_fault(launch) if BY_NAME[fault.kind].effect == "stalls"]
        assert len(stalls) <= (0 if launch.storm else plans._MOST_STALLS + plans._MOST_ENDS)
        assert all(fault.hold_s > modes.STEP_TIMEOUT_S for fault in stalls)


def test_parts_have_the_faults_that_were_asked_for() -> None:
    calm = [launch for launch in launches(3) if not launch.storm and not launch.id.split()[0].endswith("f")]
    assert 0.75 * 100 < sum(len(every_fault(launch)) for launch in calm) <= len(calm) * plans.PER_LAUNCH
    assert [len(launch.faults) for launch in launches(3) if launch.storm] == [plans.STORM_FAULTS] * 2


def test_some_faults_overlap_others() -> None:
    paired = [fault for seed in range(20) for launch in launches(seed) for fault in launch.faults if fault.partner]
    assert len(paired) > 50
    assert all(BY_NAME[fault.partner.kind].effect == "ends" for fault in paired if fault.partner)


def test_seeds_have_different_mixtures() -> None:
    """Some kinds not at all, some often."""
    of_seed = []
    for seed in range(30):
        storm = plans.storm(seed, 0, modes.BY_NAME["bsp"], PROCESS)
        of_seed.append({fault.kind for fault in storm.faults})
    assert len({frozenset(each) for each in of_seed}) > 10


@pytest.mark.parametrize(
    "mode", [modes.BY_NAME[name] for name in ("bsp", "gossip", "stages of 2")], ids=lambda mode: mode.name
)
def test_so_many_seeds_meet_every_cell_of_a_mode(mode: modes.Mode) -> None:
    names = [name for name in PROCESS if BY_NAME[name].effect != "fails"]
    wanted = {(cell.kind, cell.moment) for cell in cells.possible(names, [mode])}
    count = 3 * plans.PER_LAUNCH // 4
    met: set[tuple[str, str]] = set()
    for visit in range(-(-len(wanted) // count)):
        met.update(plans._bearable(plans._tour(mode, names, visit, count)))
    assert met == wanted


def test_launches_of_a_mode_go_on_where_the_one_before_stopped() -> None:
    """Also from seed to seed, where as many launches are made as there are modes."""
    visits = [plans._turn(seed, number, modes.NAMES) for seed in (0, 14) for number in range(14)]
    assert visits == [(mode, visit) for visit in (0, 1) for mode in modes.MODES]


def test_a_store_that_goes_away_is_alone_in_its_launch() -> None:
    found = plans.part(2, 84, (*kinds.of_family("storage"), "SIGKILL"), modes.NAMES)
    away = [launch for launch in found if launch.store is not None]
    assert {launch.mode for launch in away} == {*modes.NAMES}
    assert {launch.store for launch in away} == {*kinds.of_family("storage")} - {storage.DAMAGED}
    assert all(fault.kind == launch.store for launch in away for fault in launch.faults)


def of_storage(seed: int, faults: int, of: Sequence[str]) -> list[Launch]:
    return plans.part(seed, faults, kinds.of_family("storage"), of)


@given(seed=SEEDS, of=st.lists(st.sampled_from(modes.NAMES), min_size=1, unique=True))
def test_each_mode_meets_the_kinds_of_storage_in_turn(seed: int, of: list[str]) -> None:
    found = of_storage(seed, 13 * 5 * len(of), of)[: 5 * len(of)]
    met = [(launch.mode, launch.faults[0].kind) for launch in found]
    assert sorted(met) == sorted(product(of, kinds.of_family("storage")))
    assert len({launch.id for launch in found}) == len(found)


def test_launches_that_follow_one_another_have_different_kinds_of_storage() -> None:
    assert {launch.faults[0].kind for launch in of_storage(0, 15, modes.NAMES)} == {*kinds.of_family("storage")}


def test_as_many_faults_of_storage_are_planned_as_are_wanted() -> None:
    assert 30 <= sum(len(launch.faults) for launch in of_storage(1, 30, modes.NAMES)) < 33
    assert len(plans.part(1, 30, [storage.DAMAGED], modes.NAMES)) == 30


def test_every_mode_meets_every_kind_of_network_and_node() -> None:
    names = kinds.of_family("network", "node")
    found = plans.part(1, 3 * len(names) * len(modes.NAMES), names, modes.NAMES)
    assert {(launch.mode, launch.store) for launch in found} == {*product(modes.NAMES, names)}


@given(seed=SEEDS)
def test_hosts_have_room_for_all_members_and_none_for_most(seed: int) -> None:
    for launch in plans.part(seed, 3 * len(hosts.KINDS), hosts.KINDS, modes.NAMES):
        kind = launch.faults[0].kind
        rooms = hosts.rooms(kind, launch)
        assert sum(rooms) == launch.played.workers + ("topology=parameter_server" in launch.layout)
        assert len(rooms) == (3 if kind == hosts.BETWEEN else 2)
        assert max(rooms) - min(rooms) <= 1


def test_a_damaged_file_is_one_that_the_run_has() -> None:
    """Each file, by both ways; rests only where shards run free."""
    met = set()
    for launch in plans.part(1, 400, [storage.DAMAGED], ["bsp", "ssp"]):
        (fault,) = launch.faults
        assert fault.damage is not None
        assert launch.damage is fault
        assert launch.store is None
        met.add((launch.mode, fault.damage.what, fault.damage.how))
    assert {what for mode, what, _ in met if mode == "bsp"} == {*storage.FILES} - {storage.RESTS}
    assert {each[1:] for each in met if each[0] == "ssp"} == {*product(storage.FILES, ("bit", "end"))}


@given(seed=SEEDS)
def test_cells_that_were_not_met_are_planned(seed: int) -> None:
    wanted = cells.possible(["SIGKILL", "long stop", "out of memory"], modes.MODES[3:6])
    found = plans.unmet(seed, wanted)
    met = [cells.Cell(fault.kind, fault.moment, launch.mode) for launch in found for fault in every_fault(launch)]
    assert sorted(met) == sorted(wanted)
    assert len({launch.id for launch in found}) == len(found)


@given(seed=SEEDS)
def test_what_fails_a_run_is_among_its_like_where_it_was_not_met(seed: int) -> None:
    """After each of them the run is resumed; of those at its end each has a launch."""
    for launch in plans.unmet(
        seed, cells.possible(["SIGKILL", "out of memory", "out of descriptors"], modes.MODES[:3])
    ):
        fails = {BY_NAME[fault.kind].effect == "fails" for fault in launch.faults}
        assert len(fails) == 1
        if fails == {True}:
            assert len(launch.faults) <= plans._MOST_FAILURES
            assert sum(moments.BY_NAME[fault.moment].once for fault in launch.faults) <= 1


@pytest.mark.slow
def test_layouts_vary_and_have_what_a_mode_can_have() -> None:
    layouts = [launch.layout for seed in range(40) for launch in launches(seed)]
    told = {key for layout in layouts for key in layout}
    assert {f"topology={name}" for name in modes.TOPOLOGIES} <= told
    assert {"transport=tcp", "data.loaders=1", "cluster.spares=1"} <= told
    for launch in launches(1):
        if not modes.BY_NAME[launch.mode].served:
            assert "topology=parameter_server" not in launch.layout


def test_storms_come_every_two_seconds_for_a_minute() -> None:
    assert plans.STORM_EVERY_S * plans.STORM_FAULTS == 60


@pytest.mark.parametrize("mode", modes.NAMES)
def test_a_launch_of_pairs_has_nothing_else(mode: str) -> None:
    (launch,) = plans.part(1, 0, PROCESS, [mode], pairs=16)
    assert len(launch.faults) == 16
    for fault in launch.faults:
        assert fault.partner is not None
        for each in (fault, fault.partner):
            assert kinds.BY_NAME[each.kind].effect == "ends"
            assert cells.impossible(kinds.BY_NAME[each.kind], moments.BY_NAME[each.moment], modes.BY_NAME[mode]) is None


def test_kinds_are_named_by_family_too() -> None:
    assert plans.families(["process"]) == PROCESS
    assert plans.families(["SIGKILL", "driver"]) == ("SIGKILL", "driver SIGKILL", "driver stop")
    with pytest.raises(KeyError):
        plans.families(["nothing of the kind"])


def test_a_plan_that_was_kept_is_the_same_plan() -> None:
    kept = [*launches(1), *plans.part(1, 8, kinds.of_family("memory", "storage"), modes.NAMES)]
    assert [plans.of_dict(json.loads(json.dumps(asdict(launch)))) for launch in kept] == kept


def test_launches_for_other_unmet_cells_have_other_ids() -> None:
    left = cells.possible(["SIGKILL", "out of memory"], [modes.BY_NAME["bsp"]])
    first = {launch.id: launch.faults for launch in plans.unmet(1, left)}
    for launch in plans.unmet(1, left[1::2]):
        assert first.get(launch.id, launch.faults) == launch.faults


def test_ids_are_unique() -> None:
    ids = [launch.id for seed in range(5) for launch in launches(seed)]
    assert all(one != other for one, other in pairwise(sorted(ids)))
