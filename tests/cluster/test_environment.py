"""Which variables are set before Ray is imported."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest

from orchestrator.cluster.actors.members import credentials_of
from orchestrator.cluster.sessions.environment import (
    enter,
    of_workers,
    patient,
    prepare_environment,
    unmonitored,
    unsuspecting,
)
from orchestrator.common.tested_versions import Tried
from orchestrator.numerics.allocator import GROWING, LARGE_PAGES
from orchestrator.numerics.determinism import ENVIRONMENT
from orchestrator.provenance.environment import region

AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
NICENESS = "RAY_worker_niceness"
PATIENCE = {
    "RAY_gcs_server_port_wait_time_s": "91",
    "RAY_agent_register_timeout_ms": "91000",
    "RAY_worker_register_timeout_seconds": "91",
}
CHECKS = "RAY_health_check_failure_threshold"
MONITOR = "RAY_memory_monitor_refresh_ms"
OTHERS = ("RAY_USAGE_STATS_ENABLED", "RAY_DEDUP_LOGS_SKIP_REGEX", NICENESS, CHECKS, MONITOR, *PATIENCE)


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*AUTH, *OTHERS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_private_ray_is_closed_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    prepare_environment(None)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_a_ray_that_is_imported_already_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", sys)
    prepare_environment(None)
    assert not set(AUTH) & set(os.environ)


def test_the_access_to_a_joined_ray_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_environment("head:6379")
    assert not set(AUTH) & set(os.environ)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    prepare_environment("head:6379")
    assert os.environ["RAY_AUTH_TOKEN"] == "mine"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_workers_of_a_private_ray_have_the_drivers_priority_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare_environment("head:6379")
    assert NICENESS not in os.environ
    prepare_environment(None)
    assert os.environ[NICENESS] == "0"
    monkeypatch.setenv(NICENESS, "10")
    prepare_environment(None)
    assert os.environ[NICENESS] == "10"


def test_a_ray_that_is_started_has_our_patience_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    with patient(90.5):
        assert {name: os.environ[name] for name in PATIENCE} == PATIENCE
    assert not set(PATIENCE) & set(os.environ)
    name = next(iter(PATIENCE))
    monkeypatch.setenv(name, "7")
    with patient(90.5):
        assert os.environ[name] == "7"
    assert os.environ[name] == "7"
    with patient(1e9):
        in_ms = {each: int(os.environ[each]) * (1 if each.endswith("_ms") else 1000) for each in PATIENCE}
    assert max(in_ms.values()) < 2**31, "Ray does not start with larger ones"


def test_the_only_node_of_a_private_ray_is_not_taken_for_dead_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with unsuspecting():
        assert int(os.environ[CHECKS]) * 3 > 24 * 3600  # a check every 3 s
    assert CHECKS not in os.environ
    monkeypatch.setenv(CHECKS, "5")
    with unsuspecting():
        assert os.environ[CHECKS] == "5"


def test_a_private_ray_ends_nobody_for_want_of_memory_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with unmonitored():
        assert os.environ[MONITOR] == "0"
    assert MONITOR not in os.environ
    monkeypatch.setenv(MONITOR, "250")
    with unmonitored():
        assert os.environ[MONITOR] == "250"


@pytest.mark.parametrize(
    "said",
    [
        "WARNING: 58 PYTHON worker processes have been started on node: 7 with address: 127.0.0.1, which is 29x the maximum",
        "A worker died or was killed while executing a task",
        "The node with node id: 7 has been marked dead\nbecause the detector has missed too many heartbeats from it",
    ],
)
def test_what_raylets_say_stays_in_their_logs(said: str) -> None:
    """Such errors reach every driver, past log_to_driver."""
    from ray._private.ray_logging import LogDeduplicator

    prepare_environment(None)
    kept = LogDeduplicator(5, None, os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"])
    batch: Any = {"lines": [said], "pid": "raylet", "is_err": False}
    assert [each["lines"] for each in kept.deduplicate(batch)] == [[]]


def test_workers_get_every_variable_that_changes_bits() -> None:
    found = of_workers()
    assert {*found} - {*region.here()} == {*ENVIRONMENT, *LARGE_PAGES, *GROWING}
    assert {name: os.environ.get(name, region.time_zone()) for name in found} == found


def test_workers_of_other_machines_have_the_language_and_the_time_zone_of_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An hour that is taken from a time stamp would depend on the machine that reads the sample."""
    monkeypatch.setenv("LC_COLLATE", "de_DE.UTF-8")
    for zone in ("Asia/Tokyo", None):
        monkeypatch.delenv("TZ", raising=False) if zone is None else monkeypatch.setenv("TZ", zone)
        found = of_workers()
        assert found["LC_COLLATE"] == "de_DE.UTF-8"
        assert found.get("TZ") == (zone or region.time_zone())


def test_workers_get_the_variables_that_are_declared_and_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALE", "2")
    monkeypatch.delenv("MODE", raising=False)
    assert of_workers(["SCALE", "MODE"]) == {**of_workers(), "SCALE": "2"}


def test_ray_is_given_no_variable_that_holds_a_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALE", "2")
    monkeypatch.setenv("SERVICE_TOKEN", "a1b2c3d4e5f6a7b8c9")
    monkeypatch.setenv("DB_PASSWORD", "secret")
    declared = ["SCALE", "SERVICE_TOKEN", "DB_PASSWORD", "API_KEY"]
    assert of_workers(declared) == {**of_workers(), "SCALE": "2"}
    assert credentials_of(declared) == {"SERVICE_TOKEN": "a1b2c3d4e5f6a7b8c9", "DB_PASSWORD": "secret"}


@pytest.mark.parametrize("tested", [True, False])
def test_ray_does_not_take_sigterm_for_itself(tested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the driver without a word, and its run as failed. A Ray that was not tested has it while it starts."""
    monkeypatch.setattr(Tried, "is_here", tested)
    import ray
    from ray._private import utils

    usual, ours = utils.set_sigterm_handler, signal.getsignal(signal.SIGTERM)

    def init(**_options: Any) -> None:
        utils.set_sigterm_handler(lambda _number, _frame: None)  # type: ignore[no-untyped-call]  # as Ray does there
        assert (signal.getsignal(signal.SIGTERM) == ours) is tested

    monkeypatch.setattr(ray, "init", init)
    try:
        enter("local")
        assert signal.getsignal(signal.SIGTERM) == ours
        assert utils.set_sigterm_handler is usual
    finally:
        signal.signal(signal.SIGTERM, ours)
