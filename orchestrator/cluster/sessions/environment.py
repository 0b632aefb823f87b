"""The environment variables that Ray reads when it is imported, and those that its workers on other nodes must have."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from typing import Any

from orchestrator.numerics.determinism import ENVIRONMENT

_SAID_BY_US = "worker died or was killed|Raylet is terminated|state-dump|marked dead|raylet crashes|lagging heartbeats"


def prepare_environment(address: str | None) -> None:
    """Make Ray silent, reporting to nobody; a private one (no address) also closed to everybody else. A Ray that is
    joined has its own rules of access, so the user's RAY_AUTH_* stand. To be called before ray is imported."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # These lines reach the terminal past log_to_driver; the controller tells of a lost worker itself.
    os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = _SAID_BY_US
    if address is None and "ray" not in sys.modules:  # once imported, Ray does not look again
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def enter(address: str, **options: Any) -> None:
    """`ray.init` without a word on the terminal, and with our handlers of signals. Raises what Ray raises."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    with _handlers_left_alone():
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)


@contextlib.contextmanager
def _handlers_left_alone() -> Iterator[None]:
    """Ray takes SIGTERM for itself while it starts: one that came in that second would end the driver without a word, and its
    run as failed. There is no public way to keep it from that; a Ray that does it in another way does it."""
    from ray._private import utils

    usual = getattr(utils, "set_sigterm_handler", None)
    if usual is not None:
        utils.set_sigterm_handler = lambda _handler: None
    try:
        yield
    finally:
        if usual is not None:
            utils.set_sigterm_handler = usual


def of_workers() -> dict[str, str]:
    """What has to be in force in a worker before it imports torch: on other nodes nothing is inherited."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
