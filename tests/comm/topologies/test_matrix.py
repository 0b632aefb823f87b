"""Law 3: a schedule is a matrix, and every topology of the table is exact: all workers end with each contribution once.

Not here: in which order a member acts; see test_program.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from orchestrator.comm.topologies import TOPOLOGIES, Move, Schedule, build_schedule, matrix
from orchestrator.comm.topologies.listed import listed
from orchestrator.comm.topologies.schedule import require_positive
from tests.comm.topologies.cases import NAMES, variants
from tests.refusals import refused

pytestmark = pytest.mark.slow


def one_chunk(*rounds: tuple[Move, ...], workers: int = 2, servers: int = 0, owner: int = 0) -> Schedule:
    return listed("by hand", workers, servers, (owner,), rounds)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "sizes", [(*range(1, 20), 32, 33), pytest.param(range(1, 65), marks=pytest.mark.long)], ids=["few", "all"]
)
def test_every_worker_and_every_owner_ends_with_every_contribution_once(name: str, sizes: Iterable[int]) -> None:
    for workers in sizes:
        ones = (1,) * workers
        for case in variants(name, workers):
            for owner, ends in zip(case.owners, matrix(case), strict=True):
                assert ends[:workers] == [ones] * workers
                assert ends[owner] == ones


def test_a_schedule_that_forgets_a_worker_shows_it() -> None:
    ends = matrix(one_chunk((Move(1, 0, 0, "add"),), (Move(0, 1, 0, "copy"),), workers=3))
    assert ends == [[(1, 1, 0), (1, 1, 0), (0, 0, 0)]]


def test_a_payload_is_the_value_from_before_the_round() -> None:
    both = (Move(0, 1, 0, "add"), Move(1, 0, 0, "add"))
    assert matrix(one_chunk(both)) == [[(1, 1), (0, 0)]]


@pytest.mark.parametrize(
    ("name", "workers", "options", "members", "chunks", "rounds", "links"),
    [
        ("ring", 5, {}, 5, 5, 8, 5),
        ("tree", 7, {}, 7, 4, 7, 6),
        ("tree", 4, {"arity": 1}, 4, 4, 9, 3),
        ("parameter_server", 5, {"servers": 2}, 7, 2, 2, 10),
        ("peer_to_peer", 5, {}, 5, 5, 2, 10),
        ("hierarchical", 5, {}, 5, 5, 2, 10),
        ("hierarchical", 4, {"nodes": (0, 0, 1, 1)}, 4, 4, 4, 4),
        ("hierarchical", 4, {"nodes": (0, 0, 0, 1)}, 4, 6, 4, 6),
        ("hierarchical", 6, {"nodes": (0, 0, 1, 1, 2, 2)}, 6, 6, 6, 9),
        ("hierarchical", 8, {"nodes": (0, 0, 1, 1, 2, 2, 3, 3), "between": "tree"}, 8, 8, 6, 16),
    ],
)
def test_shapes(
    name: str, workers: int, options: dict[str, Any], members: int, chunks: int, rounds: int, links: int
) -> None:
    case = build_schedule(name, workers, **options)
    assert (case.topology, case.members, case.chunks) == (name, members, chunks)
    assert (len(case.rounds), len(case.links())) == (rounds, links)
    assert all(low < high for low, high in case.links())


@pytest.mark.parametrize("name", ["ring", "tree", "peer_to_peer", "hierarchical"])
def test_one_worker_alone_sends_nothing(name: str) -> None:
    assert build_schedule(name, 1).rounds == ()


def test_a_single_worker_still_has_its_servers() -> None:
    assert build_schedule("parameter_server", 1, servers=2).links() == {(0, 1), (0, 2)}


def test_chunks_of_a_tree_overlap() -> None:
    middle = build_schedule("tree", 7).rounds[2]
    assert len({move.chunk for move in middle}) > 1
    assert {move.kind for move in middle} == {"add", "copy"}


def test_a_new_topology_is_one_line_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    line = TOPOLOGIES["ring"]
    monkeypatch.setitem(TOPOLOGIES, "circle", line)
    assert build_schedule("circle", 3) == build_schedule("ring", 3)


@pytest.mark.parametrize(
    ("name", "options", "code", "named"),
    [
        (
            "star",
            {},
            "settings.no-such-variant",
            "ring, tree, parameter_server, peer_to_peer, hierarchical, or your own",
        ),
        ("ring", {"arity": 2}, "settings.no-such-option", "topology.arity"),
        ("ring", {"radius": 2}, "settings.no-such-option", "topology.radius"),
        ("tree", {"aritty": 2}, "settings.no-such-option", "did you mean arity?"),
        ("hierarchical", {"between": "star"}, "settings.value", "topology.between"),
        ("tree", {"arity": 0}, "settings.value", "topology.arity"),
        ("parameter_server", {"servers": 0}, "settings.value", "topology.servers"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, options: dict[str, Any], code: str, named: str) -> None:
    with refused(code, named):
        build_schedule(name, 2, **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_needs_a_worker(name: str) -> None:
    with pytest.raises(ValueError, match=r"workers is 0; use 1 or more"):
        build_schedule(name, 0)


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (Move(0, 2, 0, "add"), r"round 0: .*target=2.* two different members of 0 to 1"),
        (Move(-1, 0, 0, "add"), r"round 0: .*source=-1.* two different members of 0 to 1"),
        (Move(1, 1, 0, "copy"), r"two different members"),
        (Move(0, 1, 1, "add"), r"round 0: .*chunk=1.* a chunk of 0 to 0"),
        (Move(0, 1, 0, "swap"), r"'swap'.*no known kind; use 'add' or 'copy'"),  # type: ignore[arg-type]
    ],
)
def test_a_move_outside_the_schedule_is_refused(move: Move, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one_chunk((move,))


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"chunk 0 is owned by member 2; members are 0 to 1"):
        one_chunk(owner=2)
    with pytest.raises(ValueError, match=r"servers is -1; use 0"):
        one_chunk(servers=-1)
    with pytest.raises(ValueError, match=r"chunks is 0; use 1 or more"):
        listed("by hand", 1, 0, (), ())
    with pytest.raises(ValueError, match=r"2 nodes are told for 3 workers; tell one for each"):
        build_schedule("hierarchical", 3, nodes=(0, 1))
    with pytest.raises(ValueError, match=r"b is -3; use 1 or more"):
        require_positive(a=1, b=-3)
