"""Whether nodes can hold a run, as a pure question; and room that is let go, also where the Ray is gone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from orchestrator.cluster.placement import reservation
from orchestrator.cluster.placement.reservation import Need, Node, lack, wishes
from orchestrator.common.tested_versions import Tried
from tests.refusals import refused

NODES = [Node("a" * 56, "10.0.0.1", {"CPU": 4.0, "GPU": 1.0}), Node("b" * 56, "10.0.0.2", {"CPU": 2.0})]


@pytest.mark.parametrize(
    "need",
    [Need(6, 1.0), Need(3, 2.0), Need(12, 0.5), Need(2, 1.0, 0.5), Need(4, 1.0, together=True), Need(40, 0.1, 0.025)],
)
def test_what_fits_lacks_nothing(need: Need) -> None:
    assert lack(need, NODES) is None


@pytest.mark.parametrize(
    "need",
    [Need(7, 1.0), Need(4, 2.0), Need(1, 5.0), Need(2, 1.0, 1.0), Need(5, 1.0, together=True), Need(41, 0.1, 0.025)],
)
def test_what_does_not_fit_is_told_with_what_there_is(need: Need) -> None:
    told = lack(need, NODES)
    assert told is not None
    assert told.startswith(f"the run needs {need}, more than this Ray has: ")
    assert "node 10.0.0.1 (aaaaaaaa): 4 CPUs and 1 GPU; node 10.0.0.2 (bbbbbbbb): 2 CPUs and 0 GPUs" in told
    assert told.endswith("; a part is of one GPU, which holds 40 of them") is (need.gpus == 0.025)


TYPED = [
    Node("c" * 56, "10.0.0.3", {"CPU": 8.0, "GPU": 2.0, "accelerator_type:A100": 1.0}),
    Node("d" * 56, "10.0.0.4", {"CPU": 8.0, "GPU": 2.0, "accelerator_type:H100": 1.0}),
]


@pytest.mark.parametrize(
    ("each", "most"), [(0.25, 8), (0.3, 6), (0.5, 4), (0.6, 2), (1.0, 2), (2.0, 1), (0.0001, 20_000)]
)
def test_parts_of_gpus_are_of_one_card_each(each: float, most: int) -> None:
    assert Node("e" * 56, "10.0.0.5", {"CPU": 10**6, "GPU": 2.0}).holds(Need(1, 1.0, each)) == most


def test_only_nodes_with_that_type_of_card_count() -> None:
    assert lack(Need(2, 1.0, 1.0, card="H100"), TYPED) is None
    told = lack(Need(3, 1.0, 1.0, card="H100"), TYPED)
    assert told is not None
    assert told.startswith("the run needs 3 processes with 1 CPU and 1 GPU of type H100 each, more than this Ray has: ")
    no_such = "cluster.accelerator_type: no node of this Ray has a GPU of type H200; there is "
    assert lack(Need(1, 1.0, 1.0, card="H200"), TYPED) == f"{no_such}A100, H100"
    assert lack(Need(1, 1.0, 1.0, card="H200"), NODES) == f"{no_such}none of any type"


def test_ray_is_asked_for_the_type_in_each_bundle_and_of_each_actor() -> None:
    need = Need(2, 1.0, 0.5, sites={"clinic": 1}, card="H100")
    typed = {"accelerator_type:H100": 0.001}
    assert need.bundles == [{"CPU": 1.0, "GPU": 0.5, "clinic": 0.001, **typed}, {"CPU": 1.0, "GPU": 0.5, **typed}]
    assert need.placement() == {"resources": typed}
    assert Need(1, 1.0).placement() == {}


def test_members_are_wished_for_on_a_node_as_far_as_it_may_ever_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "living_nodes", lambda: NODES)

    def wished(need: Need, node: str, some: int, *, insists: bool = False) -> list[int]:
        found = wishes(need, node, some, insists=insists)
        for each in found:
            assert each.selectors == [{"ray.io/node-id": node}] * len(each.on) + [{}] * (need.members - len(each.on))
        return [len(each.on) for each in found]

    there = NODES[1].id
    assert wished(Need(6, 1.0), there, 1) == [1, 0]
    assert wished(Need(2, 1.0), there, 1) == [2, 1, 0]
    assert wished(Need(2, 1.0), there, 2) == [2, 0]
    assert wished(Need(3, 1.0), there, 2, insists=True) == [2]
    assert wished(Need(2, 1.0), there, 1, insists=True) == [2, 1]
    assert wished(Need(2, 1.0, together=True), there, 1) == [2, 0]
    for need in (Need(1, 3.0), Need(3, 1.0, together=True)):
        assert wished(need, there, 1, insists=True) == [0]
    assert wished(Need(1, 1.0), "gone", 1) == [0]


def test_room_that_is_not_free_where_it_is_wished_for_is_taken_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, removed = list[Any](), list[Any]()

    class Group:
        def __init__(self, bundles: object, strategy: str, bundle_label_selector: list[dict[str, str]]) -> None:  # noqa: ARG002
            self.bundles, self.is_anywhere = bundles, not any(bundle_label_selector)
            asked.append(self)

        def wait(self, _seconds: float) -> bool:
            return self.is_anywhere

    monkeypatch.setattr(reservation, "living_nodes", lambda: NODES)
    monkeypatch.setattr(reservation, "placement_group", Group)
    monkeypatch.setattr(reservation, "remove_placement_group", removed.append)
    monkeypatch.setattr(
        reservation, "placement_group_table", lambda _: {"bundles_to_node_id": {0: NODES[0].id, 1: NODES[0].id}}
    )
    monkeypatch.setattr(reservation, "PlacementGroupSchedulingStrategy", lambda *_, **__: None)
    monkeypatch.setattr(reservation, "_WISHED_S", 0.0)
    needs = wishes(Need(2, 1.0), NODES[1].id, 1, insists=False)
    with reservation.reserved(needs, 60.0, lambda: None, lambda: None) as slots:
        assert [slot.node for slot in slots] == [NODES[0]] * 2
        assert removed == asked[:2]
    assert removed == asked
    monkeypatch.setattr(reservation, "_free", lambda _: "nothing")
    insisting = wishes(Need(2, 1.0), NODES[1].id, 1, insists=True)
    with refused("ray.not-free"), reservation.reserved(insisting, 0.0, lambda: None, lambda: None):
        pass
    assert removed == asked


def test_a_ray_without_nodes_lacks_everything() -> None:
    assert (
        lack(Need(1, 1.0), []) == "the run needs 1 process with 1 CPU and 0 GPUs each, more than this Ray has: no node"
    )


def test_a_head_that_does_not_say_which_nodes_there_are_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr("ray.nodes", lambda: over.wait() and [])
    monkeypatch.setattr(reservation, "_ANSWER_S", 0.01)
    with refused("ray.no-nodes"):
        reservation.living_nodes()
    over.set()


def test_what_is_free_is_told_by_node_where_ray_was_tested_and_in_total_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = {NODES[0].id: {"CPU": 3.0}, NODES[1].id: {"CPU": 1.0}}
    monkeypatch.setattr("ray._private.state.available_resources_per_node", lambda: free)
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 4.0})
    by_node = "node 10.0.0.1 (aaaaaaaa): 3 CPUs and 0 GPUs; node 10.0.0.2 (bbbbbbbb): 1 CPU and 0 GPUs"
    assert reservation._free(NODES) == by_node
    monkeypatch.setattr(Tried, "is_here", False)
    assert reservation._free(NODES) == "4 CPUs and 0 GPUs"


def test_a_site_has_to_be_offered_by_nodes_with_room_for_its_workers() -> None:
    nodes = [Node("1", "10.0.0.1", {"CPU": 2.0, "a": 1.0}), Node("2", "10.0.0.2", {"CPU": 8.0})]
    assert lack(Need(5, 1.0, sites={"a": 2, "": 1}), nodes) is None
    assert "no node of this Ray offers b" in str(lack(Need(2, 1.0, sites={"a": 1, "b": 1}), nodes))
    assert "3 workers with 1 CPU and 0 GPUs each are to be at a, which offers less" in str(
        lack(Need(3, 1.0, sites={"a": 3}), nodes)
    )
    assert Need(4, 1.0, sites={"": 1, "a": 2}).site_of == ["a", "a", "", ""], "servers come last, and may be anywhere"
