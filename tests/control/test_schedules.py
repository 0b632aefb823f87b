"""By which schedule the workers of a generation add up."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.control.events import Begin
from orchestrator.control.rendezvous.schedules import schedule_of
from orchestrator.plan import Exchange, Variant
from orchestrator.topologies import build_schedule


def begin(workers: int, servers: int, *, without_servers: bool = False) -> Begin:
    return Begin(
        generation=0,
        members=tuple(range(workers + servers)),
        workers=workers,
        servers=servers,
        shards=((),) * workers,
        state_transfers=(),
        restore=None,
        without_servers=without_servers,
        run_manifest={},
    )


@pytest.mark.parametrize(
    ("topology", "generation", "expected"),
    [
        (Variant("tree", {"arity": 3}), begin(5, 0), build_schedule("tree", 5, arity=3)),
        (Variant("parameter_server", {"servers": 2}), begin(3, 2), build_schedule("parameter_server", 3, servers=2)),
        (Variant("parameter_server", {"servers": 2}), begin(3, 1), build_schedule("parameter_server", 3, servers=1)),
        (
            Variant("parameter_server", {"servers": 2}),
            begin(3, 0, without_servers=True),
            build_schedule("peer_to_peer", 3),
        ),
    ],
)
def test_the_schedule_is_that_of_the_living(topology: Variant, generation: Begin, expected: Any) -> None:
    exchange = Exchange(exact=True, topology=topology, by_tcp=False, between_nodes=False)
    assert schedule_of(generation, exchange) == expected
