"""How a private Ray is started; none is, here."""

from __future__ import annotations

from typing import Any

from ray._private import node, services

from orchestrator.cluster.sessions import local


def test_this_ray_can_do_without_its_helpers_and_others_have_them() -> None:
    helpers: list[tuple[Any, str]] = [(node.Node, "start_monitor"), (node.Node, "start_log_monitor")]
    helpers.append((services, "start_api_server"))
    usual = [getattr(place, name) for place, name in helpers]
    with local._fewer_processes():
        assert [getattr(place, name)("anything") for place, name in helpers] == [None, None, (None, None)]
    assert [getattr(place, name) for place, name in helpers] == usual
