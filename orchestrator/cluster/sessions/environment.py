"""The environment variables that Ray reads when it is imported, and those that its workers on other nodes must have."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from orchestrator.common.tested_versions import RAY
from orchestrator.numerics.allocator import GROWING, LARGE_PAGES
from orchestrator.numerics.determinism import ENVIRONMENT, PORTABLE
from orchestrator.provenance.environment import region
from orchestrator.records import redaction

# Ray's own patience with its head, its agent and the process of a worker, and in what part of a second it is counted.
_PATIENCE = {
    "RAY_gcs_server_port_wait_time_s": 1,
    "RAY_agent_register_timeout_ms": 1000,
    "RAY_worker_register_timeout_seconds": 1,
}
_LONGEST_S = (2**31 - 1) // 1000  # Ray makes milliseconds of all of them
# The head takes a node for dead that has not answered so often, every 3 s, and its raylet and all members then end.
_UNSUSPECTING = {"RAY_health_check_failure_threshold": "100000"}
# Ray ends several workers at once where 95% of a machine's memory are taken, by whomever, and a run loses steps. The kernel
# ends one when none is left, and Ray's workers before others (oom_score_adj).
_UNMONITORED = {"RAY_memory_monitor_refresh_ms": "0"}
# Else `ray.init` waits until idle workers are up, which actors with options of their own do not take.
_UNHURRIED = {"RAY_prestart_worker_first_driver": "0"}
_EVERYTHING = "."


def prepare_environment(address: str | None) -> None:
    """Make Ray silent, reporting to nobody; a private one (no address) also closed to everybody else, and its workers not
    below the driver's priority. A Ray that is joined has its own rules of access, so the user's RAY_AUTH_* stand. To be
    called before ray is imported."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Errors of raylets and of the head reach the terminal past log_to_driver: lost workers, of which the controller tells
    # itself, or many processes for few processors. They stay in the logs of Ray.
    os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = _EVERYTHING
    if address is None:
        # Ray's default of 15 lets whatever else computes on the machine go first, and the exchange waits for the slowest.
        os.environ.setdefault("RAY_worker_niceness", "0")
    if address is None and "ray" not in sys.modules:  # once imported, Ray does not look again
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def enter(address: str, **options: Any) -> None:
    """`ray.init` without output on the terminal, and with our signal handlers. Raises what Ray raises."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    with _handlers_left_alone(), _readable_entrypoint():
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)


@contextlib.contextmanager
def patient(seconds: float) -> Iterator[None]:
    """A private Ray that is started within this block waits this long for its own processes; values that the user has
    set are kept."""
    wanted = {name: str(min(_LONGEST_S, math.ceil(seconds)) * unit) for name, unit in _PATIENCE.items()}
    with _set(wanted | _UNHURRIED):
        yield


def unsuspecting() -> contextlib.AbstractContextManager[None]:
    """The head of a private Ray that is started within this block never takes its only node for dead. On a machine that is far
    too busy a raylet may not answer for minutes, and whether it lives its launch sees by itself."""
    return _set(_UNSUSPECTING)


def unmonitored() -> contextlib.AbstractContextManager[None]:
    """A private Ray that is started within this block leaves it to the kernel to end workers where memory is short."""
    return _set(_UNMONITORED)


def outliving() -> contextlib.AbstractContextManager[None]:
    """The workers of a private Ray that is started within this block look but once in an hour whether their raylet lives, so
    they go on when it ends with its driver, until they end themselves. (Ray has them look once in a second.)"""
    return _set({"RAY_raylet_death_check_interval_milliseconds": "3600000"})


@contextlib.contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
    """Within this block these are set, where the user has set nothing."""
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


@contextlib.contextmanager
def replaced(place: Any, name: str, ours: Callable[..., Any]) -> Iterator[None]:
    """Within this Ray calls `ours` in place of its own function. For what it has no public way; a Ray that has no function
    of that name is left as it is, and callers ask for `tested_versions.RAY` before, or look afterwards."""
    usual = getattr(place, name, None)
    if usual is not None:
        setattr(place, name, ours)
    try:
        yield
    finally:
        if usual is not None:
            setattr(place, name, usual)


@contextlib.contextmanager
def _handlers_left_alone() -> Iterator[None]:
    """Ray takes SIGTERM for itself while it starts: one that came in that second would end the driver without a word, and its
    run as failed. From a Ray that was not tested it is taken back once it has started."""
    if RAY.is_here:
        from ray._private import utils

        with replaced(utils, "set_sigterm_handler", lambda _handler: None):
            yield
        return
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if ours is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)


def _readable_entrypoint() -> contextlib.AbstractContextManager[None]:
    """Ray notes the command line of whoever joins, as UTF-8: under LC_ALL=C an umlaut in it is what no UTF-8 has."""
    if not RAY.is_here:
        return contextlib.nullcontext()
    from ray._private import utils

    usual = getattr(utils, "get_entrypoint_name", str)
    return replaced(utils, "get_entrypoint_name", lambda: usual().encode("utf-8", "backslashreplace").decode("utf-8"))


def of_workers(declared: Iterable[str] = ()) -> dict[str, str]:
    """The variables that must be set in a worker before it imports torch: on other nodes nothing is inherited, and language and
    time zone may be others. declared: those that the pipeline reads. Ray shows them in its logs and, while a worker starts, in
    its command line. So those that hold credentials are none of them (`members.credentials_of`)."""
    portable = PORTABLE if all(os.environ.get(name) == value for name, value in PORTABLE.items()) else {}
    names = (*ENVIRONMENT, *LARGE_PAGES, *GROWING, *portable, *declared)
    known = {name: os.environ[name] for name in names if name in os.environ}
    return redaction.without_secrets({**region.here(), **known})
