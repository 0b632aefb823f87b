"""Whether nodes can hold a run, as a pure question."""

from __future__ import annotations

import pytest

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
