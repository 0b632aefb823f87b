"""The laws of modes: the table's own keep to them under any order of events, and what breaks one is told so with its name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.synchronization import SYNCHRONY, Mode, View, build_mode
from orchestrator.comm.synchronization.graphs import GRAPHS
from orchestrator.comm.synchronization.laws import broken, problems, walk
from orchestrator.comm.synchronization.mode import Waits, bounded
from tests.refusals import refused

# Any other option keeps its default.
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "staleness": st.integers(0, 5),
    "threshold": st.floats(1e-6, 1),
    "rest_every": st.integers(1, 50),
    "graph": st.sampled_from(sorted(GRAPHS)),
}


@st.composite
def modes(draw: st.DrawFn) -> Mode:
    name = draw(st.sampled_from(sorted(SYNCHRONY)))
    options = {
        option: draw(OPTIONS[option]) for option in SYNCHRONY.options(name) if option in OPTIONS and draw(st.booleans())
    }
    return build_mode(name, options)


@given(modes())
def test_every_mode_keeps_to_all(mode: Mode) -> None:
    assert broken(mode) is None


@given(modes(), st.integers(1, 6), st.data())
def test_every_mode_is_safe_and_live_in_any_order(mode: Mode, shards: int, data: st.DataObject) -> None:
    assert walk(mode, shards, 30, lambda numbers: data.draw(st.sampled_from(numbers))) is None


def test_bounds_are_exact() -> None:
    """At the bound a shard may start, one further it may not; a bound of 0 is lockstep."""
    for staleness in range(4):
        waits = build_mode("ssp", {"staleness": staleness}).waits
        assert waits(View((staleness, 0), 0)) is None
        assert waits(View((staleness + 1, 0, 1), 0)) == (
            f"shard 0 is {staleness + 1} updates ahead of shard 1; the bound is {staleness}"
        )
    assert build_mode("ssp", {}).staleness == 3
    assert build_mode("bsp", {}).waits(View((1, 0), 0)) is not None


def test_who_has_no_bound_never_waits() -> None:
    for name in ("asp", "bap", "gossip"):
        mode = build_mode(name, {})
        assert (mode.staleness, mode.waits(View((1000, 0), 0))) == (None, None)
    assert build_mode("asp", {"staleness": 2}).waits(View((3, 0), 0)) is not None


def test_options_are_checked() -> None:
    wrong: list[tuple[str, dict[str, Any], str, str]] = [
        ("ssp", {"staleness": -1}, "settings.value", "sync.staleness"),
        ("asp", {"threshold": 0}, "settings.value", "sync.threshold"),
        ("bap", {"rest_every": 0}, "settings.value", "sync.rest_every"),
        ("gossip", {"graph": "star"}, "settings.value", "sync.graph"),
        ("bsp", {"rest_every": 2}, "settings.no-such-option", "sync.rest_every"),
        ("sps", {}, "settings.no-such-variant", "sync.name"),
    ]
    for name, options, code, named in wrong:
        with refused(code, named):
            build_mode(name, options)


FORGETFUL = iter([None, "not now"] * 1000)


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        (3, "returns int"),
        (Mode("sprints", bounded(4), staleness=3), r"is not safe: shard \d starts 4 updates ahead of the slowest"),
        (Mode("sprints", lambda _: "no"), "is not live: no shard can start at the clocks \\[0\\]: no"),
        (Mode("sprints", lambda _: False), "has a `waits` that answers False; it must say why"),  # type: ignore[arg-type, return-value]
        (Mode("sprints", lambda _: next(FORGETFUL)), "is not pure|is not live"),
        (Mode("running"), "has execution 'running'"),  # type: ignore[arg-type]
        (Mode("sprints", rest_every=0), "has rest_every 0"),
        (Mode("sprints", threshold=-1.0), "has threshold -1.0"),
        (Mode("lockstep"), "has execution lockstep: staleness must be 0"),
        (Mode("sprints", graph="ring"), "has a graph without execution gossip"),
        (Mode("gossip"), "has a graph without execution gossip, or the reverse"),
        (Mode("gossip", graph="star"), "has graph 'star'; there are ring"),
        (Mode("gossip", graph="ring", threshold=0.1), "has execution gossip and a threshold"),
    ],
)
def test_what_is_broken_is_named(mode: object, problem: str) -> None:
    found = broken(mode)
    assert found is not None
    assert re.match(problem, found), found


def backwards(*, staleness: int = 3) -> Mode:
    """Lets those start that are ahead, and holds up those behind."""
    waits: Waits = bounded(staleness)
    return Mode("sprints", lambda view: None if waits(view) else "behind", staleness=staleness)


def raising() -> Mode:
    raise ValueError("no luck")


def test_a_users_own_is_found_and_held_to_the_laws() -> None:
    assert problems("tests.comm.synchronization.test_modes:backwards", {}) == [
        "sync: tests.comm.synchronization.test_modes:backwards is not live: no shard can start at the clocks [0]: behind"
    ]
    assert "ValueError" in problems("tests.comm.synchronization.test_modes:raising", {})[0]
    assert problems("orchestrator.comm.synchronization.modes:ssp", {"staleness": 1}) == []
