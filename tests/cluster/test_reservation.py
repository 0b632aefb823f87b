"""Whether nodes can hold a run, as a pure question; and room that is let go, also where the Ray is gone."""

from __future__ import annotations

import threading

import pytest

from orchestrator.cluster.placement import reservation
from orchestrator.cluster.placement.reservation import Need, Node, lack

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


def test_a_ray_without_nodes_lacks_everything() -> None:
    assert (
        lack(Need(1, 1.0), []) == "the run needs 1 process with 1 CPU and 0 GPUs each, more than this Ray has: no node"
    )


def test_room_is_let_go_before_the_next_one_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    monkeypatch.setattr(reservation, "remove_placement_group", removed.append)
    reservation._remove("group", lambda: None)
    assert removed == ["group"]


def test_a_ray_that_is_gone_is_not_asked_and_one_that_goes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    called, gone = threading.Event(), threading.Event()

    def never_answered(_group: str) -> None:
        called.set()
        gone.wait()

    monkeypatch.setattr(reservation, "remove_placement_group", never_answered)
    reservation._remove("group", lambda: "the head has ended")
    assert not called.is_set()
    reservation._remove("group", lambda: "the head has ended" if called.is_set() else None)
    assert called.is_set()
    gone.set()
